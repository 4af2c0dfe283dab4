"""The servers of the benchmark: nsqd, real or emulated, and an echo server; and what it asks of an nsqd."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from fakensqd.certificates import CertificateFiles
from fakensqd.real import RealNsqd
from gnsq import NsqdHTTPClient, Producer
from tests.kit import wait_until

FLAGS = ("--mem-queue-size=2000000", "--max-msg-size=4194304", "--max-body-size=16777216")
BODY = b"x" * 200
CHANNEL = "bench"


@dataclass(frozen=True)
class Nsqd:
    """A running nsqd: its name for people, and addresses."""

    name: str
    tcp: str
    http: str

    @property
    def client(self) -> NsqdHTTPClient:
        return NsqdHTTPClient.from_url(self.http)

    @contextlib.contextmanager
    def topic(self) -> Iterator[str]:
        """Make a topic with the channel "bench", and delete it in the end."""
        name = f"bench-{uuid.uuid4().hex[:8]}"
        self.client.create_topic(name)
        self.client.create_channel(name, CHANNEL)
        try:
            yield name
        finally:
            self.client.delete_topic(name)

    def fill(self, topic: str, count: int, body: Callable[[int], bytes] = lambda number: BODY) -> None:
        """Publish messages."""
        each = max(1, min(1000, (1 << 20) // len(body(0))))
        with Producer(self.tcp) as producer:
            for first in range(0, count, each):
                producer.multipublish(topic, [body(number) for number in range(first, min(first + each, count))])

    def channel(self, topic: str) -> dict[str, Any]:
        """Return the statistics of the channel."""
        channel: dict[str, Any] = self.client.stats(topic)["topics"][0]["channels"][0]
        return channel

    def wait_for_clients(self, topic: str, count: int) -> None:
        wait_until(lambda: self.channel(topic)["client_count"] >= count, pause=0.01)

    def wait_until_empty(self, topic: str) -> None:
        wait_until(lambda: not any(self.channel(topic)[name] for name in ("depth", "in_flight_count")), pause=0.01)


@contextlib.contextmanager
def nsqd(certificate: CertificateFiles) -> Iterator[Nsqd]:
    """Start a real nsqd with TLS if there is one, else the emulator."""
    tls = [f"--tls-cert={certificate.certificate}", f"--tls-key={certificate.key}"]
    path = shutil.which("nsqd")
    name, program = "fakensqd", (sys.executable, "-m", "fakensqd", "nsqd")
    if path is None:
        print("server: fakensqd, since no nsqd was found; put a real one on PATH for figures that mean something")
    else:
        said = subprocess.run([path, "--version"], capture_output=True, text=True, check=True).stdout.split()
        name, program = f"nsqd {said[1].lstrip('v')}", (path,)
        print(f"server: real {name}, {path}")
    with RealNsqd(program=program, flags=[*FLAGS, *tls]) as daemon:
        yield Nsqd(name, daemon.tcp_address, daemon.http_address)


@contextlib.contextmanager
def echo() -> Iterator[str]:
    """Start an echo server as a process; returns its address."""
    command = [sys.executable, "-c", _ECHO]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.terminate()


_ECHO = """
import asyncio

class Echo(asyncio.Protocol):
    def connection_made(self, transport):
        self.transport = transport
    def data_received(self, data):
        self.transport.write(data)

async def serve():
    server = await asyncio.get_running_loop().create_server(Echo, "127.0.0.1", 0, backlog=1000)
    host, port = server.sockets[0].getsockname()
    print(f"{host}:{port}", flush=True)
    await server.serve_forever()

asyncio.run(serve())
"""
