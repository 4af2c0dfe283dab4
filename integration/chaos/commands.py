"""gnsq pub, copy, to-file and requeue-dead are cut at a random byte or signalled at a random moment. Then what they
advise is done, and the sum of the messages is compared.
"""

from __future__ import annotations

import gzip
import math
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gevent
import zstandard

from fakensqd import Relay
from fakensqd.faults import toxics
from fakensqd.real import RealNsqd
from gnsq import NsqdHTTPClient, Producer
from gnsq.dead_letter import DeadLetter, encode_dead_letter
from tests.kit import bodies, channel_stats, wait_until

# Seconds.
LIMIT = 60.0
# Runs of a command that are cut; then it is left alone.
CUTS, RUNS = 2, 10
NO_CODE = re.compile(r"^Traceback", re.MULTILINE)
# What the commands say of messages that may be doubled.
DOUBLED = re.compile(
    r"([\d,]+) (?:messages? (?:requeued without|published but not finished)|written messages? (?:is|are) not finished)"
)


@dataclass
class Trial:
    """One command, with topics of its own.

    Attributes:
        was_killed: A run could give no advice.
        was_cut: A FIN may have been lost on its way, which no command can know.
    """

    nsqd: RealNsqd
    relay: Relay
    folder: Path
    topic: str
    chosen: random.Random
    was_killed: bool = False
    was_cut: bool = False
    said: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.http = NsqdHTTPClient.from_url(self.nsqd.http_address)
        self.count = self.chosen.choice([30, 500, 3000])
        size = self.chosen.choice([0, 300])
        self.lines = [b"%d %s" % (number, b"x" * size) for number in range(self.count)]

    def command(self, *words: object, is_cut: bool) -> tuple[int, str]:
        """Run a command through the relay; return its status and stderr."""
        path = self.folder / "stderr"
        program = [sys.executable, "-m", "gnsq", *map(str, words), "--nsqd", self.relay.address]
        program += ["--nsqd-http", self.nsqd.http_address, "--timeout", "3s"]
        before = self.relay.link.connections
        with open(path, "wb") as stderr:
            process = subprocess.Popen(program, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=stderr)
        cutter = gevent.spawn(self._cut, process, before) if is_cut else None
        try:
            wait_until(lambda: process.poll() is not None, LIMIT)
        finally:
            gevent.killall([cutter] if cutter else [])
            self.relay.link.clear()
            process.kill()
            process.wait(LIMIT)
        self.was_killed |= process.returncode == -signal.SIGKILL
        self.said.append(f"{words}: status {process.returncode}: {path.read_text(errors='replace')}")
        if NO_CODE.search(self.said[-1]):
            raise AssertionError("a traceback")
        return process.returncode, self.said[-1]

    def _cut(self, process: subprocess.Popen[bytes], before: int) -> None:
        """Cut connections inside of a byte that will pass, or send a signal, or both."""
        chosen = self.chosen
        what = chosen.choice(["link", "signal", "both"])
        if what != "signal":
            position = int(math.exp(chosen.uniform(0, math.log(2 * sum(map(len, self.lines))))))
            toxic: Any = chosen.choice(
                [toxics.reset(after=position), toxics.limit_bytes(position), toxics.stall(after=position)]
            )
            self.was_cut = True
            which = chosen.choice([None, before + 1, before + 2])
            self.relay.link.add(toxic, upstream=chosen.choice([True, False, None]), connection=which)
        wait_until(lambda: self.relay.link.connections > before or process.poll() is not None, LIMIT)
        gevent.sleep(chosen.expovariate(4))
        if what != "link" and process.poll() is None:
            process.send_signal(chosen.choice([signal.SIGINT, signal.SIGTERM, signal.SIGTERM, signal.SIGKILL]))
        gevent.sleep(chosen.uniform(0, 4))
        self.relay.link.clear()

    def publish(self, messages: Iterable[bytes], channel: str) -> None:
        self.http.create_topic(self.topic)
        self.http.create_channel(self.topic, channel)
        with Producer(self.nsqd.tcp_address) as producer:
            producer.publish_many(self.topic, messages)

    def listen(self, topic: str) -> Callable[[], Counter[bytes]]:
        """Keep what comes to a topic; the function returns it."""
        self.http.create_topic(topic)
        self.http.create_channel(topic, "bodies")

        def found() -> Counter[bytes]:
            wait_until(lambda: self.http.stats(topic)["topics"][0]["depth"] == 0, LIMIT)
            return Counter(bodies(self.nsqd, topic))

        return found

    def repeat(self, channel: str, *words: object) -> None:
        """Run a command that consumes until its channel is empty."""
        for run in range(RUNS):
            self.command(*words, is_cut=run < CUTS)
            wait_until(lambda: not any(self._waiting(channel)[1:]), LIMIT)
            if run >= CUTS and not any(self._waiting(channel)):
                return
        raise AssertionError(f"{channel} is not empty after {RUNS} runs: {self._waiting(channel)}")

    def _waiting(self, channel: str) -> tuple[int, int, int]:
        stats = channel_stats(self.nsqd, self.topic, channel)
        return stats["depth"], stats["in_flight_count"], stats["deferred_count"]

    def compare(self, found: Mapping[bytes, int]) -> None:
        """Check that all lines are there, and that after signals no more are doubled than was said."""
        lost = [line[:20] for line in self.lines if not found.get(line)]
        strange = [body[:60] for body in {*found} - {*self.lines}]
        doubled = sum(found.values()) - len(found)
        most = sum(int(number.replace(",", "")) for text in self.said for number in DOUBLED.findall(text))
        assert not lost, f"{len(lost)} lost: {lost[:5]}"
        assert not strange, f"bodies that nobody has published: {strange[:5]}"
        assert self.was_killed or self.was_cut or doubled <= most, f"{doubled} doubled, {most} were said to be"


