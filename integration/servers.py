"""Real servers for tests: found on PATH and started on free ports, or running elsewhere already.

A pytest plugin (``-p integration.servers``); its presence turns the ``nsqd`` fixture of tests/behaviour to real ones.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

START_LIMIT = 10.0
_LISTENING = re.compile(rb"(TCP|HTTP): listening on (\S+)")


@dataclass(frozen=True)
class Server:
    """A running nsqd or nsqlookupd."""

    tcp_address: str
    http_address: str
    process: subprocess.Popen[bytes] | None = None


def program(name: str) -> str | None:
    """Where nsqd or nsqlookupd is: the environment variable NSQD or NSQLOOKUPD, else PATH."""
    return os.environ.get(name.upper()) or shutil.which(name)


def given(name: str) -> Server | None:
    """A server that runs elsewhere: NSQD_TCP_ADDRESS and NSQD_HTTP_ADDRESS, or the same of NSQLOOKUPD."""
    tcp, http = (os.environ.get(f"{name.upper()}_{kind}_ADDRESS") for kind in ("TCP", "HTTP"))
    return Server(tcp, http) if tcp and http else None


@contextlib.contextmanager
def running(name: str, *flags: str) -> Iterator[Server]:
    """Start a server on free ports of loopback, with a data path of its own; stop it at the end."""
    path = program(name)
    assert path, f"no {name} found"
    with tempfile.TemporaryDirectory() as folder:
        own = []
        if name == "nsqd":
            own = [f"--data-path={folder}", "--broadcast-address=127.0.0.1", "--https-address=127.0.0.1:0"]
        command = [path, "--tcp-address=127.0.0.1:0", "--http-address=127.0.0.1:0", *own, *flags]
        process = subprocess.Popen(command, stderr=subprocess.PIPE)
        try:
            addresses = _addresses(process)
            yield Server(addresses["TCP"], addresses["HTTP"], process)
        finally:
            process.terminate()
            process.wait(10)
            assert process.stderr is not None
            process.stderr.close()


def _addresses(process: subprocess.Popen[bytes]) -> dict[str, str]:
    """Read a server's log up to its two listening lines; what follows is read and dropped."""
    assert process.stderr is not None
    stderr = process.stderr
    found: dict[str, str] = {}
    seen: list[bytes] = []
    timer = threading.Timer(START_LIMIT, process.kill)
    timer.start()
    for line in stderr:
        seen.append(line)
        match = _LISTENING.search(line)
        if match:
            found[match[1].decode()] = match[2].decode()
        if len(found) == 2:
            break
    timer.cancel()
    if len(found) < 2:
        raise RuntimeError(f"{process.args!r} did not listen within {START_LIMIT} s: {b''.join(seen).decode()}")
    # A full pipe would block the server.
    threading.Thread(target=stderr.read, daemon=True).start()
    return found


@pytest.fixture(scope="session")
def real_nsqd() -> Iterator[Server]:
    """One nsqd for all tests; each uses topics of its own."""
    server = given("nsqd")
    if server is not None:
        yield server
        return
    with running("nsqd") as server:
        yield server


@pytest.fixture(scope="session")
def real_lookupd() -> Iterator[Server]:
    """One nsqlookupd for all tests."""
    server = given("nsqlookupd")
    if server is not None:
        yield server
        return
    with running("nsqlookupd") as server:
        yield server
