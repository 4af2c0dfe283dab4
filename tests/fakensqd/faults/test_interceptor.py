"""Sessions under rules, and the order and time of their output."""

import gevent
import pytest

from fakensqd import FakeAuthServer, FakeNsqd, on
from fakensqd.clock import ManualClock
from fakensqd.effects import Close, Reset, Send, Wait
from fakensqd.faults import Rule, delay
from fakensqd.faults.control import FaultControl
from fakensqd.faults.interceptor import OutputScheduler
from fakensqd.nsqd.broker import Broker
from fakensqd.nsqd.identify import OK_FRAME
from fakensqd.nsqd.session import NSQD, Session
from gnsq.protocol import commands
from tests.behaviour.test_recorded import finish, played
from tests.fakensqd.recorded_auth import RecordedAnswers
from tests.fakensqd.recorded_servers import LOOKUPD, TRANSCRIPTS, emulated, flags


def intercepted(faults):
    """A session whose events a FaultControl gets."""
    session = Session(Broker())
    session.attach(faults, 1)
    return session


@pytest.mark.slow
def test_recorded_sessions_are_the_same_with_a_transcript(tmp_path_factory, certificates):
    names = [name for name in TRANSCRIPTS if name != LOOKUPD]
    clock = ManualClock(idle_timeout=100.0)  # so many sessions take seconds on a busy machine
    with FakeAuthServer(answer=RecordedAnswers()) as auth_server:
        certificate = certificates.server()
        servers = {name: emulated(name, flags(name, certificate, auth_server), clock) for name in names}
        for server in servers.values():
            assert isinstance(server, FakeNsqd)
            server.record()
            server.start()
        try:
            greenlets = [gevent.spawn(played, name, [0, 1, 2], server, clock) for name, server in servers.items()]
            finish(greenlets, clock)
            assert [greenlet.value for greenlet in greenlets if greenlet.value] == []
            assert [error for server in servers.values() for error in server.errors] == []
        finally:
            for server in servers.values():
                server.stop()


def test_faults_that_are_not_active_are_released():
    first, second = FaultControl("FakeNsqd", NSQD, record=True), FaultControl("FakeNsqd", NSQD, record=True)
    session = intercepted(first)
    session.receive(commands.MAGIC_V2 + commands.nop(), 0.0)
    recorded, first.transcript = first.transcript, None

    session.receive(commands.nop(), 0.0)
    session.attach(second, 1)
    session.receive(commands.nop(), 0.0)

    assert recorded.commands() == second.transcript.commands() == ["NOP"]


def test_faults_stay_while_output_is_delayed():
    faults = FaultControl("FakeNsqd", NSQD)
    rule = Rule(on.reply("PUB"), delay(1.0))
    faults.add([rule], 0.0)
    session = intercepted(faults)
    session.receive(commands.MAGIC_V2 + commands.publish("t", b"x"), 0.0)

    faults.remove([rule])
    assert session.receive(commands.nop(), 0.0) == []

    assert session.due == 1.0
    assert session.tick(1.0) == [Send(OK_FRAME)]
    session.receive(commands.nop(), 1.0)
    assert session.due > 1.0


# --- order and time of output -----------------------------------------------------------------------------------------


def test_wait_delays_all_later_output():
    scheduler = OutputScheduler()
    scheduler.put([Send(b"a"), Wait(1.0), Send(b"b")], 0.0)
    scheduler.put([Send(b"c"), Wait(1.0), Close()], 0.5)

    assert scheduler.take(0.9) == [Send(b"a")]
    assert (scheduler.due, scheduler.blocked_until) == (1.0, 1.0)
    assert scheduler.take(1.0) == [Send(b"bc")]
    assert scheduler.due == 2.0
    assert scheduler.take(2.0) == [Close()]


def test_no_output_after_the_end():
    scheduler = OutputScheduler()
    scheduler.put([Send(b"late", 1.0), Send(b"a", after_next=True), Reset(), Send(b"b")], 0.0)

    assert scheduler.take(5.0) == [Send(b"a"), Reset()]
