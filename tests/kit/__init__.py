"""What tests of all folders use: an nsqd and what is asked of it, scripted peers, programs, waits.

- ``waits``: wait_until() and wait_for_program() look at a condition, and fail at a limit. No test sleeps for a time.
- ``programs``: child(), run() and run_program() start a program in a session of its own, which ends with the block, and
  show what it has written when the test fails. ``daemons`` starts the emulator's programs, ``commands`` runs those of
  gnsq in this process or as programs.
- ``peers``: peer() calls a function with the socket of each client, silent_nsqd() answers IDENTIFY and no more,
  refused_port() and silent_port() are addresses without a server, MemoryTransport is a transport whose peer is the
  test. ``http_peer`` sends the bytes of a test as responses, ``wire`` is a client of nsqd: bytes out, frames in.
- ``nsqd``: channel_stats() and bodies() of a fake or a real nsqd.
- ``tracing`` interrupts a block at a line or a bytecode, ``limits`` asks for open files, and fills the disk.

The fixtures of all folders are in tests/conftest.py: ``clock``, ``nsqd`` and ``nsqds`` on it, ``lines`` of the log. An
nsqd in real time is the public fixture ``fakensqd``, and what helps users' tests, too, belongs there.
"""

from tests.kit.limits import allow_open_files, need_open_files
from tests.kit.nsqd import Nsqd, bodies, channel_stats, first_of
from tests.kit.peers import MemoryTransport, peer, refused_port, resolve_to, silent_nsqd, silent_port
from tests.kit.programs import PYTHON, WARNINGS, child, default_signals, run, run_program
from tests.kit.tracing import collector_off, interrupted, tracing_bytecodes
from tests.kit.waits import LIMIT, wait_for_program, wait_until

__all__ = [
    "LIMIT",
    "PYTHON",
    "WARNINGS",
    "MemoryTransport",
    "Nsqd",
    "allow_open_files",
    "bodies",
    "channel_stats",
    "child",
    "collector_off",
    "default_signals",
    "first_of",
    "interrupted",
    "need_open_files",
    "peer",
    "refused_port",
    "resolve_to",
    "run",
    "run_program",
    "silent_nsqd",
    "silent_port",
    "tracing_bytecodes",
    "wait_for_program",
    "wait_until",
]
