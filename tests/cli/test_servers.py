"""Connection options of all commands: where they come from, what is refused, and that they are really used."""

import ast
import contextlib
import re
from pathlib import Path

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gnsq
from fakensqd import FakeAuthServer, FakeNsqd, Grant
from gnsq.cli.command import Command
from gnsq.cli.servers import SETTINGS, load_cluster, option_texts, target_of
from tests.kit import bodies, refused_port
from tests.kit.commands import invoke
from tests.strategies import json_values, texts, toml

FILE = """
    cluster = "local"
    [clusters.local]
    nsqd = "local:4150"
    [clusters.other]
    lookupd = ["lookupd-1:4161", "lookupd-2"]
    timeout = 3
    tls = true
    compression = "deflate"
"""


@pytest.fixture
def load():
    """Run a command with connection options; returns its cluster, or the text of its error."""

    def load(*arguments, **environment):
        clusters = []

        @click.command(cls=Command)
        def command(cluster, stop):
            clusters.append(cluster)

        result = invoke(*arguments, command=command, **environment)
        assert (result.exit_code, len(clusters)) in [(0, 1), (2, 0)], result.output
        return clusters[0] if clusters else result.stderr.partition("Error: ")[2].strip()

    return load


@pytest.fixture
def file(config_folder):
    """Write the default file."""
    path = config_folder / "gnsq.toml"
    path.write_text(FILE)
    return path


# --- where settings come from


def test_variable_may_have_several_addresses(load):
    assert load(GNSQ_NSQD="a:4150, b:4150 c").nsqds == ("a:4150", "b:4150", "c:4150")


def test_named_cluster_of_the_file(load, file):
    cluster = load(GNSQ_CLUSTER="other")

    assert (cluster.nsqds, cluster.lookupds, cluster.timeout) == ((), ("lookupd-1:4161", "lookupd-2"), 3.0)
    assert (cluster.connection["tls_v1"], cluster.connection["deflate"]) == (True, True)


PRECEDENCE = [
    pytest.param(["--timeout", "1s"], {"GNSQ_TIMEOUT": "2"}, 1.0, id="command line"),
    pytest.param([], {"GNSQ_TIMEOUT": "2000ms"}, 2.0, id="variable"),
    pytest.param([], {}, 3.0, id="file"),
]


@pytest.mark.parametrize(("arguments", "environment", "timeout"), PRECEDENCE)
def test_precedence(load, file, arguments, environment, timeout):
    assert load("--cluster", "other", *arguments, **environment).timeout == timeout


def test_variable_may_turn_off_a_flag_of_the_file(load, file):
    assert "tls_v1" not in load("--cluster", "other", GNSQ_TLS="0").connection


OF_OTHER = ("lookupd-1:4161", "lookupd-2")
NOT_MIXED = [
    pytest.param(["--cluster", "other", "--nsqd", "given:1"], {}, ("given:1",), (), (), id="option instead of file"),
    pytest.param([], {"CLUSTER": "other", "NSQD": "given:1"}, ("given:1",), (), (), id="variable instead of file"),
    pytest.param(
        ["--cluster", "other"], {"NSQD": "set:1", "NSQD_HTTP": "set:2"}, (), OF_OTHER, (), id="file of the command line"
    ),
    pytest.param(["--nsqd", "given:1"], {"LOOKUPD": "set:1", "NSQD_HTTP": "set:2"}, ("given:1",), (), (), id="option"),
    pytest.param(["--nsqd-http", "given:2"], {"NSQD": "set:1"}, ("set:1",), (), ("given:2",), id="only HTTP is added"),
]


@pytest.mark.parametrize(("arguments", "variables", "nsqds", "lookupds", "http"), NOT_MIXED)
def test_addresses_of_two_sources_are_not_mixed(load, file, arguments, variables, nsqds, lookupds, http):
    cluster = load(*arguments, **{f"GNSQ_{name}": value for name, value in variables.items()})

    assert (cluster.nsqds, cluster.lookupds, cluster.nsqds_http) == (nsqds, lookupds, http)


