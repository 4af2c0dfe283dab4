"""How Go's standard library writes text: what %q makes of a name, how a duration reads, what counts as a number.

Pure. nsqd's error texts and statistics are built with these. Source: Go's strconv.Quote and time.Duration.String; nsq
internal/protocol/byte_base10.go.
"""

from __future__ import annotations

__all__ = ["base10", "duration", "int64", "quote"]

_SHORT = {
    '"': '\\"',
    "\\": "\\\\",
    "\a": "\\a",
    "\b": "\\b",
    "\f": "\\f",
    "\n": "\\n",
    "\r": "\\r",
    "\t": "\\t",
    "\v": "\\v",
}
# Python refuses to convert more digits than 4300 at once.
_DIGITS = 4000


def quote(data: bytes) -> bytes:
    """Quote as %q does: printable Unicode as it is, the rest escaped; bytes that are not UTF-8 as \\xNN."""
    text = "".join(map(_quoted, data.decode("utf-8", "surrogateescape")))
    return b'"%s"' % text.encode()


def _quoted(rune: str) -> str:
    if rune in _SHORT:
        return _SHORT[rune]
    if rune.isprintable():
        return rune
    code = ord(rune)
    if 0xDC80 <= code <= 0xDCFF:  # a stray byte, as surrogateescape keeps it
        return f"\\x{code - 0xDC00:02x}"
    if code < 0x20 or code == 0x7F:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def base10(word: bytes) -> int:
    """Read digits as nsqd does: modulo 2**64, and nothing is 0.

    Raises:
        ValueError: If there is anything but ASCII digits.
    """
    if not word:
        return 0
    if not word.isdigit():
        raise ValueError(f"{word!r} is not a number")
    value = 0
    for start in range(0, len(word), _DIGITS):
        part = word[start : start + _DIGITS]
        value = (value * 10 ** len(part) + int(part)) % 2**64
    return value


def int64(value: int) -> int:
    """Let a value overflow as Go's int64 does."""
    return (value + 2**63) % 2**64 - 2**63


def duration(seconds: float) -> str:
    """Write a duration as Go does: 906.332432ms, 1.5s, 1h2m3s."""
    nanoseconds = round(seconds * 1e9)
    if nanoseconds == 0:
        return "0s"
    if nanoseconds < 10**9:
        for unit, size in (("ms", 10**6), ("µs", 10**3), ("ns", 1)):
            if nanoseconds >= size:
                return _decimal(nanoseconds, size) + unit
    minutes, rest = divmod(nanoseconds, 60 * 10**9)
    text = _decimal(rest, 10**9) + "s"
    if minutes:
        text = f"{minutes % 60}m{text}"
    if minutes >= 60:
        text = f"{minutes // 60}h{text}"
    return text


def _decimal(value: int, unit: int) -> str:
    whole, rest = divmod(value, unit)
    digits = f"{rest:0{len(str(unit)) - 1}d}".rstrip("0") if rest else ""
    return f"{whole}.{digits}" if digits else str(whole)
