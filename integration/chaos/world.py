"""The servers and workers of a run, as processes. Owns all of them, and the folder with their files."""

from __future__ import annotations

import contextlib
import json
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gevent

from fakensqd import Certificates, Relay
from gnsq import NsqdHTTPClient
from gnsq.errors import NSQException
from integration.servers import Daemon
from tests.helpers import refused_port, wait_until

TOPIC, CHANNELS = "orders", ("a", "b")
DEAD_TOPIC, DEAD_CHANNEL = "dead", "keep"
# Seconds.
MSG_TIMEOUT, AUTH_TTL, START_LIMIT, STOP_LIMIT = 2.0, 2, 60.0, 20.0
DISK_BYTES = 16 << 20
# How handlers answer: functions of workers.py.
WAYS = ("returning", "finish_all", "threads", "batches", "messages", "touching", "late", "giving_up")


def outside(function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:  # Any: any function
    """Call a function that blocks in a thread: the relays go on in this one."""
    return gevent.get_hub().threadpool.apply(function, arguments, options)


class Program:
    """A Python program of the project.

    Attributes:
        generation: How often it was started.
    """

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self.folder = name, folder
        self.generation = 0
        self.process: subprocess.Popen[bytes] | None = None
        self.statuses: list[tuple[str, int]] = []

    @property
    def full_name(self) -> str:
        return f"{self.name}.{self.generation}"

    def command(self) -> Sequence[str]:
        raise NotImplementedError

    def start(self) -> None:
        self.generation += 1
        with open(self.folder / f"{self.full_name}.err", "wb") as errors:
            words = [sys.executable, "-W", "ignore::RuntimeWarning", "-m", *self.command()]
            self.process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=errors, stderr=errors)

    def stop(self, *, kill: bool = False) -> None:
        """End it, by SIGTERM or SIGKILL. Raises TimeoutExpired if it does not end."""
        process, self.process = self.process, None
        if process is not None:
            process.send_signal(signal.SIGKILL if kill else signal.SIGTERM)
            try:
                process.wait(STOP_LIMIT)
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGUSR2)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(2)
                process.send_signal(signal.SIGABRT)
                process.wait(STOP_LIMIT)
                raise
            if not kill:
                self.statuses.append((self.full_name, process.returncode))


class Worker(Program):
    """A producer or a consumer."""

    def __init__(self, name: str, folder: Path, settings: Mapping[str, Any]) -> None:
        super().__init__(name, folder)
        self.settings = dict(settings)

    @property
    def ledger(self) -> Path:
        return self.folder / f"{self.full_name}.jsonl"

    def stop(self, *, kill: bool = False) -> None:
        deadline = time.monotonic() + START_LIMIT
        while not kill and not self.ledger.exists() and time.monotonic() < deadline:
            time.sleep(0.05)  # until it has imported its modules, and handles signals
        super().stop(kill=kill)

    def command(self) -> Sequence[str]:
        path = self.folder / f"{self.full_name}.json"
        path.write_text(json.dumps({**self.settings, "name": self.full_name, "ledger": str(self.ledger)}))
        return "integration.chaos.workers", str(path)


class AuthServer(Program):
    def __init__(self, folder: Path) -> None:
        super().__init__("auth", folder)
        self.address = f"127.0.0.1:{refused_port()}"

    def command(self) -> Sequence[str]:
        return "integration.composed", "auth", self.address, str(AUTH_TTL)

    def start(self) -> None:
        super().start()
        host, port = self.address.split(":")
        deadline = time.monotonic() + STOP_LIMIT
        while True:
            try:
                socket.create_connection((host, int(port)), 1).close()
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)
            else:
                return


@dataclass(eq=False)
class Node:
    """An nsqd, and the relay through which its clients reach it.

    Attributes:
        memory: Number of messages that it holds in memory.
        disk: Where its disk is mounted, if that can be full.
    """

    name: str
    daemon: Daemon
    relay: Relay
    http: NsqdHTTPClient
    memory: int
    disk: Path | None = None


