"""Helpers of tests: wait for a condition, run child processes, a transport of lists, and a scripted peer."""

from __future__ import annotations

import atexit
import contextlib
import os
import resource
import shlex
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

import gevent
import pytest
from gevent.event import Event
from gevent.server import StreamServer

from fakensqd import UnknownChannel
from gnsq import Message, NsqdHTTPClient, NsqdTCPClient
from gnsq.errors import NSQConnectionClosed
from gnsq.protocol.frames import RESPONSE, encode_frame

LIMIT = 60.0
# For the text of a shell: the path may have blanks.
PYTHON = shlex.quote(sys.executable)
# Warnings are errors. Not that of a fork beside threads: Python 3.15 raises it from os.fork() in the parent, which then
# does not know the child that goes on.
WARNINGS = ("-W", "error", "-W", "ignore:This process (pid=:DeprecationWarning")


def wait_for_program(process: subprocess.Popen[Any], condition: Callable[[], object]) -> None:
    """Wait until a condition is true, while other greenlets run. Fail when the program has ended, as at its limit.

    How long a program takes to start, or to do something, depends on what else the machine does.
    """
    while True:
        with contextlib.suppress(UnknownChannel):
            if condition():
                return
        assert process.poll() is None, f"the program has ended with status {process.returncode} before: {condition}"
        gevent.sleep(0.005)


def wait_until(condition: Callable[[], object], limit: float = LIMIT) -> None:
    """Wait until a condition is true, while other greenlets run; also for a channel. Fail after limit seconds."""
    with gevent.Timeout(limit, AssertionError(f"not so within {limit} s: {condition}")):
        while True:
            with contextlib.suppress(UnknownChannel):
                if condition():
                    return
            gevent.sleep(0.001)


def allow_open_files(count: int) -> int:
    """Raise the limit of open files, if it is smaller, as far as this user may; return the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= count:
        return max(soft, count)
    try:
        resource.setrlimit(
            resource.RLIMIT_NOFILE, (count, hard if hard == resource.RLIM_INFINITY else max(hard, count))
        )
    except (OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        return hard
    return count


def need_open_files(count: int) -> None:
    """Allow so many open files; skip the test if this user may not."""
    if (limit := allow_open_files(count)) < count:
        pytest.skip(f"{count:,} open files are needed, and {limit:,} are allowed: ulimit -n")


@contextlib.contextmanager
def default_signals() -> Iterator[None]:
    """Let programs start with default signal actions: exec() resets a handler, but keeps an ignored signal ignored."""
    ends = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    ignored = [number for number in ends if signal.getsignal(number) == signal.SIG_IGN]
    for number in ignored:
        signal.signal(number, lambda *_: None)
    try:
        yield
    finally:
        for number in ignored:
            signal.signal(number, signal.SIG_IGN)


class _Pipe:
    """The end of a pipe from which a test reads what a program writes, and which notes that."""

    def __init__(self, pipe: Any) -> None:  # Any: of texts or bytes
        self._pipe = pipe
        self.noted: list[Any] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pipe, name)

    def __iter__(self) -> Iterator[Any]:
        while line := self.readline():
            yield line

    def read(self, *size: int) -> Any:
        return self._note(self._pipe.read(*size))

    def readline(self) -> Any:
        return self._note(self._pipe.readline())

    def readlines(self) -> list[Any]:
        return list(self)

    def read_rest(self) -> None:
        """Read what there is, even if a process of another session holds the other end."""
        if not self.closed:
            os.set_blocking(self.fileno(), False)
            with contextlib.suppress(TypeError, UnicodeDecodeError):  # of a text: nothing is there, or half a letter
                self.read()
            self.close()

    def _note(self, data: Any) -> Any:
        self.noted.append(data)
        return data


class _Child(subprocess.Popen[Any]):
    """A program that keeps what it has written."""

    def __init__(self, command: Sequence[str], **options: Any) -> None:  # Any: Popen's
        super().__init__(command, **options)
        self._told: tuple[Any, Any] = (None, None)
        self.stdout = self.stdout and _Pipe(self.stdout)
        self.stderr = self.stderr and _Pipe(self.stderr)
        self._files = [file.name for file in map(options.get, ("stdout", "stderr")) if hasattr(file, "name")]

    def communicate(self, *arguments: Any, **options: Any) -> tuple[Any, Any]:
        try:
            self._told = super().communicate(*arguments, **options)
        except subprocess.TimeoutExpired as error:
            self._told = error.output, error.stderr
            raise
        return self._told

    def show(self) -> None:
        """Print what it has written, after its end: pytest shows it if the test fails."""
        texts = [Path(name).read_bytes() for name in dict.fromkeys(self._files) if Path(name).is_file()]
        for pipe, told in zip((self.stdout, self.stderr), self._told, strict=True):
            if pipe is not None:
                pipe.read_rest()
                texts += pipe.noted if told in pipe.noted else [*pipe.noted, told]
        print(f"--- {shlex.join(map(str, self.args))[:200]}: status {self.returncode}")
        found = [text.decode(errors="replace") if isinstance(text, bytes) else text for text in texts if text]
        print("".join(found)[-20_000:])


@contextlib.contextmanager
def child(*command: str, limit: float = 100.0, **options: Any) -> Iterator[subprocess.Popen[str]]:  # Any: Popen's
    """Run a program in its own session, and kill all processes of the session at the end of the block.

    To be called by the main thread. pytest shows what it has written if the test fails.

    Args:
        limit: Seconds after which its processes are killed, so that reads from its pipes end.
        options: For Popen; default: no input, and text through pipes.
    """
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    options = {"text": True, **pipes, **options}

    def kill() -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)

    with default_signals():
        process = _Child(command, start_new_session=True, **options)
    watchdog = threading.Timer(limit, kill)
    watchdog.daemon = True
    watchdog.start()
    try:
        yield process
    finally:
        watchdog.cancel()
        watchdog.join()
        kill()
        process.wait(LIMIT)
        if process.stdin is not None:
            process.stdin.close()
        process.show()


def run(*command: str, given: Any = None, **options: Any) -> subprocess.CompletedProcess[str]:  # Any: Popen's
    """Run a program, and wait until it ends.

    Args:
        given: What it reads; None: nothing.
        options: For child().
    """
    if given is not None:
        options["stdin"] = subprocess.PIPE
    with child(*command, **options) as process:
        out, err = process.communicate(given)
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def run_program(
    code: str, *arguments: str, flags: tuple[str, ...] = WARNINGS, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Run Python code in a new interpreter, and wait until it ends.

    Args:
        arguments: Its sys.argv[1:].
        flags: Options of the interpreter.
        options: For child().
    """
    return run(sys.executable, *flags, "-c", code, *arguments, **options)


