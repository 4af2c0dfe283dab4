"""The regular expressions of the project, found in its sources, and long texts for which a bad one takes long."""

from __future__ import annotations

import ast
import functools
import importlib
import re
import signal
import types
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from re import _constants as op  # type: ignore[attr-defined]
from re import _parser  # type: ignore[attr-defined]
from typing import Any

ROOT = Path(__file__).parents[1]
# So long that a linear search takes a millisecond, at most 25, and a quadratic one more than a third of a second.
LENGTH = 20_000
# Seconds of CPU time for one text.
LIMIT = 0.2

_FUNCTIONS = {"search", "match", "fullmatch", "sub", "split", "findall", "finditer"}
OF_SPARK = {"rlike", "regexp_replace"}
# What repetitions are tried with, beside the characters of the pattern itself.
_CHARACTERS = 'a1 .\\\n-_A"/\xe9'
_ENDS = ("", "\n\n", "\0")
_REPEATS = (op.MAX_REPEAT, op.MIN_REPEAT, op.POSSESSIVE_REPEAT)


@dataclass(frozen=True)
class Regex:
    """A pattern and how it is used.

    Attributes:
        place: File and expression.
        uses: Names of the functions of re that get it, or "rlike" and "regexp_replace" of Spark.
    """

    place: str
    pattern: str | bytes
    flags: int
    uses: frozenset[str]


def regexes() -> list[Regex]:
    """Return all patterns of the packages but those of users."""
    return _found()[0]


def patterns_of_users() -> list[str]:
    """Return the places of the patterns that only a run has."""
    return _found()[1]


@functools.cache
def _found() -> tuple[list[Regex], list[str]]:
    from gnsq.spark.pipeline.types import TIMESTAMP, ZONE

    # What patterns are made of, in functions.
    variables = {
        "any_kind": r"\.log|\.log\.old",
        "any_compression": r"|\.gz",
        "form": TIMESTAMP,
        "kind": types.SimpleNamespace(scale=38),
        "words": "denied|no space left",
        "zone": f"(?:{ZONE})?",
    }
    found, unknown = [], []
    for path in sorted(path for each in ("gnsq", "fakensqd") for path in (ROOT / each).rglob("*.py")):
        tree = ast.parse(path.read_text("utf-8"))
        nodes = [(node, function) for node in ast.walk(tree) if (function := _function(node))]
        name = str(path.relative_to(ROOT).with_suffix("")).replace("/", ".")
        module = importlib.import_module(name) if nodes else None
        for node, function in nodes:
            given = node.args[1] if function == "regexp_replace" else node.args[0]
            flags = [each.value for each in node.keywords if each.arg == "flags"]
            flags += node.args[1:2] if function == "compile" else []
            place = f"{path.relative_to(ROOT)}: {ast.unparse(given)}"
            try:
                pattern, *numbers = (eval(ast.unparse(each), {**variables, **vars(module)}) for each in (given, *flags))
            except NameError:
                unknown.append(place)
                continue
            if isinstance(pattern, str) and pattern.startswith(r"\G"):
                # Python has no \G: Java finds the next match only where the one before has ended.
                found.append(Regex(place, pattern[2:], 0, frozenset({"match"})))
            elif isinstance(pattern, str | bytes):
                uses = _uses(tree, node) if function == "compile" else {function}
                found.append(Regex(place, pattern, sum(numbers), frozenset(uses)))
    return found, unknown


def _function(node: ast.AST) -> str:
    """Return the name of the function of a call that gets a pattern, or ""."""
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args):
        return ""
    of_re = isinstance(node.func.value, ast.Name) and node.func.value.id == "re"
    known = {"compile", *_FUNCTIONS} if of_re else OF_SPARK
    return node.func.attr if node.func.attr in known else ""


def _uses(tree: ast.AST, call: ast.Call) -> set[str]:
    """Return the methods of a compiled pattern that its module calls; all, if the name is not used there."""
    assigned = [node for node in ast.walk(tree) if isinstance(node, ast.Assign) and node.value is call]
    names = {target.id for node in assigned for target in node.targets if isinstance(target, ast.Name)}
    attributes = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    used = {node.attr for node in attributes if isinstance(node.value, ast.Name) and node.value.id in names}
    return used & _FUNCTIONS or _FUNCTIONS


