"""Text as Go's standard library writes and reads it: quoted names, durations, numbers.

Pure. Used for nsqd's parameters, error texts and statistics. Source: Go's strconv.Quote and time.Duration.String;
nsq internal/protocol/byte_base10.go.
"""

from __future__ import annotations

__all__ = ["base10", "duration", "int64", "quote"]

_SHORT_ESCAPES = {char: f"\\{letter}" for char, letter in zip('"\\\a\b\f\n\r\t\v', '"\\abfnrtv', strict=True)}


def quote(data: bytes) -> bytes:
    """Quote and escape like Go's %q. Bytes that are not UTF-8 become \\xNN."""
    text = "".join(map(_quote_rune, data.decode("utf-8", "surrogateescape")))
    return b'"%s"' % text.encode()


def _quote_rune(rune: str) -> str:
    if rune in _SHORT_ESCAPES:
        return _SHORT_ESCAPES[rune]
    if rune.isprintable():
        return rune
    code = ord(rune)
    if 0xDC80 <= code <= 0xDCFF:  # surrogateescape decodes a byte that is not UTF-8 to this range
        return f"\\x{code - 0xDC00:02x}"
    if code < 0x20 or code == 0x7F:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def base10(word: bytes) -> int:
    """Convert digits like nsqd: modulo 2**64; an empty word is 0.

    Raises:
        ValueError: If there is another character than an ASCII digit.
    """
    if not (word or b"0").isdigit():
        raise ValueError(f"{word!r} is not a number")
    # 10**64 is a multiple of 2**64, so digits before the last 64 digits do not change the result.
    return int(word[-64:] or b"0") % 2**64


def int64(value: int) -> int:
    """Convert to a signed integer of 64 bits: add or subtract 2**64 until the value fits."""
    return (value + 2**63) % 2**64 - 2**63


def duration(seconds: float) -> str:
    """Format a duration like Go: 906.332432ms, 1.5s, 1h2m3s."""
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