@contextlib.contextmanager
def closed_by_a_signal(client: Any, line: int, *packages: str) -> Iterator[list[int]]:  # Any: a consumer or a producer
    """Interrupt a block in so many lines by a signal that closes the client; returns the lines there were.

    Args:
        packages: Only their lines count; none: all lines.
    """
    lines: list[int] = []

    def trace(frame: FrameType, event: str, argument: object) -> Any:  # Any: itself
        if not frame.f_globals.get("__name__", "").startswith(packages or ""):
            return None
        lines.append(frame.f_lineno)
        if len(lines) == line:
            signal.raise_signal(signal.SIGUSR1)
        return trace

    before = signal.signal(signal.SIGUSR1, lambda *_: client.close())
    tracing = sys.gettrace()
    sys.settrace(trace)
    try:
        yield lines
    finally:
        sys.settrace(tracing)
        signal.signal(signal.SIGUSR1, before)


class MemoryTransport:
    """A transport whose peer is the test: it reads ``sent`` and calls feed()."""

    def __init__(self, *chunks: bytes) -> None:
        self.sends: list[bytes] = []
        self.ended = False
        self.closed = False
        self._chunks = list(chunks)
        self._answers: list[bytes] = []
        self._filled = Event()
        if chunks:
            self._filled.set()

    @property
    def sent(self) -> bytes:
        return b"".join(self.sends)

    def feed(self, chunk: bytes) -> None:
        """Let the client receive a chunk; b"" is the end."""
        self._chunks.append(chunk)
        self._filled.set()

    def answer(self, chunk: bytes) -> None:
        """Let the client receive a chunk after its next send."""
        self._answers.append(chunk)

    def recv(self, size: int) -> bytes:
        while not self._chunks:
            if self.closed:
                raise NSQConnectionClosed("closed")
            self._filled.clear()
            self._filled.wait()
        return self._chunks.pop(0)

    def sendall(self, data: bytes) -> None:
        if self.closed:
            raise NSQConnectionClosed("closed")
        assert not self.ended, "sent after the end"
        self.sends.append(data)
        if self._answers:
            self.feed(self._answers.pop(0))

    def shutdown_write(self) -> None:
        self.ended = True
        self.feed(b"")

    def close(self) -> None:
        self.closed = True
        self._filled.set()


