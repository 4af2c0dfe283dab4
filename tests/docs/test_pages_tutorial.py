"""The files and commands of the tutorial, one after another in an empty folder."""

import ast
import contextlib
import itertools
import os
import re
import shlex
import signal
import sys
import urllib.request

import pytest

from tests.docs.pages import ROOT, blocks
from tests.docs.prose import check_printed, replaced
from tests.kit import child, refused_port, wait_for_program

PAGE = "tutorial.md"
PORTS = ("4150", "4151", "9100")
DELETED = ("test_order_without_a_price_is_delivered_again",)
# pytest loads no other plugin that is installed: with them it takes 1.5 s of CPU more to start.
PYTEST = ["-m", "pytest", "-p", "no:cacheprovider", "-p", "fakensqd.pytest_plugin"]
PROGRAMS = {"python": [], "pytest": PYTEST, "fakensqd": ["-m", "fakensqd"]}


class Reader:
    """Does what the tutorial says."""

    def __init__(self, folder, output):
        self.folder = folder
        self.ports = {usual: str(refused_port()) for usual in PORTS}
        self.stack = contextlib.ExitStack()
        self.environment = os.environ | {
            "PYTHONPATH": str(ROOT),
            "PYTHONUNBUFFERED": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        }
        self.environment.pop("PYTEST_ADDOPTS", None)
        self.out = output / "out.txt"

    def localized(self, text):
        return replaced(text, self.ports)

    def edit(self, block):
        """Write a file, or change it: imports come after the others, and functions in place of those of their name."""
        name, _, is_changed = block.title.partition(", ")
        path = self.folder / name
        if is_changed:
            old, new = (ast.parse(text) for text in (path.read_text(), block.code))
            imports = [node for node in new.body if isinstance(node, ast.ImportFrom)]
            functions = {node.name: node for node in new.body if isinstance(node, ast.FunctionDef)}
            kept = [functions.pop(getattr(node, "name", ""), node) for node in old.body]
            kept = [node for node in kept if getattr(node, "name", "") not in DELETED]
            path.write_text(
                self.localized(
                    ast.unparse(ast.Module([kept[0], *imports, *kept[1:-1], *functions.values(), kept[-1]], []))
                )
            )
        else:
            path.write_text(self.localized(block.code))

    def command(self, line):
        word, *rest = shlex.split(self.localized(line))
        if "=" in word:
            return ["/usr/bin/env", word, *self.command(shlex.join(rest))]
        if word == "fakensqd":
            rest += [f"--tcp-address=127.0.0.1:{self.ports['4150']}", f"--http-address=127.0.0.1:{self.ports['4151']}"]
        return [sys.executable, *PROGRAMS[word], *rest]

    def run(self, line):
        with child(*self.command(line), cwd=self.folder, env=self.environment) as program:
            out, err = program.communicate()
        assert program.returncode == 0, out + err
        return out

    @contextlib.contextmanager
    def background(self, line, shows):
        """Run a program while the block runs, from the time on at which its output has a text."""
        with (
            self.out.open("w") as out,
            child(*self.command(line), cwd=self.folder, env=self.environment, stdout=out, stderr=out) as program,
        ):
            wait_for_program(program, lambda: shows in self.out.read_text())
            yield
            program.send_signal(signal.SIGTERM)
            assert program.wait() == 0


def request(line, reader, data=None):
    (url,) = re.findall(r"127\.0\.0\.1:\S+?(?=\"|$)", reader.localized(line))
    with urllib.request.urlopen(f"http://{url}", data, timeout=10) as answer:
        return answer.read().decode()


@pytest.mark.subprocess
def test_tutorial(tmp_path, tmp_path_factory):
    output = tmp_path_factory.mktemp("output")
    reader = Reader(tmp_path, output)
    everything = blocks(PAGE)
    commands = []
    with contextlib.ExitStack() as running:
        for block, after in itertools.zip_longest(everything, everything[1:]):
            if block.title:
                reader.edit(block)
            if block.language != "sh" or "not run" in block.notes:
                continue
            for line in block.code.splitlines():
                commands.append(line)
                if line.startswith("fakensqd"):
                    running.enter_context(reader.background(line, "HTTP: listening"))
                    reader.out = output / "worker.txt"
                elif line == "python worker.py" and "StatsCollector" in (tmp_path / "worker.py").read_text():
                    running.enter_context(reader.background(line, "connected"))
                elif line == "python worker.py":
                    with reader.background(line, after.code.rstrip().rpartition("...")[2]):
                        check_lines(after.code, reader.out.read_text())
                elif line.startswith("curl -s -d"):
                    assert request(line, reader, b"") == ""
                elif line.startswith("curl"):
                    check_lines(after.code if after.language == "text" else "orders", request(line, reader))
                else:
                    check_printed(block, reader.run(line))

    assert len(commands) == 11
    # Neither fakensqd nor pytest leaves anything else.
    assert {path.name for path in tmp_path.iterdir()} == {"publish.py", "worker.py", "test_worker.py"}


def check_lines(wanted, text):
    """Check that a text has all lines of a page, in which ``...`` stands for any text."""
    for line in wanted.splitlines():
        pattern = ".*".join(map(re.escape, re.sub(r"127\.0\.0\.1:\d+", "...", line).split("...")))
        assert re.search(pattern, text), f"{line}\nis not in\n{text}"
