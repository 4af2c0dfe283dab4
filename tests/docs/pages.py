"""README.md and the pages below docs/pages: their sections and blocks of code, for the tests that run them.

``tests/docs/test_blocks.py`` finds the blocks that no test runs: it searches the tests for calls of example().
"""

from __future__ import annotations

import ast
import importlib.util
import re
import sys
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
NOT_RUN = re.compile(r"<!-- not run: (.+?) -->\s*$", re.DOTALL)
_PARTS = re.compile(
    r"^(?P<level>#{1,4}) (?P<heading>[^\n]+)$|^```(?P<language>\w*)[^\n]*\n(?P<code>.*?)^```$", re.M | re.S
)


@dataclass(frozen=True)
class Block:
    """A block of code.

    Attributes:
        number: Position among the blocks of this language under this heading, from 0.
        line: Number of its first line in the page.
        reason: Why no test runs it, from the comment before it; empty if there is none.
    """

    page: str
    heading: str
    language: str
    number: int
    line: int
    code: str
    reason: str


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
    found: list[Block] = []
    heading = ""
    for part in _PARTS.finditer(text):
        if part["heading"]:
            heading = part["heading"]
            continue
        language = part["language"]
        number = sum(block.heading == heading and block.language == language for block in found)
        line = text.count("\n", 0, part.start("code")) + 1
        comment = NOT_RUN.search(text, 0, part.start())
        reason = " ".join(comment[1].split()) if comment else ""
        found.append(Block(page, heading, language, number, line, part["code"], reason))
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
