"""README.md and the pages below docs/pages: their sections and blocks of code, for the tests that run them.

``tests/docs/test_blocks.py`` finds the blocks that no test runs: it searches the tests for calls of example().
"""

from __future__ import annotations

import ast
import importlib.util
import itertools
import re
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
FOLDER = ROOT / "docs/pages"

# docs/hooks.py is in no package: mkdocs loads it by its path, too.
_spec = importlib.util.spec_from_file_location("gnsq_docs_hooks", ROOT / "docs/hooks.py")
hooks = importlib.util.module_from_spec(_spec)
sys.modules[_spec.name] = hooks
_spec.loader.exec_module(hooks)

# Languages whose blocks must run. Others, such as "text" and "go", are for reading.
RUN = ("python", "sh", "toml", "json", "sql")
_PARTS = re.compile(
    r"^(?P<level>#{1,4}) (?P<heading>[^\n]+)$"
    r"|(?P<notes>(?:<!--(?:(?!-->).)*-->\n\s*)*)^```(?P<language>\w*)(?P<title>[^\n]*)\n(?P<code>.*?)^```$",
    re.M | re.S,
)
_NOTE = re.compile(r"<!-- (before|until|after|process|stdin|prelude|not run)(?::\s+(.*?))?\s+-->", re.S)
_PRINTED = re.compile(r"\s*[^\n]*\bprints:\s*")


@dataclass(frozen=True)
class Block:
    """A block of code.

    Attributes:
        number: Position among the blocks of this language under this heading, from 0.
        line: Number of its first line in the page.
        title: Name of the file that the block is, if it has one.
        notes: What the comments before it say, by their first words: see prose.py. Of a block that no test runs, "not
            run" says why.
        printed: What it must print; None if the page does not say that.
    """

    page: str
    heading: str
    language: str
    number: int
    line: int
    title: str
    notes: dict[str, str]
    code: str
    printed: str | None

    def compiled(self, code: str | None = None) -> object:
        """Compile the code, so that tracebacks have the lines of the page."""
        return compile("\n" * (self.line - 1) + (code or self.code), str(FOLDER / self.page), "exec")

    @property
    def is_test(self) -> bool:
        return re.search(r"^def test_", self.code, re.M) is not None


def page_names() -> list[str]:
    """List README.md and the paths of all pages."""
    return ["README.md", *sorted(path.relative_to(FOLDER).as_posix() for path in FOLDER.rglob("*.md"))]


def pages_run_as_a_whole() -> set[str]:
    """Return the pages in a list PAGES of a module here, or of the examples for Spark: it runs all blocks of these."""
    found: set[str] = set()
    for path in (*Path(__file__).parent.glob("*.py"), ROOT / "tests/spark/test_examples.py"):
        for node in ast.parse(path.read_text()).body:
            is_list = isinstance(node, ast.Assign) and isinstance(node.value, ast.Tuple)
            if is_list and ast.unparse(node.targets[0]) == "PAGES":
                found |= set(ast.literal_eval(node.value))
    return found


def page_text(page: str) -> str:
    """Return the text of a page."""
    return (ROOT / page if page == "README.md" else FOLDER / page).read_text()


def section(page: str, heading: str) -> str:
    """Return the text from a heading to the next one of the same or a higher level."""
    text = page_text(page)
    headings = [part for part in _PARTS.finditer(text) if part["heading"]]
    (first,) = [part for part in headings if part["heading"] == heading]
    later = [part for part in headings if part.start() > first.start() and len(part["level"]) <= len(first["level"])]
    return text[first.end() : later[0].start() if later else None]


def blocks(page: str) -> list[Block]:
    """List the blocks of a page in their order."""
    text = page_text(page)
    parts = list(_PARTS.finditer(text))
    found: list[Block] = []
    heading = ""
    for part, after in itertools.zip_longest(parts, parts[1:]):
        if part["heading"]:
            heading = part["heading"]
            continue
        language = part["language"]
        is_printed = (
            after is not None and after["language"] == "text" and _PRINTED.fullmatch(text, part.end(), after.start())
        )
        found.append(
            Block(
                page,
                heading,
                language,
                sum(block.heading == heading and block.language == language for block in found),
                text.count("\n", 0, part.start("code")) + 1,
                "".join(re.findall(r'title="(.*?)"', part["title"])),
                {name: textwrap.dedent(value or "").strip() for name, value in _NOTE.findall(part["notes"])},
                part["code"],
                after["code"] if is_printed else None,
            )
        )
    return found


def example(page: str, heading: str, number: int = 0, language: str = "python") -> str:
    """Return the code of a block. Call it with literals only, so that the block counts as one that runs.

    Args:
        number: Position among the blocks of this language under this heading, from 0.
    """
    (code,) = [
        block.code
        for block in blocks(page)
        if (block.heading, block.number, block.language) == (heading, number, language)
    ]
    return code


def run(code: str, nsqd: object) -> dict[str, object]:
    """Execute code with an nsqd in place of 127.0.0.1:4150; returns its global names."""
    names: dict[str, object] = {}
    exec(compile(code.replace("127.0.0.1:4150", nsqd.tcp_address), "<example>", "exec"), names)
    return names


def table(page: str, heading: str, first_column: str) -> list[list[str]]:
    """Return the cells of the table of a section, or below it, whose first column has this name, row by row."""
    start = rf"^\| {re.escape(first_column)} \|.*\n\|(?:---\|)+\n((?:\|.*\n?)+)"
    (rows,) = re.findall(start, section(page, heading), re.MULTILINE)
    return [[cell.strip() for cell in row.strip().strip("|").split(" | ")] for row in rows.splitlines()]
