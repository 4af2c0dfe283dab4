"""A session that is listened to says what it says otherwise."""

import gevent
import pytest

from fakensqd import FakeAuthServer, FakeNsqd, on
from fakensqd.clock import ManualClock
from fakensqd.effects import Close, Execute, Send, Wait
from fakensqd.faults import drop
from fakensqd.nsqd.broker import Broker
from fakensqd.nsqd.identify import OK_FRAME
from fakensqd.nsqd.session import Session
from gnsq.protocol import commands
from tests.behaviour.test_recorded import LOOKUPD, TRANSCRIPTS, emulated, finish, flags, played
from tests.fakensqd.recorded_auth import RecordedAnswers
from tests.fakensqd.wire import Client


class Deaf:
    """A tap that changes nothing, and remembers commands."""

    is_active = True

    def __init__(self):
        self.commands = []

    def command(self, command, now):
        self.commands.append(command)
        return [Execute()]

    def executed(self):
        pass

    def reply(self, steps, now):
        return steps

    def message(self, message, frame, now):
        return [Send(frame)]

    def heartbeat(self, frame, now):
        return [Send(frame)]


def conversation(pieces, tap=None):
    session = Session(Broker())
    if tap is not None:
        session.attach(tap)
    effects = [effect for piece in pieces for effect in [*session.receive(piece, 0.0), *session.pump(0.0)]]
    ended = Close() in effects
    if not ended:
        effects += session.tick(30.0)
    data = b"".join(effect.data for effect in effects if isinstance(effect, Send))
    return data, ended, ended or session.due


SAID = b"".join(
    [
        commands.MAGIC_V2,
        commands.identify({"client_id": "me"}),
        commands.subscribe("t", "c"),
        commands.publish("t", b"a"),
        commands.multipublish("t", [b"b" * 300, b"c"]),
        commands.deferpublish("t", b"d", 0),
        commands.finish(b"0123456789abcdef"),
        commands.ready(0),
    ]
)
ENDS = [
    pytest.param(b"", id="none"),
    pytest.param(b"FOO\n", id="unknown"),
    pytest.param(b"MPUB t\n\0\0\0\0", id="MPUB of no size"),
    pytest.param(b"MPUB t\n\0\0\0\x08\0\0\0\0", id="MPUB of no messages"),
    pytest.param(b"MPUB t\n\0\0\0\x08\0\0\0\1\0\0\0\0", id="MPUB of an empty message"),
    pytest.param(b"AUTH x\n", id="AUTH with words"),
]


@pytest.mark.parametrize("end", ENDS)
def test_a_tap_changes_nothing(end):
    said = SAID + end
    expected = conversation([said])

    for pieces in ([said], [said[index : index + 1] for index in range(len(said))]):
        tap = Deaf()
        assert conversation(pieces, tap) == expected
        assert [command.name for command in tap.commands][:4] == [b"IDENTIFY", b"SUB", b"PUB", b"MPUB"]
        assert tap.commands[2].body == b"a"


def test_recorded_sessions_are_played_equal_under_watch(tmp_path_factory, certificates):
    names = [name for name in TRANSCRIPTS if name != LOOKUPD]
    clock = ManualClock()
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


def test_a_tap_is_let_go_when_nobody_listens_any_more():
    tap = Deaf()
    session = Session(Broker())
    session.attach(tap)
    session.receive(commands.MAGIC_V2 + commands.nop(), 0.0)

    tap.is_active = False
    session.receive(commands.nop(), 0.0)
    session.attach(another := Deaf())
    session.receive(commands.nop(), 0.0)

    assert [command.name for command in tap.commands] == [b"NOP"]
    assert [command.name for command in another.commands] == [b"NOP"]


def test_a_tap_stays_while_something_is_held():
    tap = Deaf()
    tap.reply = lambda steps, now: [Wait(1.0), *steps]
    session = Session(Broker())
    session.attach(tap)
    session.receive(commands.MAGIC_V2 + commands.publish("t", b"x"), 0.0)

    del tap.reply
    tap.is_active = False
    assert session.receive(commands.nop(), 0.0) == []

    assert session.due == 1.0
    assert session.tick(1.0) == [Send(OK_FRAME)]
    session.receive(commands.nop(), 1.0)
    assert session.due > 1.0
    assert [command.name for command in tap.commands] == [b"PUB", b"NOP"]


def test_the_last_rule_takes_its_cost_with_it():
    with FakeNsqd() as nsqd:
        client = Client(nsqd.tcp_address)
        with nsqd.add(on.reply("PUB"), drop(), optional=True):
            client.send(commands.publish("t", b"x") * 2)
            assert client.frame() == (0, b"OK")
        client.send(commands.publish("t", b"x"))
        assert client.frame() == (0, b"OK")

        assert [session._intercepted for session in nsqd.sessions] == [None]
