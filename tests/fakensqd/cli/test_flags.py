"""Flags of the two programs: their tables, and the values that are read and refused."""

import dataclasses

import pytest

from fakensqd import FakeNsqd
from fakensqd.cli.flags import (
    FlagError,
    flags_of,
    from_config_file,
    ignored_flags,
    options_of,
    parse,
)
from fakensqd.options import LookupdOptions, NsqdOptions

NSQD_FLAGS, LOOKUPD_FLAGS = flags_of("nsqd"), flags_of("nsqlookupd")
TABLES = [
    pytest.param(NSQD_FLAGS, NsqdOptions, 53, id="nsqd"),
    pytest.param(LOOKUPD_FLAGS, LookupdOptions, 10, id="nsqlookupd"),
]


@pytest.mark.parametrize(("flags", "options", "count"), TABLES)
def test_table_has_every_flag_of_the_real_program(flags, options, count):
    assert len({flag.name for flag in flags}) == len(flags) == count
    assert {flag.field for flag in flags} - {""} <= {field.name for field in dataclasses.fields(options)}


@pytest.mark.parametrize(("flags", "options", "count"), TABLES)
def test_defaults_of_the_flags_make_options(flags, options, count):
    given = options_of(flags, {}, hostname="h.example")
    made = options(**given)

    assert made.broadcast_address == "h.example"
    assert made.tcp_address == ("0.0.0.0:4160" if options is LookupdOptions else "0.0.0.0:4150")


def nsqd_options(*arguments, hostname="h"):
    return options_of(NSQD_FLAGS, parse(NSQD_FLAGS, arguments), hostname=hostname)


def test_values_of_flags_make_options():
    options = nsqd_options(
        *["-tcp-address=127.0.0.1:0", "--lookupd-tcp-address", "a:1", "--lookupd-tcp-address=b:2", "--msg-timeout"],
        *["1m", "--node-id=7", "--broadcast-address=b", "--snappy=false"],
    )

    expected = {
        "tcp_address": "127.0.0.1:0",
        "lookupd_tcp_addresses": ("a:1", "b:2"),
        "msg_timeout": 60.0,
        "node_id": 7,
        "broadcast_address": "b",
        "snappy": False,
    }
    assert options.items() >= expected.items()


# nsqd, too, takes the lowest version for an empty one.
@pytest.mark.parametrize(
    ("flags", "flag"),
    [
        pytest.param(flags, flag, id=flag.name)
        for flags in (NSQD_FLAGS, LOOKUPD_FLAGS)
        for flag in flags
        if flag.field and flag.name != "tls-min-version"
    ],
)
def test_empty_value_is_refused_or_is_the_value(flags, flag):
    try:
        values = parse(flags, [f"--{flag.name}="])
    except FlagError:
        return

    assert options_of(flags, values, hostname="h")[flag.field] in ("", ("",))


def test_ignored_flags_are_listed():
    arguments = ["--verbose", "--e2e-processing-latency-percentile=0.9,0.5", "--snappy", "--log-level=info"]
    values = parse(NSQD_FLAGS, arguments)

    assert ignored_flags(NSQD_FLAGS, values) == ["verbose", "e2e-processing-latency-percentile"]


@pytest.mark.parametrize(
    "argument",
    [
        *["--mem-queue-size=-1", "--max-msg-size=0", "--max-body-size=-1", "--max-heartbeat-interval=0s"],
        *["--broadcast-tcp-port=70000", "--max-rdy-count=-1", "--lookupd-tcp-address=foo"],
    ],
)
def test_value_that_nsqd_starts_with_is_accepted(argument):
    FakeNsqd(**nsqd_options(argument))


