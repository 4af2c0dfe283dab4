"""What real servers were seen to do, the emulator does: recorded sessions, played against it.

All sessions of all files are played once; each test asks how its session went. Those that look at the time are played
when the others, which keep the machine busy, are over.
"""

import contextlib
import re

import gevent
import pytest

from fakensqd import Certificates, FakeAuthServer, FakeLookupd, FakeNsqd
from tests.fakensqd.recorded_auth import RecordedAnswers
from tests.fakensqd.transcripts import Player, load, play_all

NSQD, LOOKUPD = "nsqd-1.3.0", "nsqlookupd-1.3.0"
NAMES = [NSQD, f"{NSQD}-flags", f"{NSQD}-tls", f"{NSQD}-tlsreq", f"{NSQD}-auth", LOOKUPD]
TRANSCRIPTS = {name: load(name) for name in NAMES}

DURATIONS = {"ms": 0.001, "s": 1.0}


def value(text):
    """Read the value of a flag: a number, a duration in seconds, a yes or no, or a word."""
    if found := re.fullmatch(r"(\d+)(ms|s)?", text):
        number, unit = found.groups()
        return int(number) * DURATIONS[unit] if unit else int(number)
    return {"true": True, "false": False}.get(text, text)


def options(flags):
    """Read a command line as options of the emulator."""
    return {name.replace("-", "_"): value(text) for name, text in re.findall(r"--([a-z-]+)=(\S+)", flags)}


def make_server(name, certificate, auth_server):
    """Make the server that a file was recorded with; its files and addresses are ours."""
    found = options(TRANSCRIPTS[name].header["flags"])
    if "tls_cert" in found:
        found |= {"tls_cert": certificate.certificate, "tls_key": certificate.key}
    if found.pop("auth_http_address", None):
        found["auth_http_addresses"] = (auth_server.http_address,)
    return FakeLookupd(**found) if name == LOOKUPD else FakeNsqd(**found)


def played(name, phases, server):
    tcp, http = ("127.0.0.1", server.tcp_port), ("127.0.0.1", server.http_port)
    typed = TRANSCRIPTS[name].header["framing"] == "v2"
    found = [play_all(TRANSCRIPTS[name], phase, lambda: Player(tcp, http, typed=typed)) for phase in phases]
    return {session_id: text for differences in found for session_id, text in differences.items()}


@pytest.fixture(scope="module")
def differences(tmp_path_factory):
    """What was different, by file and session; empty if all is well."""
    certificate = Certificates(tmp_path_factory.mktemp("certificates")).server()
    with contextlib.ExitStack() as stack:
        auth_server = stack.enter_context(FakeAuthServer(answer=RecordedAnswers()))
        servers = {name: stack.enter_context(make_server(name, certificate, auth_server)) for name in TRANSCRIPTS}
        found = {name: {} for name in servers}
        for phases in ([0], [1, 2]):
            greenlets = {name: gevent.spawn(played, name, phases, server) for name, server in servers.items()}
            gevent.joinall(list(greenlets.values()), raise_error=True)
            for name, greenlet in greenlets.items():
                found[name] |= greenlet.value
        assert [error for server in (*servers.values(), auth_server) for error in server.errors] == []
        return found


SESSIONS = [
    pytest.param(name, session_id, id=session_id)
    for name, transcript in TRANSCRIPTS.items()
    for session_id in transcript.sessions
]


@pytest.mark.parametrize(("name", "session_id"), SESSIONS)
def test_a_recorded_session_is_played_equal(differences, name, session_id):
    assert differences[name].get(session_id) is None


def test_all_sessions_are_played():
    assert len(SESSIONS) == 575
