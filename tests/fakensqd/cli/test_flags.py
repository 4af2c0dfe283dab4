"""The flags of the two programs: which there are, and the options that their values make."""

import dataclasses

import click
import pytest

from fakensqd import FakeLookupd, FakeNsqd
from fakensqd.cli.flags import programs
from fakensqd.options import OWN_OPTIONS, LookupdOptions, NsqdOptions

NSQD, LOOKUPD = programs()


def given(*arguments, program=NSQD):
    """Return the options that a command line sets, without those that have no effect."""
    context = program.make_context(program.name, list(arguments))
    ignored = {option.name for option in program.ignored}
    return {name: value for name, value in context.params.items() if value not in (None, ()) and name not in ignored}


# Those of nsqd and nsqlookupd 1.3.0, without config and version.
@pytest.mark.parametrize(
    ("program", "options", "count"),
    [pytest.param(NSQD, NsqdOptions, 51, id="nsqd"), pytest.param(LOOKUPD, LookupdOptions, 8, id="nsqlookupd")],
)
def test_program_has_every_flag_of_the_real_one(program, options, count):
    names = {option.name for option in program.params}
    fields = {field.name for field in dataclasses.fields(options)} - {*OWN_OPTIONS}

    assert fields <= names
    assert len(names - {"config", "version"}) == count


@pytest.mark.parametrize(("program", "server", "port"), [(NSQD, FakeNsqd, 4150), (LOOKUPD, FakeLookupd, 4160)])
def test_defaults_make_a_server(program, server, port):
    assert server(**given(program=program)).tcp_address == f"127.0.0.1:{port}"


def test_variable_of_the_image_says_where_servers_listen(monkeypatch):
    monkeypatch.setenv("FAKENSQD_HOST", "0.0.0.0")
    program, _ = programs()

    assert given("--msg-timeout=5s", program=program)["tcp_address"] == "0.0.0.0:4150"


# The command lines with which test suites of other clients start nsqd have such flags.
@pytest.mark.parametrize(
    ("arguments", "options"),
    [
        (["-tcp-address=127.0.0.1:0"], {"tcp_address": "127.0.0.1:0"}),
        (["--tcp-address", "127.0.0.1:0"], {"tcp_address": "127.0.0.1:0"}),
        (["-tcp-address", "127.0.0.1:0"], {"tcp_address": "127.0.0.1:0"}),
        (["--lookupd-tcp-address", "a:1", "-lookupd-tcp-address=b:2"], {"lookupd_tcp_addresses": ("a:1", "b:2")}),
        (["--tls-cert=c", "-tls-key=k", "--tls-root-ca-file", "r"], {"tls_cert": "c", "tls_root_ca_file": "r"}),
        (["--msg-timeout=60s"], {"msg_timeout": 60.0}),
        (["--msg-timeout=1h30m"], {"msg_timeout": 5400.0}),
        (["--max-heartbeat-interval=0s"], {"max_heartbeat_interval": 0.0}),
        (["--node-id=7", "--node-id=8"], {"node_id": 8}),
        (["--snappy"], {"snappy": True}),
        (["-snappy=false", "-deflate=T"], {"snappy": False, "deflate": True}),
        (["--log-level=WARN"], {"log_level": "warn"}),
        (["--tls-required", "--node-id=7"], {"tls_required": "true", "node_id": 7}),
        (["-tls-required=TCP-HTTPS"], {"tls_required": "tcp-https"}),
        (["--verbose", "--verbose=true", "-worker-id", "--log-prefix=-a", "--sync-timeout=2s", "--data-path="], {}),
    ],
    ids=str,
)
def test_values_of_flags_make_options(arguments, options):
    assert given(*arguments).items() >= options.items()


@pytest.mark.parametrize(
    ("argument", "text"),
    [
        ("--foo=1", "No such option '--foo'"),
        ("--node-id=x", "node_id must be a whole number, not 'x'"),
        ("--msg-timeout=1x", "msg_timeout must be a number of seconds, or a duration such as 500ms"),
        ("--snappy=maybe", "'maybe' is not a valid boolean"),
        ("--log-level=loud", "'loud' is not one of 'debug', 'info', 'warn', 'error', 'fatal'"),
        ("--tls-required=yes", "'yes' is not one of 'false', 'f', '0', 'tcp-https', 'true', 't', '1'"),
        ("-config=nsqd.toml", "fakensqd reads no configuration file: give its values as flags"),
    ],
    ids=str,
)
def test_bad_flags_are_refused(argument, text):
    with pytest.raises(click.UsageError) as caught:
        given(argument)

    assert text in caught.value.format_message()


# As nsqd, which starts with them.
@pytest.mark.parametrize(
    "argument",
    [
        *["--mem-queue-size=-1", "--max-msg-size=0", "--max-body-size=-1", "--max-heartbeat-interval=0s"],
        *["--broadcast-tcp-port=70000", "--max-rdy-count=-1", "--lookupd-tcp-address=foo"],
    ],
)
def test_value_that_nsqd_starts_with_is_accepted(argument):
    FakeNsqd(**given(argument))