def test_paths_in_the_file_are_relative_to_it(load, config_folder, file, fakensqd_certificates):
    (config_folder / "ca.pem").write_bytes(Path(fakensqd_certificates.ca).read_bytes())
    (config_folder / "secret").write_text("s\n")
    file.write_text('cluster = "a"\n[clusters.a]\nnsqd = "a"\ntls_ca = "ca.pem"\nauth_secret_file = "secret"\n')

    cluster = load()

    assert cluster.connection["tls_options"] == {"ca_certs": str(config_folder / "ca.pem")}
    assert cluster.http["ca_certs"] == str(config_folder / "ca.pem")
    assert cluster.connection["auth_secret"] == b"s"


def test_target_is_a_second_cluster_with_the_settings_of_the_first(file):
    seen = []

    @click.command(cls=Command)
    @click.option("--to-nsqd", multiple=True)
    @click.option("--to-cluster")
    def copy(cluster, stop, to_nsqd, to_cluster):
        target = target_of(cluster, to_cluster, to_nsqd, ())
        seen.append((cluster.nsqds, target and (target.nsqds or target.lookupds, target.timeout)))

    invoke("--nsqd", "a", "--timeout", "7", command=copy)
    invoke("--nsqd", "a", "--timeout", "7", "--to-nsqd", "b", command=copy)
    invoke("--nsqd", "a", "--timeout", "7", "--to-cluster", "other", command=copy)

    assert seen == [
        (("a:4150",), None),
        (("a:4150",), (("b:4150",), 7.0)),
        (("a:4150",), (("lookupd-1:4161", "lookupd-2"), 3.0)),
    ]


def test_help_of_a_command_refers_to_the_connection_options():
    own, connection = invoke("pub", "--help").output, invoke("help", "connection").output

    assert "--from-line" in own
    assert "gnsq help connection" in own.replace("\n  ", " ")
    assert "--tls-ca" not in own
    assert all(f"--{name.replace('_', '-')}" in connection for name in SETTINGS)


def test_summaries_are_not_cut():
    assert "..." not in invoke("-h").output.partition("Commands:")[2]
    assert re.fullmatch(r"gnsq \d+\.\d+.*\n", invoke("--version").output)


def test_unknown_command_is_named_with_a_similar_one():
    result = invoke("topic", "lst")

    assert result.exit_code == 2
    assert "there is no command 'lst'; did you mean list?" in result.stderr


# --- what is refused

REFUSED_FILES = [
    pytest.param("[clusters.a]\nnsqds = 'a'", r"clusters.a.nsqds is unknown; did you mean nsqd\? settings are nsqd,"),
    pytest.param("[clusters.a]\ntls_ca = 'no.pem'", "clusters.a.tls_ca: File '.*/no.pem' does not exist"),
    pytest.param(
        "[cluster.a]\nnsqd = 'a'", r"cluster must be the name of a cluster, and \[clusters.NAME\] its table, not "
    ),
    pytest.param(
        "cluster = 'lokal'\n[clusters.local]", "no cluster 'lokal', which cluster names; did you mean local[?]"
    ),
    pytest.param("clusters = 1", r"clusters must be tables \[clusters.NAME\]"),
    pytest.param("nsqd = 'a'", r"nsqd is unknown; known are cluster and the tables \[clusters.NAME\]"),
    pytest.param("cluster = ", "Invalid value"),
]


@pytest.mark.parametrize(("text", "error"), REFUSED_FILES)
def test_what_is_wrong_in_the_file_is_named_with_its_path(load, file, text, error):
    if not text.startswith(("cluster ", "[cluster.")):
        text = f"cluster = 'a'\n{text}" if not text.startswith("nsqd") else text
    file.write_text(text)

    assert re.fullmatch(f"{file}: .*{error}.*", load(), re.DOTALL)


def test_unknown_cluster_gets_a_similar_one_suggested(load, file):
    assert load("--cluster", "othr") == (
        f"{file}: there is no cluster 'othr', which --cluster names; did you mean other? clusters are local, other"
    )


def test_cluster_without_a_file_names_the_missing_file(load, config_folder):
    assert load("--cluster", "a") == (
        f"{config_folder}/gnsq.toml: No such file or directory; it would have the cluster 'a' of --cluster: write it, "
        "or give another file with --config"
    )


def test_command_without_an_address_says_how_to_give_one(load, config_folder):
    assert load() == (
        "no TCP address of an nsqd, and no nsqlookupd: give --nsqd or --lookupd, set GNSQ_NSQD or GNSQ_LOOKUPD, "
        f"or name a cluster in the file ({config_folder}/gnsq.toml, or --config FILE) with --cluster"
    )