def long_texts(regex: Regex) -> list[str]:
    """Make texts in which each repetition of a pattern, and all of it, matches often, and then does not."""
    pattern = regex.pattern if isinstance(regex.pattern, str) else regex.pattern.decode("latin-1")
    tree = _parser.parse(pattern, regex.flags)
    characters = dict.fromkeys([*_literals(tree), *_CHARACTERS])
    made = set()
    for before, body in _repetitions(tree, ""):
        for pump in filter(None, {_sample(each, first) for each in _branches(body) for first in characters}):
            made |= {before + pump * (LENGTH // len(pump)) + end for end in _ENDS}
            made |= {(before + pump) * (LENGTH // len(before + pump))}
    for pump in filter(None, [_sample(tree), *characters]):
        made |= {pump * (LENGTH // len(pump)) + end for end in _ENDS}
    return sorted(made)


def _compiled(tree: Any, flags: int) -> re.Pattern[str]:
    """Compile a part of a pattern."""
    state = _parser.State()
    state.flags, state.str = flags | re.UNICODE, ""
    state.groupwidths += [(0, op.MAXREPEAT)] * 50  # groups keep the numbers that they have in the whole pattern
    compiled: re.Pattern[str] = re._compiler.compile(_parser.SubPattern(state, list(tree)))  # type: ignore[attr-defined]
    return compiled


def _repetitions(tree: Any, before: str) -> Iterator[tuple[str, Any]]:
    """Yield what may stand before each repetition that has no small limit, and what is repeated."""
    for kind, value in tree:
        if kind in _REPEATS and value[1] > 50:
            yield before, value[2]
        for inner in _inner(kind, value):
            yield from _repetitions(inner, before)
        before += _sample([(kind, value)])


def _inner(kind: Any, value: Any) -> list[Any]:
    """Return the patterns that a part of a pattern consists of."""
    if kind in _REPEATS:
        return [value[2]]
    if kind is op.BRANCH:
        return list(value[1])
    if kind in (op.SUBPATTERN, op.ASSERT, op.ASSERT_NOT):
        return [value[-1]]
    return [value] if kind is op.ATOMIC_GROUP else []


def _branches(tree: Any) -> list[Any]:
    """Return the alternatives of a pattern that consists of them."""
    if len(tree) != 1 or tree[0][0] not in (op.BRANCH, op.SUBPATTERN):
        return [tree]
    return [each for inner in _inner(*tree[0]) for each in _branches(inner)]


def _literals(tree: Any) -> Iterator[str]:
    """Yield the characters that a pattern names."""
    for kind, value in tree:
        if kind in (op.LITERAL, op.NOT_LITERAL):
            yield chr(value)
        elif kind is op.RANGE:
            yield chr(value[0])
        for inner in [value] if kind is op.IN else _inner(kind, value):
            yield from _literals(inner)


def _sample(tree: Any, first: str = "") -> str:
    """Return a short text that fits a pattern, as far as it is simple; of a set of characters, rather the first one."""
    text = ""
    for kind, value in tree:
        if kind is op.LITERAL:
            text += chr(value)
        elif kind in (op.ANY, op.IN, op.NOT_LITERAL):
            fits = _compiled([(kind, value)], 0).fullmatch
            text += next(filter(fits, [first, *_CHARACTERS, *_literals([(kind, value)])]), "")
        elif kind in _REPEATS:
            text += _sample(value[2], first) * max(value[0], 1 if value[1] > 50 else 0)
        elif kind not in (op.ASSERT, op.ASSERT_NOT):
            text += "".join(_sample(inner, first) for inner in _inner(kind, value)[:1])
    return text


class TooSlow(Exception):
    """A pattern takes longer than LIMIT for a text."""


def use(regex: Regex, text: str) -> None:
    """Use a pattern on a text as the project does.

    Raises:
        TooSlow: If it needs more than LIMIT seconds of CPU time.
    """

    def end(*_: object) -> None:
        raise TooSlow(
            f"{regex.place}: more than {LIMIT} s for {len(text)} characters, {text[:40]!r} ... {text[-20:]!r}"
        )

    given: Any = text if isinstance(regex.pattern, str) else text.encode("latin-1", "replace")
    pattern: Any = re.compile(regex.pattern, regex.flags)
    before = signal.signal(signal.SIGPROF, end)
    try:
        for name in sorted(regex.uses):
            signal.setitimer(signal.ITIMER_PROF, LIMIT)
            if name in ("sub", "regexp_replace", "finditer"):
                pattern.sub(given[:0], given)
            else:
                getattr(pattern, name.replace("rlike", "search"))(given)
            signal.setitimer(signal.ITIMER_PROF, 0)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
