"""Any server responds to recorded sessions as real servers did.

All sessions of all files are played once; each test asks how its session went. Those that look at the time are played
after the others, which keep the machine busy; against the emulator they are played on a manual clock.
"""

import contextlib
import re
import subprocess

import gevent
import pytest

from fakensqd import Certificates, FakeAuthServer, FakeLookupd, FakeNsqd
from fakensqd.clock import ManualClock, RealClock
from gnsq.addresses import parse_address
from tests.fakensqd.recorded_auth import RecordedAnswers
from tests.fakensqd.transcripts import Player, load, play_all

VERSION = "1.3.0"
NSQD, LOOKUPD = f"nsqd-{VERSION}", f"nsqlookupd-{VERSION}"
NAMES = [NSQD, f"{NSQD}-flags", f"{NSQD}-tls", f"{NSQD}-tlsreq", f"{NSQD}-auth", LOOKUPD]
TRANSCRIPTS = {name: load(name) for name in NAMES}

DURATIONS = {"ms": 0.001, "s": 1.0}


def value(text):
    """Parse the value of a flag: a number, a duration in seconds, a bool, or text."""
    if found := re.fullmatch(r"(\d+)(ms|s)?", text):
        number, unit = found.groups()
        return int(number) * DURATIONS[unit] if unit else int(number)
    return {"true": True, "false": False}.get(text, text)


def flags(name, certificate, auth_server):
    """Return the flags of a recording, with the files and addresses of this test."""
    found = dict(re.findall(r"--([a-z-]+)=(\S+)", TRANSCRIPTS[name].header["flags"]))
    ours = {
        "tls-cert": certificate.certificate,
        "tls-key": certificate.key,
        "auth-http-address": auth_server.http_address,
    }
    return {flag: ours.get(flag, text) for flag, text in found.items()}


def emulated(name, found, clock):
    options = {flag.replace("-", "_"): value(text) for flag, text in found.items()}
    if address := options.pop("auth_http_address", None):
        options["auth_http_addresses"] = (address,)
    return FakeLookupd(**options, clock=clock) if name == LOOKUPD else FakeNsqd(**options, clock=clock)


def real(name, found, clock):
    from integration.servers import program, running

    kind = name.partition("-")[0]
    path = program(kind)
    if path is None:
        pytest.skip("servers that run elsewhere have no flags to set")
    version = subprocess.run([path, "--version"], capture_output=True, text=True, check=True).stdout
    if f"v{VERSION} " not in version:
        pytest.skip(f"recorded with {VERSION}, this is {version.strip()}")
    return running(kind, *[f"--{flag}={text}" for flag, text in found.items()])


def played(name, phases, server, clock):
    addresses = parse_address(server.tcp_address), parse_address(server.http_address)
    typed = TRANSCRIPTS[name].header["framing"] == "v2"
    found = [
        play_all(TRANSCRIPTS[name], phase, lambda: Player(*addresses, typed=typed, clock=clock)) for phase in phases
    ]
    return {session_id: text for differences in found for session_id, text in differences.items()}


def finish(greenlets, clock):
    """Wait for greenlets, and advance a manual clock until they have ended."""
    while isinstance(clock, ManualClock) and not all(greenlet.dead for greenlet in greenlets):
        clock.advance(0.1)
    gevent.joinall(greenlets, raise_error=True)


@pytest.fixture(scope="module")
def differences(request, tmp_path_factory):
    """Return the differences, by file and session."""
    certificate = Certificates(tmp_path_factory.mktemp("certificates")).server()
    make = real if request.config.pluginmanager.hasplugin("integration.servers") else emulated
    clock = RealClock() if make is real else ManualClock()
    with contextlib.ExitStack() as stack:
        auth_server = stack.enter_context(FakeAuthServer(answer=RecordedAnswers()))
        servers = {
            name: stack.enter_context(make(name, flags(name, certificate, auth_server), clock)) for name in TRANSCRIPTS
        }
        found = {name: {} for name in servers}
        for phases in ([0], [1, 2]):
            greenlets = {name: gevent.spawn(played, name, phases, server, clock) for name, server in servers.items()}
            finish(list(greenlets.values()), clock)
            for name, greenlet in greenlets.items():
                found[name] |= greenlet.value
        checked = [auth_server, *(server for server in servers.values() if make is emulated)]
        assert [error for server in checked for error in server.errors] == []
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
