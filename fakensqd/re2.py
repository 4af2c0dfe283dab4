"""Patterns by the rules of Go's regexp, for names: what Go refuses is refused, the rest becomes Python's.

Pure. Made for text of ASCII letters, digits and punctuation without newlines, which topic and channel names are: so
the flags m, s and U change nothing. Refused though Go has them: classes of Unicode (\\p), and a repetition right behind
flags. Source: Go's regexp/syntax.
"""

from __future__ import annotations

import functools
import re

__all__ = ["compile_re2"]

_MAX_REPEAT = 1000

# What may stand behind a backslash, in a class and outside of one. One digit alone would be a reference back.
_ESCAPE = r"""
    \\(?: (?P<set>[dDsSwW]) | (?P<octal>0[0-7]{0,2}|[1-7][0-7]{1,2}) | x(?P<hex>[0-9A-Fa-f]{2})
        | x\{(?P<long>[0-9A-Fa-f]+)\} | (?P<control>[aftnrv]) | (?P<sign>[\x00-/:-@\[-`{-\x7f]) )
"""
_TOKEN = re.compile(
    rf"""
    \\Q(?P<quoted>.*?)(?:\\E|\Z)
    | \\(?P<place>[AbBz]) | (?P<anchor>[\^$])
    | {_ESCAPE}
    | \(\?(?:P?<(?P<name>\w+)>|(?P<flags>[imsU]*(?:-[imsU]+)?)(?P<scope>[:)]))
    | (?P<open>\((?!\?)) | (?P<close>\)) | (?P<or>\|) | (?P<any>\.)
    | (?P<repeat>[*+?]|\{{(?P<low>0|[1-9]\d*)(?:,(?P<high>0|[1-9]\d*|))?\}})(?P<lazy>\??)
    | \[(?P<not>\^?)(?P<members>\]?(?:\[:\^?\w+:\]|\\x\{{\w+\}}|\\.|(?!\[:\^?\w+:\])[^\]\\])*)\]
    | (?P<literal>[^\\(\[])
    """,
    re.VERBOSE | re.DOTALL | re.ASCII,
)
_MEMBER = re.compile(
    rf"\[:(?P<not>\^?)(?P<posix>\w+):\] | {_ESCAPE} | (?P<literal>[^\\])", re.VERBOSE | re.DOTALL | re.ASCII
)
_POSIX = {
    "alnum": "0-9A-Za-z",
    "alpha": "A-Za-z",
    "ascii": "\\x00-\\x7f",
    "blank": "\\t ",
    "cntrl": "\\x00-\\x1f\\x7f",
    "digit": "0-9",
    "graph": "!-~",
    "lower": "a-z",
    "print": " -~",
    "punct": "!-/:-@\\[-`{-~",
    "space": "\\t-\\r ",
    "upper": "A-Z",
    "word": "0-9A-Za-z_",
    "xdigit": "0-9A-Fa-f",
}
# There are no lines in a name. Python repeats a place only if it stands in a group, and has no \\B in an empty text.
_PLACES = {
    "^": r"(?:\A)",
    "$": r"(?:\Z)",
    r"\A": r"(?:\A)",
    r"\z": r"(?:\Z)",
    r"\b": r"(?:\b)",
    r"\B": r"(?:\B|\A\Z)",
}
_CONTROLS = {"a": 7, "f": 12, "t": 9, "n": 10, "r": 13, "v": 11}


@functools.lru_cache(maxsize=256)
def compile_re2(pattern: str) -> re.Pattern[str]:
    """Compile a pattern, to be searched for.

    Raises:
        ValueError: If Go would not take it.
    """
    try:
        return re.compile(_Translation(pattern).text, re.ASCII)
    except (re.error, RecursionError, OverflowError) as error:
        raise ValueError(f"pattern {pattern!r} does not compile: {error}") from error


