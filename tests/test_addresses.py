"""Addresses as users write them."""

import pytest

from gnsq.addresses import joined, parse_address, parse_addresses


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("host:4150", ("host", 4150)),
        ("host", ("host", 4150)),
        ("127.0.0.1:1", ("127.0.0.1", 1)),
        ("[::1]:4150", ("::1", 4150)),
        ("[::1]", ("::1", 4150)),
    ],
)
def test_address_is_split(text, address):
    assert parse_address(text) == address
    assert parse_address(joined(*address)) == address


@pytest.mark.parametrize("text", ["", ":4150", "host:", "host:port", "host:0", "host:65536", "[::1", "[::1]x", "::1"])
def test_bad_address_is_refused_with_its_value(text):
    with pytest.raises(ValueError, match="address"):
        parse_address(text)


def test_one_or_many():
    assert parse_addresses("a") == {"a:4150"}
    assert parse_addresses(["a", "b:1", "a:4150"]) == {"a:4150", "b:1"}
    assert parse_addresses(()) == set()


@pytest.mark.parametrize("value", [None, 4150, {"a": 1}, [4150], ["a", None]])
def test_wrong_type_is_a_type_error(value):
    with pytest.raises(TypeError, match="must be"):
        parse_addresses(value)
