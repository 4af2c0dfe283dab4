"""Templates of recorded sessions: bytes, texts and JSON with tokens for values that differ in each run.

The tokens are described in tests/vectors/transcripts/README.md. Data that does not match raises Difference.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any


class Difference(AssertionError):
    """The server behaved differently from the recorded one."""


TOKEN = re.compile(r"\{([A-Z]+)((?::\w+)*)\}")
# Values that match a token without a fixed value.
FREE = {
    "VERSION": rb'[^"\s]+',
    "HOST": rb'[^"\s]+',
    "PORT": rb"\d{1,5}",
    "INT": rb"-?\d+",
    "UNIXTIME": rb"\d{9,11}",
    "ADDR": rb'[^"\s]+:\d{1,5}',
    "GO": rb"[^\s()]+",
    "DURATION": rb"[0-9.a-z\xc2\xb5]+",
    "RFC": rb"[0-9T:+Z.-]+",
    "REST": rb".*",
}
NUMBERS = {"{INT}", "{UNIXTIME}", "{PORT}"}

Codec = Callable[[str], bytes]


@dataclass
class Names:
    """Values of the tokens of one session: its run, message ids, timestamps."""

    run: bytes
    values: dict[str, bytes] = field(default_factory=dict)

    def expand(self, template: str, codec: Codec = bytes.fromhex) -> bytes:
        """Replace tokens by values."""
        return b"".join(self._value(*piece, codec) for piece in pieces(template))

    def _value(self, token: str | None, text: str, codec: Codec) -> bytes:
        match token:
            case None:
                return codec(text)
            case "RUN":
                return self.run
            case "REP":
                byte, count = text.split(":")
                return bytes.fromhex(byte) * int(count)
            case _:
                return self.values[f"{token}:{text}"]

    def template(self, data: bytes) -> str:
        """Replace values by tokens: the reverse of expand()."""
        text = data.hex().replace(self.run.hex(), "{RUN}")
        for token, value in self.values.items():
            text = text.replace(value.hex(), f"{{{token}}}")
        return text

    def compare(self, template: str, data: bytes, codec: Codec = bytes.fromhex) -> None:
        """Compare data with a template. Keep the value of each id and timestamp that is new."""
        new: dict[str, str] = {}
        pattern = b"".join(self._pattern(*piece, codec, new) for piece in pieces(template))
        found = re.fullmatch(pattern, data, re.DOTALL)
        if found is None:
            raise Difference(f"got {shortened(data)}, wanted {shortened(template)}")
        for name, group in new.items():
            value = found[group]
            if name.startswith("TS"):
                assert abs(int.from_bytes(value, "big") / 1e9 - time.time()) < 600, "timestamp is not now"
            else:
                assert value not in self.values.values(), f"id {value!r} is not a new one"
            self.values[name] = value

    def _pattern(self, token: str | None, text: str, codec: Codec, new: dict[str, str]) -> bytes:
        name = f"{token}:{text}"
        if token in FREE:
            return b"(?:%s)" % FREE[token]
        if token == "REP":
            # To compile a literal of a megabyte takes seconds.
            byte, count = text.split(":")
            return b"(?:%s){%d}" % (re.escape(bytes.fromhex(byte)), int(count))
        if token in ("ID", "TS") and name not in self.values:
            if name in new:
                return b"(?P=%s)" % new[name].encode()
            new[name] = f"{token}_{text}"
            return b"(?P<%s>%s)" % (new[name].encode(), b"[0-9a-f]{16}" if token == "ID" else b".{8}")
        return re.escape(self._value(token, text, codec))


def pieces(template: str) -> Iterator[tuple[str | None, str]]:
    """Split a template into tokens with their arguments, and texts between them with None."""
    end = 0
    for token in TOKEN.finditer(template):
        if token.start() > end:
            yield None, template[end : token.start()]
        yield token[1], token[2].removeprefix(":")
        end = token.end()
    if end < len(template):
        yield None, template[end:]


def shortened(data: object) -> str:
    text = repr(data)
    return text if len(text) < 300 else f"{text[:300]}... ({len(text)})"


def compare_json(wanted: Any, got: Any, names: Names) -> None:
    """Compare a JSON value and its type; strings may have tokens."""
    if wanted == "{ANY}":
        return
    if isinstance(wanted, str) and wanted in NUMBERS:
        wanted = got if type(got) is int else wanted
    if type(wanted) is not type(got):
        raise Difference(f"got {shortened(got)}, wanted {shortened(wanted)}")
    if isinstance(wanted, dict):
        keys = [names.expand(key, str.encode).decode() for key in wanted]
        if keys != list(got):
            raise Difference(f"got keys {list(got)}, wanted {keys}")
        for key, value in zip(keys, wanted.values(), strict=True):
            compare_json(value, got[key], names)
    elif isinstance(wanted, list):
        if len(wanted) != len(got):
            raise Difference(f"got {shortened(got)}, wanted {len(wanted)} items")
        for one, other in zip(wanted, got, strict=True):
            compare_json(one, other, names)
    elif isinstance(wanted, str):
        names.compare(wanted, got.encode(), str.encode)
    elif wanted != got:
        raise Difference(f"got {shortened(got)}, wanted {shortened(wanted)}")


def sorted_lists(value: Any) -> Any:
    """Sort lists that were made from a Go map."""
    if isinstance(value, dict):
        return {key: sorted_lists(item) for key, item in value.items()}
    if isinstance(value, list):
        return sorted(map(sorted_lists, value), key=lambda item: json.dumps(item, sort_keys=True))
    return value
