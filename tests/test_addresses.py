"""Parsing and formatting of addresses."""

import pytest

from gnsq.addresses import format_address, parse_address, parse_addresses
from gnsq.discovery import parse_lookupds


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("host:4150", ("host", 4150)),
        ("host", ("host", 4150)),
        ("[::1]:4150", ("::1", 4150)),
        ("[::1]", ("::1", 4150)),
        ("/run/nsqd.sock", ("/run/nsqd.sock", 0)),
        ("/" + "x" * 106, ("/" + "x" * 106, 0)),
    ],
)
def test_address_is_split(text, address):
    assert parse_address(text) == address
    assert parse_address(format_address(*address)) == address


@pytest.mark.parametrize("text", ["", ":4150", "host:", "host:port", "host:0", "host:65536", "[::1", "[::1]x", "::1"])
def test_bad_address_is_refused_with_its_value(text):
    with pytest.raises(ValueError, match="address"):
        parse_address(text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("http://nsqd:4161", "address 'http://nsqd:4161' is a URL; .* nsqlookupd as a URL, in lookupd_http_addresses"),
        ("http://user:hush@nsqd:4161", r"^an address with an @ \(not shown: it may have a password\) is a URL"),
        ("user:hush@nsqd", r"^an address with an @ \(not shown: it may have a password\) is not 'host:port'$"),
        ("a:1,b:2", "address 'a:1,b:2' is not one 'host:port': give several as a list"),
        ("nsqd:4150 ", "port '4150 ' of address 'nsqd:4150 ' is not a number from 1 to 65535"),
        ("[nsqd:4150]", "has no host name or IP address before its port"),
        ("x" * 256, "has no host name or IP address before its port"),
        ("/" + "\xfc" * 54, "the path of the unix socket '/\xfc+' has 109 bytes, more than 107: give a shorter one"),
    ],
)
def test_address_that_is_something_else_is_refused_with_what_to_do(text, words):
    with pytest.raises(ValueError, match=words) as caught:
        parse_address(text)
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize("value", [("h", 4150), ["h", 4150], [("h", 4150)], ["a:1", ("h", 4150)]])
@pytest.mark.parametrize("parse", [parse_addresses, parse_lookupds])
def test_host_and_port_apart_are_refused_with_the_address_to_give(parse, value):
    with pytest.raises(TypeError, match="an address is one str: give 'h:4150' in place of a host and a port"):
        parse(value)


@pytest.mark.parametrize("value", [None, 4150, {"a": 1}, [4150], ["a", None]])
def test_address_of_a_wrong_type_is_a_type_error(value):
    with pytest.raises(TypeError, match="must be"):
        parse_addresses(value)


def test_addresses_keep_their_order_without_duplicates():
    assert parse_addresses(["b", "a:1", "b:4150", "a"]) == ["b:4150", "a:1", "a:4150"]
    assert parse_addresses("b") == ["b:4150"]
    assert parse_addresses(()) == []
