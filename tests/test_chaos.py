"""The programs of integration/chaos, with the emulator and fixed seeds; and what their judge sees in ledgers."""

import json
import sys
import time
from datetime import datetime
from pathlib import Path

import pytest

from integration.chaos.faults import Fault
from integration.chaos.ledger import SAMPLES, Judge, read
from integration.chaos.workers import body_of, key_of
from integration.chaos.world import ALL, LOST_RECORDS, Node
from tests.kit import run

ROOT = Path(__file__).parents[1]
NODES = {"n:1": "nsqd0", "n:2": "nsqd1"}


@pytest.mark.slow
@pytest.mark.subprocess
def test_commands_lose_nothing_with_the_emulator():
    flags = ["--fake", "--seconds=1", "--seed=1", "--commands"]
    result = run(sys.executable, "-m", "integration.chaos", *flags, cwd=ROOT, limit=280)

    assert result.returncode == 0, result.stdout + result.stderr


class Files:
    """Ledgers of a producer and of consumers, in which one body is published and handled as it should be."""

    def __init__(self, folder):
        self.folder = folder
        self.lines = {"p": [], "a": [], "b": []}
        self.faults = []
        self.in_flight = []
        self.memory = {"nsqd0": 20, "nsqd1": 20}
        self.publish("k-0")
        for name in ("a", "b"):
            self.deliver(name, 2.0, "k-0", "finish")

    def publish(self, key, *, outcome="confirmed", took=0.1, due=0.0):
        self.lines["p"].append(["P", 1.0, key, "orders", 2.0, due, [key]])
        if outcome:
            self.lines["p"].append(["O", 1.0 + took, key, outcome, ["n:1"], [key], ""])

    def deliver(self, name, time, key, answer, *, attempts=1, message_id=None):
        values = key, "n:1", message_id or key, attempts
        self.lines[name].append(["D", time, *values, time, time])
        self.lines[name].append(["A", time + 0.1, *values, answer])

    def violations(self):
        for name, lines in self.lines.items():
            settings = {"name": name, "options": {"allow_duplicates": False}, "channel": name, "way": "returning"}
            (self.folder / f"{name}.json").write_text(json.dumps(settings))
            (self.folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + '["A", 9')
        judge = Judge(read(self.folder), self.faults, NODES, self.in_flight, self.memory, {"nsqd0": set()})
        return [line.partition(":")[0] for line in judge.violations()]


LOG = """\
[nsqd] 2026/11/30 09:55:54.803763 WARNING: DISKQUEUE(orders) metadata writePos 0 < file size of 4, skipping to new file
[nsqd] 2026/11/30 09:55:55.805791 ERROR: DISKQUEUE(orders) negative depth at tail (-23), metadata corruption
[nsqd] 2026/11/30 09:55:56.000000 ERROR: DISKQUEUE(orders:a) reading at 43 of f - invalid message read size (3225697)
[nsqd] 2026/11/30 09:55:57.000000 ERROR: [n:3] - E_FIN_FAILED FIN 18aea5522e269000 failed ID not in flight - ID not i
[nsqd] 2026/11/30 09:55:58.000000 ERROR: [n:3] - E_REQ_FAILED REQ 18aea5400b269003 failed ID already deferred - ID alrea
"""


@pytest.fixture
def files(tmp_path):
    return Files(tmp_path)


def lost(files):
    files.publish("l-0")
    files.deliver("a", 2.0, "l-0", "finish")
    files.deliver("b", 2.0, "l-0", "fail")


def refused(files):
    files.publish("r-0", outcome="refused")
    files.deliver("a", 2.0, "r-0", "finish")


def doubled(files):
    files.deliver("a", 3.0, "k-0", "finish", message_id="other")


def comes_again(files):
    files.deliver("a", 3.0, "k-0", "finish", attempts=2)


def early(files):
    files.memory["nsqd0"] = ALL
    files.publish("e-0", outcome="unknown", due=5.0)
    files.deliver("a", 2.0, "e-0", "finish")


def late_publish(files):
    files.publish("s-0", outcome="unknown", took=4.0)


def miscounted(files):
    files.lines["p"].append(["Q", 9.0, {"confirmed": 2, "possibly_duplicated": 0}])


def excess(files):
    files.lines["a"] += [["M", 1.0, 9], ["M", 2.0, 5]]
    files.in_flight = [(6.0, {"a": 9}), (8.0, {"a": 6})]


