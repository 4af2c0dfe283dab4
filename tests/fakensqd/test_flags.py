"""The tables of the two programs' flags."""

import dataclasses

import pytest

from fakensqd.flags import LOOKUPD_FLAGS, NSQD_FLAGS, default_node_id, options_of, without_meaning
from fakensqd.goflags import parse
from fakensqd.options import LookupdOptions, NsqdOptions

TABLES = [
    pytest.param(NSQD_FLAGS, NsqdOptions, 53, id="nsqd"),
    pytest.param(LOOKUPD_FLAGS, LookupdOptions, 10, id="nsqlookupd"),
]


@pytest.mark.parametrize(("flags", "options", "count"), TABLES)
def test_the_tables_are_whole(flags, options, count):
    assert len({flag.name for flag in flags}) == len(flags) == count
    assert {flag.field for flag in flags} - {""} <= {field.name for field in dataclasses.fields(options)}


@pytest.mark.parametrize(("flags", "options", "count"), TABLES)
def test_the_defaults_make_options(flags, options, count):
    made = options(**options_of(flags, {}, hostname="h.example"))

    assert made.broadcast_address == "h.example"
    assert made.tcp_address.startswith("0.0.0.0:416" if options is LookupdOptions else "0.0.0.0:415")


def test_flags_make_options():
    words = "-tcp-address=127.0.0.1:0 --lookupd-tcp-address a:1 --lookupd-tcp-address=b:2 --msg-timeout 1m --node-id=7"
    values = parse(NSQD_FLAGS, [*words.split(), "--broadcast-address=b", "--snappy=false", "--data-path=d"])
    made = NsqdOptions(**options_of(NSQD_FLAGS, values, hostname="h"))

    assert (made.tcp_address, made.lookupd_tcp_addresses, made.msg_timeout) == ("127.0.0.1:0", ("a:1", "b:2"), 60.0)
    assert (made.node_id, made.broadcast_address, made.snappy, made.data_path) == (7, "b", False, "d")


def test_no_data_path_is_the_current_directory():
    assert options_of(NSQD_FLAGS, {"data-path": ""}, hostname="h")["data_path"] == "."


def test_the_default_node_id():
    # As nsqd says it on a host of this name.
    assert default_node_id("vm") == 617
    assert options_of(NSQD_FLAGS, {}, hostname="vm")["node_id"] == 617


def test_flags_that_do_nothing_are_known():
    values = parse(NSQD_FLAGS, ["--verbose", "--sync-every=1", "--snappy", "--log-level=info"])

    assert without_meaning(NSQD_FLAGS, values) == ["verbose", "sync-every"]