# --- reading ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "values"),
    [
        ([], {}),
        (["-log-prefix=a"], {"log-prefix": "a"}),
        (["--log-prefix", "a"], {"log-prefix": "a"}),
        (["--log-prefix="], {"log-prefix": ""}),
        (["--log-prefix", "-a"], {"log-prefix": "-a"}),
        (["--log-prefix=a=b"], {"log-prefix": "a=b"}),
        (["--log-prefix=a", "--log-prefix=b"], {"log-prefix": "b"}),
        (["--node-id=-7"], {"node-id": -7}),
        (["--node-id=0x1F"], {"node-id": 31}),
        (["--msg-timeout=1m30s"], {"msg-timeout": 90.0}),
        (["--snappy"], {"snappy": True}),
        (["--snappy=F"], {"snappy": False}),
        (["--snappy", "false", "--log-prefix=ignored"], {"snappy": True}),
        (["--auth-http-address=a", "-auth-http-address", "b"], {"auth-http-address": ("a", "b")}),
        (["--log-level=WARN"], {"log-level": "warn"}),
        (["--tls-required"], {"tls-required": "true"}),
        (["--tls-required=TCP-HTTPS"], {"tls-required": "tcp-https"}),
        (["--tls-required=0"], {"tls-required": "false"}),
        (["--tls-min-version=TLS1.2"], {"tls-min-version": "tls1.2"}),
        (["--tls-min-version="], {"tls-min-version": "tls1.0"}),
        (["--node-id=9", "--", "--node-id=x"], {"node-id": 9}),
        (["-", "--node-id=x"], {}),
        (["word", "--node-id=x"], {}),
        (["-h"], {"help": True}),
        (["--help"], {"help": True}),
    ],
    ids=str,
)
def test_arguments_are_read_as_flags(arguments, values):
    assert parse(NSQD_FLAGS, arguments) == values


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--foo=1"], "flag provided but not defined: -foo"),
        (["---node-id"], "flag provided but not defined: --node-id"),
        (["--node-id"], "flag needs an argument: -node-id"),
        (["--node-id=x"], 'invalid value "x" for flag -node-id: not a whole number'),
        (["--msg-timeout=60"], 'invalid value "60" for flag -msg-timeout: not a duration'),
        (["--snappy=maybe"], 'invalid value "maybe" for flag -snappy: not true or false'),
        (["--tls-min-version=ssl3"], 'invalid value "ssl3" for flag -tls-min-version: '),
        (["--log-level=loud"], 'invalid value "loud" for flag -log-level: not one of debug, info, warn, error, fatal'),
        (["--tls-required=yes"], 'invalid value "yes" for flag -tls-required: not true or false'),
    ],
    ids=str,
)
def test_bad_flags_are_refused(arguments, text):
    with pytest.raises(FlagError) as caught:
        parse(NSQD_FLAGS, arguments)

    assert str(caught.value).startswith(text)


# --- configuration files, usage ---------------------------------------------------------------------------------------


def test_configuration_file_is_read_by_its_own_keys():
    document = {
        "log_prefix": "a",
        "id": 7,
        "msg_timeout": "1m",
        "snappy": False,
        "nsqlookupd_tcp_addresses": ["a", "b"],
        "e2e_processing_latency_percentiles": [0.5, 1],
        "tls_required": True,
        "other": 1,
    }

    assert from_config_file(NSQD_FLAGS, document) == {
        "log-prefix": "a",
        "node-id": 7,
        "msg-timeout": 60.0,
        "snappy": False,
        "lookupd-tcp-address": ("a", "b"),
        "e2e-processing-latency-percentile": "1",
        "tls-required": "true",
    }


@pytest.mark.parametrize("value", [250, "250"])
def test_duration_without_a_unit_is_in_milliseconds_in_a_file(value):
    assert from_config_file(NSQD_FLAGS, {"msg_timeout": value}) == {"msg-timeout": 0.25}


@pytest.mark.parametrize("document", [{"id": "x"}, {"id": [[1]]}, {"log_prefix": {}}], ids=str)
def test_bad_value_in_a_file_is_refused(document):
    with pytest.raises(FlagError, match="failed to resolve"):
        from_config_file(NSQD_FLAGS, document)