REFUSED = [
    pytest.param(["--nsqd", "http://a:4161"], "is a URL; .* only nsqlookupd as a URL, in --lookupd", id="URL"),
    pytest.param(["--nsqd", "::1:4150"], r"IPv6 is written in brackets, as '\[::1\]:4150'", id="IPv6"),
    pytest.param(["--nsqd", "a", "--timeout", "inf"], "timeout", id="no limit"),
    pytest.param(["--nsqd", "a", "--tls-ca", __file__], f"TLS: --tls-ca '{__file__}' can't", id="no certificate"),
    pytest.param(["--nsqd", "a", "--tls-key", __file__], "--tls-key is given without --tls-cert", id="key alone"),
]


@pytest.mark.parametrize(("arguments", "error"), REFUSED)
def test_refused_option(load, arguments, error):
    assert re.search(error, load(*arguments))


VARIABLES = [
    pytest.param("NSQD", "a:b", "GNSQ_NSQD: port 'b' of address 'a:b' is not", id="nsqd"),
    pytest.param("LOOKUPD", "a:b", "GNSQ_LOOKUPD: 'a:b': port must be a number", id="lookupd"),
    pytest.param("TLS", "maybe", "the environment variable GNSQ_TLS: 'maybe' is not", id="switch"),
    pytest.param("COMPRESSION", "zip", "the environment variable GNSQ_COMPRESSION: 'zip' is not", id="choice"),
    pytest.param("TLS_CA", __file__, f"TLS: GNSQ_TLS_CA '{__file__}' can't be used", id="no certificate"),
    pytest.param("AUTH_SECRET_FILE", "/dev/null", "GNSQ_AUTH_SECRET_FILE /dev/null is empty", id="empty"),
    pytest.param("CLUSTER", "othr", "there is no cluster 'othr', which GNSQ_CLUSTER names; did you", id="cluster"),
    pytest.param("CONFIG", "no.toml", "the environment variable GNSQ_CONFIG: File 'no.toml' does not", id="config"),
]


@pytest.mark.parametrize(("name", "value", "error"), VARIABLES)
def test_error_names_the_variable_that_gave_the_value(load, file, name, value, error):
    assert error in load(**{f"GNSQ_{name}": value})


# --- secrets


def test_secret_and_password_are_in_no_output(load, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("hunter2\n")
    lookupd = f"http://user:hunter3@127.0.0.1:{refused_port()}"
    options = ["--lookupd", lookupd, "--auth-secret-file", secret, "--timeout", "0.5", "-vv"]
    with (
        FakeAuthServer({"other": [Grant()]}).in_thread() as auth,
        FakeNsqd(auth_http_addresses=auth.http_address).in_thread() as nsqd,
    ):
        result = invoke("pub", "t", "-m", "1", "--nsqd", nsqd.tcp_address, *options)

    assert result.exit_code == 1
    assert "E_UNAUTHORIZED" in result.stderr or "E_AUTH_FAILED" in result.stderr
    assert "hunter" not in result.output + result.stderr
    assert "hunter" not in repr(load(*options))


def test_verbose_logs_connections_and_twice_commands(fakensqd):
    once, twice = (invoke("ping", "--nsqd", fakensqd.tcp_address, option).stderr for option in ("-v", "-vv"))

    assert ": connected, nsqd 1.3.0" in once
    assert "sent IDENTIFY, " not in once
    assert f"DEBUG: {fakensqd.tcp_address}: " in twice
    assert "sent IDENTIFY, " in twice


# --- errors are in the words of the command line


def plain_strings(source):
    """Return the texts of a module that are not parts of an f-string."""
    tree = ast.parse(source)
    parts = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in ast.walk(node)}
    constants = [node for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in parts]
    return [node.value for node in constants if isinstance(node.value, str)]


def test_each_option_that_an_error_may_name_has_its_flag():
    """The hint of an error has options in braces, with the text for Python; other errors have option_text("...")."""
    named, package = set(), Path(gnsq.__file__).parent
    for path in package.rglob("*.py"):
        source = path.read_text()
        named |= set(re.findall(r"option_text\('(.+?)'\)", source))
        if "hint" in source and path.relative_to(package).parts[0] not in ("cli", "spark"):
            named |= {option for text in plain_strings(source) for option in re.findall(r"{([a-z]\w+.*?)}", text)}
    assert named == set(option_texts(dict.fromkeys(SETTINGS, "")))


