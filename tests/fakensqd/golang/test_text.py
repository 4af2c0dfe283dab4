"""Go's texts."""

import pytest

from fakensqd.golang.text import base10, duration, int64, quote


@pytest.mark.parametrize(
    ("data", "quoted"),
    [
        pytest.param(b'a"b\\', b'"a\\"b\\\\"', id="quote and backslash"),
        pytest.param(b"\a\b\f\n\r\t\v", rb'"\a\b\f\n\r\t\v"', id="short escapes"),
        pytest.param(b"\x00\x1f\x7f", rb'"\x00\x1f\x7f"', id="control"),
        pytest.param(b"\xff\xc3", rb'"\xff\xc3"', id="not UTF-8"),
        pytest.param("ü€😀".encode(), '"ü€😀"'.encode(), id="printable"),
        pytest.param("\u00a0\u200b".encode(), rb'"\u00a0\u200b"', id="not printable"),
        pytest.param("\U000e0001".encode(), rb'"\U000e0001"', id="not printable, long"),
    ],
)
def test_bytes_are_quoted_like_go(data, quoted):
    assert quote(data) == quoted


@pytest.mark.parametrize(
    ("word", "value"),
    [(b"", 0), (b"0", 0), (b"007", 7), (b"18446744073709551617", 1), (b"9" * 9000, 2**64 - 1)],
    ids=["empty", "zero", "zeros", "2**64 + 1", "very long"],
)
def test_base10_is_modulo_2_to_the_64(word, value):
    # 10**9000 is a multiple of 2**64.
    assert base10(word) == value


@pytest.mark.parametrize("word", [b"-1", b"+1", b"1.5", b"0x1", b" 1", "\uff11".encode()])
def test_base10_refuses_other_characters_than_digits(word):
    with pytest.raises(ValueError, match="is not a number"):
        base10(word)


def test_int64_overflows():
    assert [int64(value) for value in (0, 2**63 - 1, 2**63, 2**64, -(2**63) - 1)] == [
        0,
        2**63 - 1,
        -(2**63),
        0,
        2**63 - 1,
    ]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0s"),
        (1e-9, "1ns"),
        (1.5e-6, "1.5µs"),
        (0.906332432, "906.332432ms"),
        (1.0, "1s"),
        (1.5, "1.5s"),
        (60.0, "1m0s"),
        (3723.25, "1h2m3.25s"),
        (360000.0, "100h0m0s"),
    ],
)
def test_duration_is_formatted_like_go(seconds, text):
    assert duration(seconds) == text