@dataclass
class World:
    """Everything that runs. Call start() in a ``with`` block.

    Args:
        is_fake: The servers are those of fakensqd.
    """

    folder: Path
    chosen: random.Random
    is_fake: bool
    nodes: list[Node] = field(default_factory=list)
    lookupds: list[Daemon] = field(default_factory=list)
    workers: list[Worker] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)

    def __enter__(self) -> World:
        self._stack = contextlib.ExitStack()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    def start(self, consumers: int = 4, producers: int = 2) -> None:
        """Start the servers, and then the workers."""
        self.is_secure = self.chosen.random() < 0.75
        self.certificates = Certificates(self.folder / "certificates")
        self.server, self.client = self.certificates.server(), self.certificates.client()
        self.auth = AuthServer(self.folder)
        self._started(self.auth)
        for number in range(2):
            lookupd = self._daemon("nsqlookupd", f"nsqlookupd{number}")
            self._started(lookupd)
            self.lookupds.append(lookupd)
        for number in range(3):
            self._start_node(number)
        self._start_workers(consumers, producers)

    def _started(self, program: Daemon | Program) -> None:
        self._stack.callback(self._end, program)
        outside(program.start)

    def _end(self, program: Daemon | Program) -> None:
        if program.process is not None:
            with contextlib.suppress(ProcessLookupError):
                program.process.send_signal(signal.SIGCONT)
            outside(program.stop, kill=True)

    def _daemon(self, program: str, name: str, *flags: str, folder: Path | None = None) -> Daemon:
        folder = folder or self.folder / name
        folder.mkdir(exist_ok=True)
        words = (sys.executable, "-m", "fakensqd", program) if self.is_fake else ()
        return Daemon(program, str(folder), *flags, words=words, log=self.folder / f"{name}.log")

    def _start_node(self, number: int) -> None:
        name, disk = f"nsqd{number}", None
        tcp = f"127.0.0.1:{refused_port()}"
        relay = Relay(tcp, seed=self.chosen.randrange(2**32)).start()
        self._stack.callback(relay.stop)
        flags = [f"--lookupd-tcp-address={lookupd.tcp_address}" for lookupd in self.lookupds]
        flags += [f"--broadcast-tcp-port={relay.address.split(':')[1]}", "--max-bytes-per-file=1000000"]
        memory = self.chosen.choice([0, 20, 10_000])
        flags += [f"--mem-queue-size={memory}", "--sync-every=1"]
        if number != 1:
            flags.append(f"--auth-http-address={self.auth.address}")
        if self.is_secure:
            flags += [f"--tls-cert={self.server.certificate}", f"--tls-key={self.server.key}"]
            flags += [f"--tls-root-ca-file={self.certificates.ca}", "--tls-client-auth-policy=require-verify"]
            flags.append("--tls-required=tcp-https")
        if number == 2 and not self.is_fake:
            disk = self._mount(self.folder / "disk")
        daemon = self._daemon("nsqd", name, *flags, folder=disk)
        daemon.tcp_address = tcp
        self._started(daemon)
        http = NsqdHTTPClient.from_url(daemon.http_address, timeout=2)
        self.nodes.append(Node(name, daemon, relay, http, memory, disk))
        for topic, channels in ((TOPIC, CHANNELS), (DEAD_TOPIC, (DEAD_CHANNEL,))):
            http.create_topic(topic)
            for channel in channels:
                http.create_channel(topic, channel)

    def _mount(self, folder: Path) -> Path | None:
        folder.mkdir()
        mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(folder)]
        done = subprocess.run(mount, capture_output=True, check=False)
        if done.returncode:
            self.skipped.append(f"full disks: no tmpfs can be mounted ({done.stderr.decode().strip()})")
            return None
        self._stack.callback(subprocess.run, ["umount", "--lazy", str(folder)], check=True)
        return folder

    def _start_workers(self, consumers: int, producers: int) -> None:
        ways = self.chosen.sample(WAYS, consumers)
        for number, way in enumerate(ways):
            more = {"topic": TOPIC, "channel": CHANNELS[number % 2], "way": way, "threaded": self.chosen.random() < 0.3}
            worker = Worker(f"consumer{number}", self.folder, self._settings("consumer", more))
            if way == "giving_up":
                worker.settings["options"]["dead_letter_topic"] = DEAD_TOPIC
            self.workers.append(worker)
        more = {"topic": DEAD_TOPIC, "channel": DEAD_CHANNEL, "way": "dead_letters", "threaded": False}
        self.workers.append(Worker("dead", self.folder, self._settings("consumer", more)))
        for number in range(producers):
            more = {"topic": TOPIC, "rate": 60.0}
            self.workers.append(Worker(f"producer{number}", self.folder, self._settings("producer", more)))
        for worker in self.workers:
            self._started(worker)
        # Until each of them works.
        ledgers = [worker.ledger for worker in self.workers if worker.name != "dead"]
        wait_until(lambda: all(path.exists() and path.stat().st_size > 2000 for path in ledgers), START_LIMIT)

    def _settings(self, kind: str, more: Mapping[str, Any]) -> dict[str, Any]:
        chosen = self.chosen
        compression = chosen.choice([{}, {"snappy": True}, {"deflate": True}])
        options: dict[str, Any] = {**compression, "auth_secret": "all", "heartbeat_interval": 1, "timeout": 4}
        options |= {"reconnect_initial": 0.1, "reconnect_maximum": 1, "close_timeout": 5}
        if chosen.random() < 0.5:
            options["lookupd_http_addresses"] = [lookupd.http_address for lookupd in self.lookupds]
            options["lookupd_poll_interval"] = 0.5
            options["lookupd_options"] = {"timeout": 1}
        else:
            options["nsqd_tcp_addresses"] = [node.relay.address for node in self.nodes]
        if self.is_secure:
            options["tls_v1"] = True
            options["tls_options"] = {
                "ca_certs": self.certificates.ca,
                "certfile": self.client.certificate,
                "keyfile": self.client.key,
            }
        if kind == "producer":
            options["publish_timeout"] = chosen.choice([2, 4, 6])
            options["allow_duplicates"] = chosen.random() < 0.3
            options["connections_per_nsqd"] = chosen.choice([1, 1, 2])
            options["batch_messages"] = chosen.choice([None, None, 20])
        else:
            options["msg_timeout"] = MSG_TIMEOUT
            options["max_backoff_duration"] = chosen.choice([0, 0.1, 0.5])
            options["max_tries"] = 0
            options["low_ready_idle_timeout"] = chosen.choice([0.5, 10])
        return {"kind": kind, "seed": chosen.randrange(2**32), "options": options, **more}

    # --- for faults, and for the end

    def fill_disk(self, node: Node) -> None:
        assert node.disk is not None
        with contextlib.suppress(OSError), open(node.disk / "filler", "wb", buffering=0) as filler:
            while filler.write(b"x" * 4096):
                pass

    def free_disk(self, node: Node) -> None:
        assert node.disk is not None
        (node.disk / "filler").unlink(missing_ok=True)

    def left(self) -> dict[str, int]:
        """Return how many messages each channel has, and each nsqd that does not respond."""
        found = {}
        for node, stats in zip(self.nodes, self._stats(), strict=True):
            for topic in (stats or {}).get("topics") or ():
                found[f"{node.name} {topic['topic_name']}"] = topic["depth"]
                for channel in topic["channels"]:
                    keys = ("depth", "in_flight_count", "deferred_count")
                    found[f"{node.name} {channel['channel_name']}"] = sum(channel[key] for key in keys)
            found[f"{node.name} does not respond"] = int(stats is None)
        return {name: number for name, number in found.items() if number}

    def in_flight(self) -> dict[str, int]:
        """Return the messages in flight of each consumer, as the nsqds see them; empty if one does not respond."""
        found: dict[str, int] = {}
        for stats in self._stats():
            if stats is None:
                return {}
            for topic in stats["topics"] or ():
                for client in [client for channel in topic["channels"] for client in channel["clients"] or ()]:
                    found[client["client_id"]] = found.get(client["client_id"], 0) + client["in_flight_count"]
        return found

    def _stats(self) -> list[Any]:
        """Ask all nsqds at the same time; None: no answer."""

        def ask(node: Node) -> Any:
            try:
                return node.http.stats()
            except NSQException:
                return None

        return [job.get() for job in [gevent.spawn(ask, node) for node in self.nodes]]