def cut(files):
    files.lines["a"].append(["C", 3.0, "n:1", "n:1: connection lost: closed"])


def growth(files):
    usage = {"KiB": 1, "objects": 1, "threads": 1, "greenlets": 1}
    files.lines["a"] += [["T", 1.0, {**usage, "descriptors": 5 * number}, {}] for number in range(SAMPLES)]


def torn(files):
    files.deliver("a", 3.0, body_of("k-0").decode()[:-1], "finish")


def torn_letter(files):
    files.lines["b"].append(["L", 3.0, '{"body": ', "", "n:1"])


def bug(files):
    files.lines["a"].append(["X", 1.0, "a greenlet has died"])


def lost_on_disk(files):
    lost(files)
    files.lines["b"] = [line for line in files.lines["b"] if line[2] != "l-0"]
    files.memory["nsqd0"] = 0


def comes_again_from_memory(files):
    files.memory["nsqd0"] = ALL
    files.deliver("a", 9.0, "k-0", "finish", attempts=2)


VIOLATIONS = {
    lost: "confirmed and lost",
    lost_on_disk: "confirmed and lost",
    comes_again_from_memory: "came again without a reason",
    refused: "refused or not sent, and handled",
    doubled: "published twice",
    comes_again: "came again without a reason",
    early: "handled early",
    late_publish: "publish without an end in time",
    miscounted: "counted in another way",
    excess: "more in flight than max_in_flight",
    cut: "connection lost without a fault",
    growth: "grows",
    torn: "refused or not sent, and handled",
    torn_letter: "refused or not sent, and handled",
    bug: "bug",
}


KILLED = [Fault("killed", "nsqd0", 1.5, 2.0), Fault("stopped", "nsqd0", 7.0, 7.5)]
FULL = [Fault("has a full disk", "nsqd0", 0.5, 1.5)]


def lost_records(kind, at):
    """Of the topic or of a channel."""
    return [Fault(f"{LOST_RECORDS}{kind}", "nsqd0", at, at)]


EXPLAINED = [
    (lambda files: None, []),
    (lost_on_disk, [Fault("killed", "nsqd0", 3.0, 3.5)]),  # not synced yet
    *((make, KILLED) for make in (lost, comes_again, early, excess, cut)),
    *((make, FULL) for make in (torn, torn_letter)),
    *((lost, lost_records(kind, 3.5)) for kind in ("orders", "orders:b")),
]
NOT_EXPLAINED = [
    *((make, [Fault("killed", "nsqd0", 5.5, 6.0)]) for make in (lost_on_disk, comes_again_from_memory)),
    *[(torn, [Fault("has a full disk", "nsqd1", 0.5, 1.5)]), (torn_letter, KILLED)],
    *[(lost, lost_records("orders:a", 3.5)), (lost, lost_records("orders:b", 0.5))],  # another channel, before
]


@pytest.mark.parametrize(("make", "faults"), [*((make, []) for make in VIOLATIONS), *NOT_EXPLAINED])
def test_the_judge_sees(files, make, faults):
    make(files)
    files.faults = faults

    assert files.violations() == [VIOLATIONS[make]]


@pytest.mark.parametrize(("make", "faults"), EXPLAINED)
def test_a_fault_of_the_nsqd_explains(files, make, faults):
    make(files)
    files.faults = faults

    assert files.violations() == []


def test_refused_answers_and_lost_records_are_read_from_the_log_of_nsqd(tmp_path):
    (tmp_path / "log").write_text(LOG)
    node = Node("nsqd0", None, None, None, 0, tmp_path / "log")
    now = time.monotonic() - time.time()

    assert node.refused() == {"18aea5522e269000", "18aea5400b269003"}
    assert [(kind, round(at - now)) for kind, at in node.lost_records()] == [
        ("has lost records of orders:a", round(datetime(2026, 11, 30, 9, 55, 56).timestamp()))
    ]


@pytest.mark.parametrize(
    "body", [b"k", b"k-0", body_of("k-2")[:-1], body_of("k-2") + b"x", b"k-\xb2:1:", b"k-99999999999:1:"]
)
def test_what_is_not_a_whole_body_is_its_own_key(body):
    assert key_of(body) == body.decode("latin-1")
    assert key_of(body_of("k-2")) == "k-2"
