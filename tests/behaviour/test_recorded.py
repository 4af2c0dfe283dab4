"""Any server responds to recorded sessions as real servers did.

All sessions of all files are played once; each test asks how its session went. Those that look at the time are played
after the others, which keep the machine busy; against the emulator they are played on a manual clock.
"""

import contextlib

import gevent
import pytest

from fakensqd import Certificates, FakeAuthServer
from fakensqd.clock import ManualClock, RealClock
from gnsq.addresses import parse_address
from tests.fakensqd.recorded_auth import RecordedAnswers
from tests.fakensqd.recorded_servers import TRANSCRIPTS, emulated, flags, real
from tests.fakensqd.transcripts import Player, play_all


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
    """Return the differences, by file and session; for a server that can't be had, why its sessions are skipped."""
    certificate = Certificates(tmp_path_factory.mktemp("certificates")).server()
    make = emulated if request.config.getoption("--nsqd") in (None, "fake") else real
    # So many sessions take seconds on a busy machine.
    clock = RealClock() if make is real else ManualClock(idle_timeout=100.0)
    with contextlib.ExitStack() as stack:
        auth_server = stack.enter_context(FakeAuthServer(answer=RecordedAnswers()))
        servers, found = {}, {}
        for name in TRANSCRIPTS:
            try:
                servers[name] = stack.enter_context(make(name, flags(name, certificate, auth_server), clock))
                found[name] = {}
            except pytest.skip.Exception as reason:
                found[name] = reason
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
    if isinstance(differences[name], pytest.skip.Exception):
        pytest.skip(str(differences[name]))
    assert differences[name].get(session_id) is None


def test_all_sessions_are_played():
    assert len(SESSIONS) == 576
