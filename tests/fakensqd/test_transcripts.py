"""What real servers were seen to do, the emulator does: recorded sessions, played against it.

All sessions of all files are played once, at the same time; each test asks how its session went.
"""

import re

import gevent
import pytest

from fakensqd import FakeLookupd, FakeNsqd
from tests.fakensqd.transcripts import Player, load, play_all

NSQD, FLAGS, LOOKUPD = "nsqd-1.3.0", "nsqd-1.3.0-flags", "nsqlookupd-1.3.0"
TRANSCRIPTS = {name: load(name) for name in (NSQD, FLAGS, LOOKUPD)}

# Sessions that need what the emulator does not offer yet: beginnings of their ids, and what it is.
NOT_OFFERED_YET = {
    "snappy-": "compression",
    "deflate-": "compression",
    "flags-deflate-": "compression",
    "identify-both-compressions": "compression",
    "http-config-get-snappy": "compression",
    "http-config-get-deflate": "compression",
}
# These begin the same way and need none of it.
OFFERED = {"snappy-without-features"}

DURATIONS = {"ms": 0.001, "s": 1.0}
# What the recorded server had that the emulator has no option for: whether it offers compression.
UNKNOWN_FLAGS = {"snappy"}


def reason(session_id):
    if session_id in OFFERED:
        return None
    return next((why for beginning, why in NOT_OFFERED_YET.items() if session_id.startswith(beginning)), None)


def options(flags):
    """Read a command line as options of the emulator."""
    found = {}
    for name, value in re.findall(r"--([a-z-]+)=(\S+)", flags):
        number, unit = re.fullmatch(r"(\w+?)(ms|s)?", value).groups()
        if name not in UNKNOWN_FLAGS:
            found[name.replace("-", "_")] = int(number) * DURATIONS[unit] if unit else int(number)
    return found


def skipped(name):
    return {session_id for session_id in TRANSCRIPTS[name].sessions if reason(session_id)}


def played(name, server):
    tcp, http = ("127.0.0.1", server.tcp_port), ("127.0.0.1", server.http_port)
    typed = TRANSCRIPTS[name].header["framing"] == "v2"
    differences = play_all(TRANSCRIPTS[name], skipped(name), lambda: Player(tcp, http, typed=typed))
    assert server.errors == []
    return differences


@pytest.fixture(scope="module")
def differences():
    """What was different, by file and session; empty if all is well."""
    flags = {name: options(transcript.header["flags"]) for name, transcript in TRANSCRIPTS.items()}
    with FakeNsqd(**flags[NSQD]) as nsqd, FakeNsqd(**flags[FLAGS]) as limited, FakeLookupd(**flags[LOOKUPD]) as lookupd:
        servers = {NSQD: nsqd, FLAGS: limited, LOOKUPD: lookupd}
        greenlets = {name: gevent.spawn(played, name, server) for name, server in servers.items()}
        gevent.joinall(list(greenlets.values()), raise_error=True)
        return {name: greenlet.value for name, greenlet in greenlets.items()}


SESSIONS = [
    pytest.param(
        name,
        session_id,
        id=session_id,
        marks=pytest.mark.skip(reason=f"not offered yet: {reason(session_id)}") if reason(session_id) else (),
    )
    for name, transcript in TRANSCRIPTS.items()
    for session_id in transcript.sessions
]


@pytest.mark.parametrize(("name", "session_id"), SESSIONS)
def test_a_recorded_session_is_played_equal(differences, name, session_id):
    assert differences[name].get(session_id) is None


def test_only_what_is_not_offered_is_skipped():
    assert {name: len(skipped(name)) for name in TRANSCRIPTS} == {NSQD: 21, FLAGS: 3, LOOKUPD: 0}
