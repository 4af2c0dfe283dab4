"""The servers and workers of a run, as processes. Owns all of them, and the folder with their files."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import gevent

from fakensqd import Certificates, Relay
from fakensqd.real import RealLookupd, RealNsqd
from gnsq import NsqdHTTPClient
from gnsq.errors import NSQException
from tests.kit import refused_port

TOPIC, CHANNELS = "orders", ("a", "b")
DEAD_TOPIC, DEAD_CHANNEL = "dead", "keep"
# Seconds. An nsqd that answers /stats later than SLOW did perhaps not run.
MSG_TIMEOUT, AUTH_TTL, START_LIMIT, STOP_LIMIT, SLOW = 2.0, 2, 120.0, 30.0, 0.3
DISK_BYTES = 128 << 20
# An nsqd that may hold so many messages of a channel in memory writes none to its disk while it runs.
ALL = 10_000
# A fault of nsqd's own, that its log tells of, followed by the name of the disk queue: it was killed twice, has written
# over a file, and meets bytes there that are no record. Source: go-diskqueue, readOne() and checkTailCorruption().
LOST_RECORDS = "has lost records of "
_LOST = re.compile(
    r"\[nsqd\] (\S+ \S+) ERROR: DISKQUEUE\((\S+)\) .*(?:data loss|invalid message read size|unexpected EOF)"
)
_REFUSED = re.compile(r"E_(?:FIN|REQ)_FAILED \w+ (\w+) failed")
# How handlers answer: methods of workers.Handlers.
WAYS = ("returning", "finish_all", "threads", "batches", "messages", "touching", "late", "giving_up")


def outside(function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:  # Any: any function
    """Call a function that blocks in a thread: the relays go on in this one."""
    return gevent.get_hub().threadpool.apply(function, arguments, options)


class Worker:
    """A process of workers.py.

    Attributes:
        generation: How often it was started.
        statuses: Exit statuses after SIGTERM, by the name with the generation.
    """

    def __init__(self, name: str, folder: Path, settings: Mapping[str, Any]) -> None:
        self.name, self.settings = name, settings
        self.generation = 0
        self.process: subprocess.Popen[bytes] | None = None
        self.statuses: dict[str, int] = {}
        self._folder = folder

    @property
    def full_name(self) -> str:
        return f"{self.name}.{self.generation}"

    def start(self) -> None:
        self.generation += 1
        path = self._folder / f"{self.full_name}.json"
        path.write_text(json.dumps({**self.settings, "name": self.full_name}))
        words = [sys.executable, "-W", "ignore::RuntimeWarning", "-m", "integration.chaos.workers", str(path)]
        with open(path.with_suffix(".err"), "wb") as errors:
            self.process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=errors, stderr=errors)

    @property
    def running(self) -> bool:
        return self.process is not None

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def kill(self) -> None:
        self.stop(kill=True)

    def stop(self, *, kill: bool = False) -> None:
        """End it, by SIGTERM or SIGKILL. Raises TimeoutExpired if it does not end."""
        process, self.process = self.process, None
        if process is None:
            return
        if not kill:
            self.wait_for_ledger()
        process.send_signal(signal.SIGKILL if kill else signal.SIGTERM)
        try:
            process.wait(STOP_LIMIT)
        except subprocess.TimeoutExpired:
            for number in (signal.SIGUSR2, signal.SIGABRT):  # its stderr tells where it is
                process.send_signal(number)
                time.sleep(2)
            raise
        if not kill:
            self.statuses[self.full_name] = process.returncode

    def wait_for_ledger(self) -> None:
        """Wait until it has imported its modules, and handles signals."""
        deadline = time.monotonic() + START_LIMIT
        while not (self._folder / f"{self.full_name}.jsonl").exists() and time.monotonic() < deadline:
            time.sleep(0.05)


@dataclass(eq=False)
class Node:
    """An nsqd, and the relay through which its clients reach it.

    Attributes:
        memory: Number of messages that it holds in memory.
        disk: Where its disk is mounted, if that can be full.
    """

    name: str
    daemon: RealNsqd
    relay: Relay
    http: NsqdHTTPClient
    memory: int
    log: Path
    disk: Path | None = None

    def lost_records(self) -> Iterator[tuple[str, float]]:
        """Return what the log says of disk queues that have lost records: the kind of fault, and the monotonic time."""
        to_monotonic = time.monotonic() - time.time()
        for at, queue in _LOST.findall(self.log.read_text(errors="replace")):
            began = datetime.strptime(at, "%Y/%m/%d %H:%M:%S.%f").timestamp()
            yield LOST_RECORDS + queue, began + to_monotonic

    def refused(self) -> set[str]:
        """Return the ids of the messages of which the log says that nsqd has refused FIN or REQ."""
        return {*_REFUSED.findall(self.log.read_text(errors="replace"))}

    def make_channels(self) -> None:
        for topic, channels in ((TOPIC, CHANNELS), (DEAD_TOPIC, (DEAD_CHANNEL,))):
            self.http.create_topic(topic)
            for channel in channels:
                self.http.create_channel(topic, channel)

    def fill_disk(self) -> None:
        assert self.disk is not None
        with contextlib.suppress(OSError), open(self.disk / "filler", "wb", buffering=0) as filler:
            while filler.write(b"x" * 65536):
                pass

    def free_disk(self) -> None:
        assert self.disk is not None
        (self.disk / "filler").unlink(missing_ok=True)


@dataclass
class World:
    """Everything that runs. Call start() in a ``with`` block.

    Args:
        is_fake: The servers are those of fakensqd.

    Attributes:
        skipped: What can't be done here, and why.
        slow: Names of nsqds that have not answered at once, with the times.
    """

    folder: Path
    chosen: random.Random
    is_fake: bool
    nodes: list[Node] = field(default_factory=list)
    lookupds: dict[str, RealLookupd] = field(default_factory=dict)
    workers: dict[str, Worker] = field(default_factory=dict)
    skipped: list[str] = field(default_factory=list)
    slow: list[tuple[str, float, float]] = field(default_factory=list)

    def __enter__(self) -> World:
        self._stack = contextlib.ExitStack()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    def start(self) -> None:
        """Start the servers, then the workers; fewer of fakensqd, since it takes more time of the processor."""
        nsqds, consumers, producers = (2, 2, 1) if self.is_fake else (3, 4, 2)
        self.is_secure = self.chosen.random() < 0.75
        certificates = Certificates(self.folder / "certificates")
        server, client = certificates.server(), certificates.client()
        self._tls = {"ca_certs": certificates.ca, "certfile": client.certificate, "keyfile": client.key}
        self._auth_address = f"127.0.0.1:{refused_port()}"
        self._start_worker("auth", {"kind": "auth", "seed": 0, "address": self._auth_address, "ttl": AUTH_TTL})
        for name in ("nsqlookupd0", "nsqlookupd1"):
            self.lookupds[name] = RealLookupd(program=self._program("nsqlookupd"), log=str(self.folder / f"{name}.log"))
            self._started(self.lookupds[name])
        flags = [f"--lookupd-tcp-address={lookupd.tcp_address}" for lookupd in self.lookupds.values()]
        if self.is_secure:
            flags += [f"--tls-cert={server.certificate}", f"--tls-key={server.key}", "--tls-required=tcp-https"]
            flags += [f"--tls-root-ca-file={certificates.ca}", "--tls-client-auth-policy=require-verify"]
        for number in range(nsqds):
            self._start_node(number, flags)
        for number, way in enumerate(self.chosen.sample(WAYS, consumers)):
            self._start_consumer(f"consumer{number}", TOPIC, CHANNELS[number % 2], way)
        self._start_consumer("dead", DEAD_TOPIC, DEAD_CHANNEL, "dead_letters")
        for number in range(producers):
            self._start_producer(f"producer{number}")
        for worker in self.workers.values():
            outside(worker.wait_for_ledger)

    def _started(self, process: RealNsqd | RealLookupd | Worker) -> None:
        self._stack.callback(self._end, process)
        outside(process.start)

    def _end(self, process: RealNsqd | RealLookupd | Worker) -> None:
        if process.running:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGCONT)
            outside(process.kill)
        if not isinstance(process, Worker):
            process.close()

    def _program(self, name: str) -> tuple[str, ...] | str:
        return (sys.executable, "-m", "fakensqd", name) if self.is_fake else ""

    def _start_node(self, number: int, common: list[str]) -> None:
        name, tcp = f"nsqd{number}", f"127.0.0.1:{refused_port()}"
        log = self.folder / f"{name}.log"
        relay = Relay(tcp, seed=self.chosen.randrange(2**32)).start()
        self._stack.callback(relay.stop)
        # fakensqd has no disk, whatever the flag says.
        memory = ALL if self.is_fake else self.chosen.choice([0, 20, ALL])
        flags = [*common, f"--broadcast-tcp-port={relay.address.split(':')[1]}", f"--mem-queue-size={memory}"]
        if number != 1:
            flags.append(f"--auth-http-address={self._auth_address}")
        disk = self._mount(self.folder / "disk") if number == 2 else None
        folder = disk or self.folder / name
        folder.mkdir(exist_ok=True)
        flags.append("--max-bytes-per-file=1000000")
        daemon = RealNsqd(
            program=self._program("nsqd"), tcp_address=tcp, flags=flags, data_path=str(folder), log=str(log)
        )
        self._started(daemon)
        http = NsqdHTTPClient.from_url(daemon.http_address, timeout=2)
        self.nodes.append(Node(name, daemon, relay, http, memory, log, disk))
        self.nodes[-1].make_channels()

    def _mount(self, folder: Path) -> Path | None:
        folder.mkdir()
        mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(folder)]
        done = subprocess.run(mount, capture_output=True, check=False)
        if done.returncode:
            self.skipped.append(f"full disks: no tmpfs can be mounted ({done.stderr.decode().strip()})")
            return None
        self._stack.callback(subprocess.run, ["umount", "--lazy", str(folder)], check=True)
        return folder

    def _start_worker(self, name: str, settings: Mapping[str, Any]) -> None:
        self.workers[name] = Worker(name, self.folder, settings)
        self._started(self.workers[name])

    def _start_consumer(self, name: str, topic: str, channel: str, way: str) -> None:
        options = {**self._options(), "msg_timeout": MSG_TIMEOUT, "max_tries": 0}
        options["max_backoff_duration"] = self.chosen.choice([0, 0.1, 0.5])
        options["low_ready_idle_timeout"] = self.chosen.choice([0.5, 10])
        if way == "giving_up":
            options["dead_letter_topic"] = DEAD_TOPIC
        settings = {"kind": "consumer", "topic": topic, "channel": channel, "way": way, "options": options}
        settings |= {"seed": self.chosen.randrange(2**32), "threaded": self.chosen.random() < 0.3}
        self._start_worker(name, settings)

    def _start_producer(self, name: str) -> None:
        options = {**self._options(), "publish_timeout": self.chosen.choice([2, 4, 6])}
        options["allow_duplicates"] = self.chosen.random() < 0.3
        options["connections_per_nsqd"] = self.chosen.choice([1, 1, 2])
        options["batch_messages"] = self.chosen.choice([None, None, 20])
        seed = self.chosen.randrange(2**32)
        self._start_worker(name, {"kind": "producer", "topic": TOPIC, "rate": 60.0, "options": options, "seed": seed})

    def _options(self) -> dict[str, Any]:
        """Choose the options that all clients have."""
        options: dict[str, Any] = {"auth_secret": "all", "heartbeat_interval": 1, "timeout": 5, "close_timeout": 5}
        options |= {"reconnect_initial": 0.1, "reconnect_maximum": 1}
        options |= self.chosen.choice([{}, {"snappy": True}, {"deflate": True}])
        if self.chosen.random() < 0.5:
            addresses = [lookupd.http_address for lookupd in self.lookupds.values()]
            options |= {"lookupd_http_addresses": addresses, "lookupd_poll_interval": 0.5}
            options["lookupd_options"] = {"timeout": 1}
        else:
            options["nsqd_tcp_addresses"] = [node.relay.address for node in self.nodes]
        return options | ({"tls_v1": True, "tls_options": self._tls} if self.is_secure else {})

    # --- what nsqd's /stats shows

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
            began = time.monotonic()
            try:
                return node.http.stats()
            except NSQException:
                return None
            finally:
                if time.monotonic() - began > SLOW:
                    self.slow.append((node.name, began, time.monotonic()))

        return [job.get() for job in [gevent.spawn(ask, node) for node in self.nodes]]
