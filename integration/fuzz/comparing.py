"""Compare two servers by random sessions: record with the one, play to the other, and make shorter what differs."""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gevent.pool import Pool

from fakensqd import Certificates, FakeAuthServer
from fakensqd.clock import RealClock
from gnsq.addresses import parse_address
from integration.fuzz.programs import Program, lookupd_programs, nsqd_programs
from integration.fuzz.recording import Recording, Session
from integration.record import readable
from tests.fakensqd.recorded_auth import RecordedAnswers
from tests.fakensqd.recorded_servers import LOOKUPD, NSQD, emulated, flags
from tests.fakensqd.templates import Difference
from tests.fakensqd.transcripts import Player
from tests.strategies import drawn

# Flags beside those of the recorded sessions: no time must end within a session.
PROFILES: dict[str, dict[str, str]] = {
    NSQD: {},
    f"{NSQD}-flags": {"msg-timeout": "60s", "max-msg-timeout": "100s", "max-req-timeout": "100s"},
    f"{NSQD}-tls": {},
    f"{NSQD}-tlsreq": {},
    f"{NSQD}-auth": {},
    LOOKUPD: {"inactive-producer-timeout": "300s", "tombstone-lifetime": "45s"},
}
MAX_CONCURRENT_SESSIONS = 30
# To make one shorter takes some seconds. Those of one cause are alike.
MAX_SHORTENED = 4
# Makes a server: the name of its profile, its flags, its clock.
MakeServer = Callable[[str, dict[str, str], RealClock], contextlib.AbstractContextManager[Any]]


@dataclass
class Servers:
    """Two servers.

    Args:
        played, replayed: Make a player of a class for the server that is recorded, and for the one that must be equal.

    Attributes:
        unsteady: How many sessions differed, and did not when they were recorded again. The order in which nsqd's
            goroutines run may differ on a busy machine.
    """

    recorded: Callable[[type[Player]], Player]
    replayed: Callable[[type[Player]], Player]
    unsteady: int = 0

    def compare(self, program: Program, times: int = 3) -> tuple[Session, str] | None:
        """Return the session of a program, and how the servers differ, if they do so several times in a row.

        A session that can't be recorded differs, too, but not once: a shortened program may be against the grammar.
        """
        for number in range(times):
            recording = self.recorded(Recording)
            assert isinstance(recording, Recording)
            session = recording.record(program)
            difference = session.get("stopped") or self._difference(session)
            if difference is None or (times == 1 and "stopped" in session):
                self.unsteady += number > 0
                return None
        return session, difference

    def _difference(self, session: Session) -> str | None:
        try:
            self.replayed(Player).play(session)
        except (Difference, KeyError) as error:
            return str(error)
        return None

    def differing(self, programs: Iterable[Program], times: int = 3) -> list[Program]:
        """Return those programs that differ."""
        programs = list(programs)
        found = Pool(MAX_CONCURRENT_SESSIONS).map(lambda program: self.compare(program, times), programs)
        return [program for program, difference in zip(programs, found, strict=True) if difference]

    def shortened(self, program: Program) -> Program:
        """Leave out actions as long as the rest differs: half of them at a time, then fewer."""
        size = (1 + len(program)) // 2
        while size:
            shorter = self.differing((program[:at] + program[at + size :] for at in range(0, len(program), size)), 1)
            program = min([program, *shorter], key=len)
            size = min(size, len(program)) if shorter else size // 2
        return program


@contextlib.contextmanager
def started(name: str, *makers: MakeServer) -> Iterator[list[Any]]:
    """Start servers with the flags of a profile, and one auth server for them."""
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        auth_server = stack.enter_context(FakeAuthServer(answer=RecordedAnswers()))
        found = flags(name, Certificates(Path(folder)).server(), auth_server) | PROFILES[name]
        yield [stack.enter_context(make(name, found, RealClock())) for make in makers]


def differences(name: str, make: MakeServer, count: int, number: int) -> list[str]:
    """Play random sessions with a server and with the emulator. Return the differences.

    Each has the shortest session as a text, and as a line for a file of tests/vectors/transcripts.

    Args:
        name: One of PROFILES.
        number: The seed.
    """
    with started(name, make, emulated) as (server, emulator):
        pair = Servers(_player(server, typed=name != LOOKUPD), _player(emulator, typed=name != LOOKUPD))
        consumes = name != f"{NSQD}-tlsreq"  # there, statistics can't be asked without TLS
        strategy = lookupd_programs() if name == LOOKUPD else nsqd_programs(emulator.options, consumes=consumes)
        programs = drawn(strategy, count, number)
        lines = []
        for program in pair.differing(programs)[:MAX_SHORTENED]:
            # Beside other sessions, on a busy machine, one may differ three times that does not when it runs alone.
            if found := pair.compare(pair.shortened(program)) or pair.compare(program):
                session, difference = found
                lines.append("\n".join([difference, *readable(session), json.dumps(session)]))
            else:
                pair.unsteady += 1
        lines += [f"the emulator raised {error!r}" for error in emulator.errors]
    print(f"{name}: {len(programs)} sessions, {len(lines)} differences, {pair.unsteady} unsteady")
    return sorted(set(lines))


def _player(server: Any, *, typed: bool) -> Callable[[type[Player]], Player]:
    addresses = parse_address(server.tcp_address), parse_address(server.http_address)
    return lambda kind: kind(*addresses, typed=typed, clock=RealClock())
