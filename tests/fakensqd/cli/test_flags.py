"""The tables of the two programs' flags."""

import dataclasses
import re

import pytest

from fakensqd import FakeNsqd
from fakensqd.cli.flags import (
    LOOKUPD_FLAGS,
    NSQD_FLAGS,
    check_start,
    default_node_id,
    faults_flags,
    ignored_flags,
    options_of,
)
from fakensqd.golang.flags import parse
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


@pytest.mark.parametrize(
    ("words", "on", "address"),
    [
        ([], None, "127.0.0.1:4153"),
        (["--faults-over-http"], True, "127.0.0.1:4153"),
        (["--faults-http-address=127.0.0.1:0"], True, "127.0.0.1:0"),
        (["--faults-http-address="], True, ""),
        (["--faults-http-address=127.0.0.1:0", "--faults-over-http=false"], False, "127.0.0.1:0"),
    ],
    ids=str,
)
def test_faults_over_http_are_asked_for(words, on, address):
    flags = (*NSQD_FLAGS, *faults_flags("nsqd"))
    options = options_of(flags, parse(flags, words), hostname="h")

    assert (options.get("faults_over_http"), options["faults_http_address"]) == (on, address)


def test_no_data_path_is_the_current_directory():
    assert options_of(NSQD_FLAGS, {"data-path": ""}, hostname="h")["data_path"] == "."


def test_the_default_node_id():
    # As nsqd says it on a host of this name.
    assert default_node_id("vm") == 617
    assert options_of(NSQD_FLAGS, {}, hostname="vm")["node_id"] == 617


def test_flags_that_do_nothing_are_known():
    values = parse(NSQD_FLAGS, ["--verbose", "--sync-every=1", "--snappy", "--log-level=info"])

    assert ignored_flags(NSQD_FLAGS, values) == ["verbose", "sync-every"]


@pytest.fixture
def no_pem(tmp_path):
    path = tmp_path / "file"
    path.write_text("nothing")
    return str(path)


REFUSED = [
    pytest.param({"max_deflate_level": 0}, "--max-deflate-level must be [1,9]", id="deflate"),
    pytest.param({"node_id": 1024}, "--node-id must be [0,1024)", id="node id"),
    pytest.param(
        {"tls_required": "true"}, "cannot require TLS client connections without TLS key and cert", id="required"
    ),
    pytest.param(
        {"tls_client_auth_policy": "x"}, "cannot require TLS client connections without TLS key and cert", id="policy"
    ),
    pytest.param(
        {"tls_cert": "/nope", "tls_key": "/nope"},
        "failed to build TLS config - open /nope: no such file or directory",
        id="no certificate",
    ),
    pytest.param(
        {"tls_cert": "FILE"},
        "failed to build TLS config - tls: failed to find any PEM data in certificate input",
        id="no PEM",
    ),
    pytest.param(
        {"tls_key": "FILE"}, "failed to build TLS config - open : no such file or directory", id="a key alone"
    ),
    pytest.param(
        {"tls_root_ca_file": "/nope"},
        "failed to build client TLS config - open /nope: no such file or directory",
        id="no root",
    ),
    pytest.param(
        {"tls_root_ca_file": "FILE"},
        "failed to build client TLS config - failed to append certificate to pool",
        id="no root in it",
    ),
]


@pytest.mark.parametrize(("given", "text"), REFUSED)
def test_what_nsqd_does_not_start_with(given, text, no_pem):
    options = options_of(NSQD_FLAGS, {}, hostname="h")
    options |= {name: no_pem if value == "FILE" else value for name, value in given.items()}

    with pytest.raises(ValueError, match=re.escape(text)):
        check_start(options)


def test_what_nsqd_starts_with(tls_options):
    check_start(options_of(NSQD_FLAGS, {}, hostname="h"))
    check_start(options_of(NSQD_FLAGS, {}, hostname="h") | tls_options | {"tls_root_ca_file": tls_options["tls_cert"]})


@pytest.mark.parametrize(
    "word",
    [
        *["--mem-queue-size=-1", "--max-msg-size=0", "--max-body-size=-1", "--max-heartbeat-interval=0s"],
        *["--broadcast-tcp-port=70000", "--max-rdy-count=-1", "--lookupd-tcp-address=foo"],
    ],
)
def test_what_nsqd_takes(word):
    FakeNsqd(**options_of(NSQD_FLAGS, parse(NSQD_FLAGS, [word]), hostname="h"))