class _Translation:
    """A pattern on its way from Go's rules to Python's, token by token."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._output: list[str] = []
        # For each open group, what (?i) and (?-i) have opened in it: closed with it, and at each |.
        self._scopes: list[list[str]] = [[]]
        self._names: set[str] = set()
        # Whether a repetition may follow.
        self._repeatable = False
        position = 0
        while position < len(pattern):
            token = _TOKEN.match(pattern, position)
            if token is None:
                raise self._error(f"at {pattern[position : position + 10]!r}")
            self._take(token)
            position = token.end()
        if len(self._scopes) != 1:
            raise self._error("a group is not closed")
        self.text = "".join(self._output) + ")" * len(self._scopes[0])

    def _error(self, what: str) -> ValueError:
        return ValueError(f"pattern {self._pattern!r}: {what}")

    def _take(self, token: re.Match[str]) -> None:
        match token.lastgroup:
            case "lazy" | "repeat" | "low" | "high":
                self._repeat(token)
            case "open":
                self._open()
            case "name":
                if token["name"] in self._names:
                    raise self._error(f"two groups are called {token['name']}")
                self._names.add(token["name"])
                self._open()
            case "scope" | "flags":
                self._flags(token)
            case "close":
                if len(self._scopes) == 1:
                    raise self._error("a group is closed that is not open")
                self._emit(")" * (len(self._scopes.pop()) + 1))
            case "or":
                scopes = self._scopes[-1]
                self._emit(")" * len(scopes) + "|" + "".join(scopes), repeatable=False)
            case _:
                self._emit(self._atom(token))

    def _emit(self, text: str, *, repeatable: bool = True) -> None:
        self._output.append(text)
        self._repeatable = repeatable

    def _open(self, how: str = "(?:") -> None:
        self._scopes.append([])
        self._emit(how, repeatable=False)

    def _flags(self, token: re.Match[str]) -> None:
        on, _, off = token["flags"].partition("-")
        how = "(?-i:" if "i" in off else "(?i:" if "i" in on else "(?:"
        if token["scope"] == ":":
            self._open(how)
            return
        if not token["flags"]:
            raise self._error("(?) has no flags")
        self._scopes[-1].append(how)
        self._emit(how, repeatable=False)

    def _repeat(self, token: re.Match[str]) -> None:
        if not self._repeatable:
            raise self._error(f"nothing to repeat before {token[0]}")
        if token["low"] is not None:
            low, high = int(token["low"]), int(token["high"] or token["low"])
            if not low <= high <= _MAX_REPEAT:
                raise self._error(f"{token['repeat']} is out of bounds")
        self._emit(token[0], repeatable=False)

    def _atom(self, token: re.Match[str]) -> str:
        if token["quoted"] is not None:
            return f"(?:{re.escape(token['quoted'])})"
        if token["place"] or token["anchor"]:
            return _PLACES[token[0]]
        if token["any"]:
            return "."
        if token["members"] is not None:
            return f"[{token['not']}{self._members(token['members'])}]"
        return token[0] if token["set"] else _character(_code(token))

    def _members(self, text: str) -> str:
        """Translate what stands between the brackets of a class."""
        members: list[str] = []
        position = 0
        while position < len(text):
            low = _MEMBER.match(text, position)
            if low is None:
                raise self._error(f"at {text[position:]!r} in a class")
            position = low.end()
            if low["posix"] is not None:
                members.append(self._posix(low))
            elif low["set"]:
                members.append(low[0])
            else:
                high = _MEMBER.match(text, position + 1) if text[position : position + 1] == "-" else None
                if high is None:
                    members.append(_character(_code(low)))
                    continue
                if high["posix"] is not None or high["set"] or _code(high) < _code(low):
                    raise self._error(f"{low[0]}-{high[0]} is no range")
                members.append(f"{_character(_code(low))}-{_character(_code(high))}")
                position = high.end()
        return "".join(members)

    def _posix(self, token: re.Match[str]) -> str:
        if token["posix"] not in _POSIX:
            raise self._error(f"no class is called {token[0]}")
        ranges = _POSIX[token["posix"]]
        if not token["not"]:
            return ranges
        outside = re.compile(f"[^{ranges}]")
        return "".join(_character(code) for code in range(128) if outside.match(chr(code)))


def _code(token: re.Match[str]) -> int:
    """Give the character that a token stands for, as a number."""
    groups = token.groupdict()
    if groups["octal"]:
        return int(groups["octal"], 8)
    if groups["hex"] or groups["long"]:
        return int(groups["hex"] or groups["long"], 16)
    if groups["control"]:
        return _CONTROLS[groups["control"]]
    return ord(groups["sign"] or groups["literal"])


def _character(code: int) -> str:
    return f"\\U{code:08x}"