@contextlib.contextmanager
def peer(answer: Callable[[socket.socket], None]) -> Iterator[str]:
    """Listen on 127.0.0.1, and call a function with the socket of each client; returns the address."""

    def handle(sock: socket.socket, address: object) -> None:
        with contextlib.suppress(OSError):
            answer(sock)

    server = StreamServer(("127.0.0.1", 0), handle)
    server.start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.stop(timeout=0)


def silent_nsqd() -> contextlib.AbstractContextManager[str]:
    """Respond to IDENTIFY and to no other command; returns the address."""

    def answer(sock: socket.socket) -> None:
        sock.recv(4096)
        sock.sendall(encode_frame(RESPONSE, b"OK"))
        while sock.recv(4096):
            pass

    return peer(answer)


def refused_port() -> int:
    """Return a port of 127.0.0.1 on which no server listens, but one that the test starts.

    It stays bound until the end of this process, so no other program gets it by chance. Linux lets a server listen on
    it nevertheless, if both have SO_REUSEADDR, which all servers here set.
    """
    sock = socket.socket()
    atexit.register(sock.close)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind(("127.0.0.1", 0))
    port: int = sock.getsockname()[1]
    return port


@contextlib.contextmanager
def silent_port() -> Iterator[int]:
    """A port of 127.0.0.1 that answers no attempt to connect, as if a firewall swallowed it."""
    with contextlib.ExitStack() as stack:
        full = stack.enter_context(socket.socket())
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        # Fill the queue of connections that are not accepted: further ones get no answer.
        waiting = [stack.enter_context(socket.socket()) for _ in range(4)]
        for each in waiting:
            each.setblocking(False)
            each.connect_ex(full.getsockname())
        yield full.getsockname()[1]


def resolve_to(monkeypatch: pytest.MonkeyPatch, *ports: int) -> None:
    """Let each name have as many addresses, which are these ports of 127.0.0.1."""
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port)) for port in ports]
    monkeypatch.setattr(gevent.socket, "getaddrinfo", lambda *arguments, **keywords: found)


class Nsqd(Protocol):
    """The addresses of an nsqd, fake or real."""

    tcp_address: str
    http_address: str


def channel_stats(nsqd: Nsqd, topic: str, channel: str) -> dict[str, Any]:
    """Return nsqd's statistics of one channel."""
    stats = NsqdHTTPClient.from_url(nsqd.http_address).stats(topic, channel)
    (found,) = stats["topics"]
    (result,) = found["channels"]
    return result


def bodies(nsqd: Nsqd, topic: str, channel: str = "bodies") -> list[bytes]:
    """Read and finish all messages of a topic through a new channel; returns the bodies in their order."""
    host, port = nsqd.tcp_address.split(":")
    client = NsqdTCPClient(host, int(port), timeout=LIMIT)
    client.connect()
    client.subscribe(topic, channel)
    client.check_ok()
    client.ready(2500)
    count = channel_stats(nsqd, topic, channel)["message_count"]
    got: list[bytes] = []
    while len(got) < count:
        message = client.read_response()[1]
        assert isinstance(message, Message)
        got.append(message.body)
        message.finish()
    client.close_stream()
    # nsqd would give the next message to a client that it does not know to be gone.
    wait_until(lambda: not channel_stats(nsqd, topic, channel)["clients"])
    return got


@contextlib.contextmanager
def tracing_bytecodes(trace: Callable[..., Any]) -> Iterator[None]:  # Any: what sys.settrace() takes
    """Call trace(frame, event, argument) for the events of a block; it must set f_trace_opcodes of the frames."""

    def ask(frame: FrameType, event: str, argument: object) -> None:
        frame.f_trace_opcodes = True

    before = sys.gettrace()
    # Python 3.12 sends no events of bytecodes until a settrace() after the first frame that has asked for them.
    sys.settrace(ask)
    (lambda: None)()
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)


def first_of(nsqds: Sequence[Any]) -> Callable[[Sequence[Any]], Any]:  # Any: FakeNsqd, and links
    """Make a strategy of a producer: the first of these nsqds that has a link; of its links, the least busy."""
    addresses = [nsqd.tcp_address for nsqd in nsqds]
    return lambda links: min(links, key=lambda link: (addresses.index(link.address), link.pending))
