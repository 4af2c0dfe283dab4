"""``make mutants``: plant faults into a copy of the source, one at a time, and tell which of them the tests catch.

Which faults depends on the seed, and on the line that has the fault, so the same come again after other lines have
changed. The tests of the module's own folder run first, then those of make quick, then the others without Spark; of
gnsq.spark, its own alone. A fault that lets tests hang is caught by their limit.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
# Seconds that one run of tests may take.
LIMIT = 1200
_OTHER_COMPARISON: dict[type[ast.cmpop], str] = {
    ast.Lt: "<=",
    ast.LtE: "<",
    ast.Gt: ">=",
    ast.GtE: ">",
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.Is: "is not",
    ast.IsNot: "is",
    ast.In: "not in",
    ast.NotIn: "in",
}


@dataclass(frozen=True)
class Fault:
    """A change of one expression or statement, at an offset of a file's text."""

    path: str
    line: int
    kind: str
    begin: int
    before: str
    after: str

    def rank(self, seed: int) -> bytes:
        """Return what faults are chosen by: neither the number of the line nor other lines change it."""
        return hashlib.sha256(f"{seed} {self.path} {self.kind} {self.before} {self.after}".encode()).digest()

    def plant(self, root: Path) -> None:
        """Write the file with the fault."""
        text = (ROOT / self.path).read_text()
        (root / self.path).write_text(text[: self.begin] + self.after + text[self.begin + len(self.before) :])

    def __str__(self) -> str:
        return f"{self.path}:{self.line} {self.kind}: {' '.join(self.before.split())[:60]}"


def faults_of(path: str, text: str) -> Iterator[Fault]:
    """List the faults that can be planted into a module."""
    lines = [0]
    for line in text.splitlines(keepends=True):
        lines.append(lines[-1] + len(line.encode()))
    data = text.encode()

    def fault(node: ast.expr | ast.stmt, kind: str, after: str) -> Fault:
        begin, end = lines[node.lineno - 1] + node.col_offset, lines[node.end_lineno - 1] + node.end_col_offset  # type: ignore[operator]  # parse() sets them
        return Fault(path, node.lineno, kind, len(data[:begin].decode()), data[begin:end].decode(), after)

    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            parts = ast.unparse(node.left), _OTHER_COMPARISON[type(node.ops[0])], ast.unparse(node.comparators[0])
            yield fault(node, "comparison", f"({' '.join(parts)})")
        elif isinstance(node, ast.If):
            yield fault(node.test, "condition never holds", "False")
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            name = ast.unparse(node.value.func)
            if not name.startswith(("logger.", "super")):
                yield fault(node, "wait left out" if name.endswith("wait") else "call left out", "pass")
        elif isinstance(node, ast.BoolOp):
            other = " or " if isinstance(node.op, ast.And) else " and "
            yield fault(node, "and for or", f"({other.join(f'({ast.unparse(each)})' for each in node.values)})")


def chosen(count: int, seed: int, folders: tuple[str, ...] = ("gnsq", "fakensqd")) -> list[Fault]:
    """Choose faults of all modules, as many of each kind."""
    ranked: dict[str, dict[bytes, Fault]] = {}
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            for fault in faults_of(str(path.relative_to(ROOT)), path.read_text()):
                ranked.setdefault(fault.kind, {}).setdefault(fault.rank(seed), fault)
    share = -(-count // len(ranked))
    return [kind[rank] for kind in ranked.values() for rank in sorted(kind)[:share]][:count]


def tests_of(path: str) -> list[list[str]]:
    """Return the arguments of pytest for the tests of a module, the quickest first."""
    package, *folders, name = Path(path).with_suffix("").parts
    folder = Path("tests", *(["fakensqd"] if package == "fakensqd" else []), *folders)
    own = [str(each.relative_to(ROOT)) for each in (ROOT / folder).glob(f"test_{name}*.py")]
    near = [str(folder)] if folders or package == "fakensqd" else []
    if folders[:1] == ["spark"]:
        return [own, near] if own else [near]
    near_runs = [[*run, "-m", "not spark"] for run in (own, near) if run]
    quick = ["tests", "--no-processes", "-m", "not (spark or slow or subprocess)"]
    return [*near_runs, quick, ["tests", "-m", "(slow or subprocess) and not spark"]]


def caught_by(fault: Fault, root: Path) -> str:
    """Run the tests with a fault; return the first one that fails, and "" if none does."""
    environ = {**os.environ, "PYTHONPATH": str(root)}
    pytest = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "tests.suite", "-n", "2"]
    for tests in tests_of(fault.path):
        try:
            command = [*pytest, "-p", "no:cacheprovider", *tests]
            done = subprocess.run(command, cwd=root, env=environ, capture_output=True, text=True, timeout=LIMIT)
        except subprocess.TimeoutExpired:
            return "the limit of time"
        if done.returncode not in (0, 5):  # 5: there are no tests
            *_, summary = done.stdout.partition(" short test summary info ")
            failed = (line.split()[1] for line in summary.splitlines() if line.startswith(("FAILED ", "ERROR ")))
            return next(failed, done.stdout.strip().rpartition("\n")[2] or "the start of pytest")
    return ""


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m integration.mutants", description=__doc__)
    parser.add_argument(
        "--count", type=int, default=60, help="how many faults; default: 60, which takes half an hour or more"
    )
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    wanted = parser.parse_args(words)
    print(f"mutants: {wanted.count} faults, seed {wanted.seed}", flush=True)
    survived = 0
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        names = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
        for name in filter(os.path.isfile, names.splitlines()):
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, root / name)
        for fault in chosen(wanted.count, wanted.seed):
            fault.plant(root)
            test = caught_by(fault, root)
            survived += not test
            print(f"{fault}\n    {f'caught by {test}' if test else 'NOT CAUGHT'}", flush=True)
            shutil.copy(ROOT / fault.path, root / fault.path)
    print(f"mutants: {wanted.count - survived} of {wanted.count} were caught, seed {wanted.seed}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