def test_failure_is_said_once_and_names_the_flag(fakensqd_certificates):
    certificate, key = fakensqd_certificates.server()
    with FakeNsqd(tls_cert=certificate, tls_key=key, tls_required="tcp-https").in_thread() as nsqd:
        result = invoke("pub", "t", "-m", "1", "--nsqd", nsqd.tcp_address, "--timeout", "0.5")

    assert result.exit_code == 1
    assert result.stderr.count("nsqd runs with --tls-required: give --tls") == 1


# --- settings are used


@pytest.mark.parametrize("compression", ["snappy", "deflate"])
def test_tls_auth_and_compression_are_used(tmp_path, fakensqd_certificates, compression):
    certificate, key = fakensqd_certificates.server()
    own_certificate, own_key = fakensqd_certificates.client("cli")
    secret = tmp_path / "secret"
    secret.write_text("s\n")
    tls = {"tls_required": "tcp-https", "tls_cert": certificate, "tls_key": key}
    tls |= {"tls_client_auth_policy": "require-verify", "tls_root_ca_file": fakensqd_certificates.ca}
    with (
        FakeAuthServer({"s": [Grant(topic="^t$")]}).in_thread() as auth,
        FakeNsqd(auth_http_addresses=auth.http_address, record=True, **tls).in_thread() as nsqd,
    ):
        result = invoke(
            *["pub", "t", "-m", "1", "--nsqd", nsqd.tcp_address, "--compression", compression],
            *["--tls-ca", fakensqd_certificates.ca, "--tls-cert", own_certificate, "--tls-key", own_key],
            *["--auth-secret-file", secret],
        )
        published = nsqd.messages("t")
        identified = nsqd.transcript.text()

    assert (result.exit_code, published) == (0, [b"1"]), result.stderr
    assert '"tls_v1":true' in identified
    assert [name for name in ("snappy", "deflate") if f'"{name}":true' in identified] == [compression]


def test_certificate_for_another_name_is_refused_unless_it_is_given(fakensqd_certificates):
    certificate, key = fakensqd_certificates.server("nsqd.example")
    with FakeNsqd(tls_cert=certificate, tls_key=key).in_thread() as nsqd:
        pub = ["pub", "t", "-m", "1", "--nsqd", nsqd.tcp_address]
        refused = invoke(*pub, "--tls-ca", fakensqd_certificates.ca, "--timeout", "0.3")
        by_name = invoke(*pub, "--tls-ca", fakensqd_certificates.ca, "--tls-server-name", "nsqd.example")
        unchecked = invoke(*pub, "--tls-insecure")

    assert (refused.exit_code, by_name.exit_code, unchecked.exit_code) == (1, 0, 0)
    assert "certificate is not valid for '127.0.0.1'" in refused.stderr


def test_addresses_come_from_nsqlookupd(fakecluster):
    result = invoke("pub", "t", "-m", "1", "--lookupd", fakecluster.lookupds[0].http_address)

    assert result.exit_code == 0, result.stderr
    assert [bodies(nsqd, "t") for nsqd in fakecluster.nsqds if "t" in nsqd.broker.topics] == [[b"1"]]


NAMES = st.sampled_from([*SETTINGS, "cluster", "clusters", "a"])


@given(
    st.dictionaries(NAMES, texts | json_values(NAMES), max_size=3),
    st.sampled_from(['cluster = "a"\n[clusters.a]\n', "", "[[clusters]]\n", "[" * 5000, "\ufeff"]),
    st.sampled_from([None, "a", ""]),
)
def test_any_file_is_a_cluster_or_an_error_in_words(tmp_path_factory, settings, head, name):
    path = tmp_path_factory.mktemp("config") / "gnsq.toml"
    lines = [f"{key} = {toml(value)}\n" for key, value in settings.items()]
    path.write_bytes((head + "".join(lines)).encode("utf-8", "surrogateescape"))

    with contextlib.suppress(click.UsageError):
        load_cluster(name, str(path), {})