def pub(trial: Trial) -> None:
    found = trial.listen(trial.topic)
    path = trial.folder / "lines"
    path.write_bytes(b"".join(line + b"\n" for line in trial.lines))
    more = trial.chosen.choice([[], ["--rate", "1000"], ["--defer", "100ms"]])
    first, fewest, most = 1, Counter(trial.lines), Counter(trial.lines)
    for run in range(RUNS):
        status, said = trial.command("pub", trial.topic, path, "--from-line", first, *more, is_cut=run < CUTS)
        if status == 0:
            break
        if trial.was_killed:
            fewest.clear()
            break
        if choice := re.search(r"To publish again: --from-line (\d+). To leave out: --from-line (\d+)", said):
            again, after = int(choice[1]), int(choice[2])
            first = trial.chosen.choice([again, after])
            if first == again:
                most.update(trial.lines[again - 1 : after - 1])
            else:
                fewest.subtract(trial.lines[again - 1 : after - 1])
        elif advice := re.search(r"[Tt]o go on: --from-line (\d+)", said):
            first = int(advice[1])
        else:
            assert "Nothing is published" in said or "stopped before the start" in said, "no advice"
    counted = found()
    wrong = {line[:20]: counted[line] for line in trial.lines if not fewest[line] <= counted[line] <= most[line]}
    assert not wrong, f"{len(wrong)} lines are there too often or too rarely: {[*wrong.items()][:5]}"


def copy(trial: Trial) -> None:
    found = trial.listen(f"{trial.topic}-to")
    trial.publish(trial.lines, "copy")
    trial.repeat("copy", "copy", trial.topic, f"{trial.topic}-to", "--idle", "1s")
    trial.compare(found())


def requeue_dead(trial: Trial) -> None:
    found = trial.listen(f"{trial.topic}-to")
    origin = {"topic": f"{trial.topic}-to", "channel": "c", "nsqd": None, "id": "0" * 16, "timestamp": time.time_ns()}
    why = {"attempts": 6, "given_up_at": time.time(), "error": "ValueError", "reason": ""}
    letters = [encode_dead_letter(DeadLetter(**origin, **why, body=line)) for line in trial.lines]
    trial.publish(letters, "requeue-dead")
    words = ["requeue-dead", trial.topic, "--all", "--idle", "1s", "--leave-for", "1s"]
    trial.repeat("requeue-dead", *words)
    trial.compare(found())


def to_file(trial: Trial) -> None:
    trial.publish(trial.lines, "to-file")
    folder, kind = trial.folder / "files", trial.chosen.choice(["none", "gzip", "zstd"])
    size = trial.chosen.choice([[], ["--rotate-size", "20K"]])
    words = ["to-file", trial.topic, "-d", folder, "--idle", "1s", "--sync-interval", "100ms", "--compress", kind]
    trial.repeat("to-file", *words, *size)
    found: Counter[bytes] = Counter()
    for path in folder.iterdir():
        assert not path.name.endswith(".part"), f"{path} was left"
        with open(path, "rb") as file:
            reader: Any = {".gz": gzip.open, ".zst": zstandard.open}.get(path.suffix, lambda file: file)(file)
            found.update(reader.read().splitlines())
    trial.compare(found)


COMMANDS = (pub, copy, requeue_dead, to_file)


def run(folder: Path, chosen: random.Random, seconds: float, *, is_fake: bool) -> list[str]:
    """Make trials for some seconds, and at least one of each command; return what was wrong."""
    os.environ |= {"XDG_CONFIG_HOME": str(folder)}
    words = (sys.executable, "-m", "fakensqd", "nsqd") if is_fake else ""
    nsqd = RealNsqd(program=words, msg_timeout=2.0, log=str(folder / "nsqd.log"))
    wrong: list[str] = []
    gevent.get_hub().threadpool.apply(nsqd.start)
    deadline, number = time.monotonic() + seconds, 0
    try:
        while time.monotonic() < deadline or number < len(COMMANDS):
            command = COMMANDS[number % len(COMMANDS)]
            number += 1
            own = folder / f"{number}"
            own.mkdir()
            with Relay(nsqd.tcp_address) as relay:
                trial = Trial(nsqd, relay, own, f"t{number}", random.Random(chosen.random()))
                try:
                    command(trial)
                except Exception as error:  # noqa: BLE001  # reported at the end
                    wrong.append(f"trial {number}, {command.__name__}: {error!r}\n{'-- '.join(trial.said)}")
                print(f"trial {number}: {command.__name__}, {len(trial.said)} runs, {trial.count} messages", flush=True)
    finally:
        nsqd.close()
    print(f"commands: {number} trials")
    return wrong
