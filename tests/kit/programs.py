"""Programs of a test, in a session of their own, and what they have written."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.kit.waits import LIMIT

# For the text of a shell: the path may have blanks.
PYTHON = shlex.quote(sys.executable)


# Warnings are errors. Not that of a fork beside threads: Python 3.15 raises it from os.fork() in the parent, which then
# does not know the child that goes on.
WARNINGS = ("-W", "error", "-W", "ignore:This process (pid=:DeprecationWarning")


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
