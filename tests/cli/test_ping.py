"""gnsq ping: the way of a message, and the usual mistakes with what to do about them."""

import gc
import os
import signal

import gevent
import pytest

from fakensqd import FakeAuthServer, FakeNsqd, on
from fakensqd.faults import answer, error
from fakensqd.nsqd.auth import Grant
from gnsq import NsqdHTTPClient
from gnsq.cli.advice import SENTENCES, Facts, explain
from gnsq.errors import NSQException
from tests.kit import peer, refused_port
from tests.kit.commands import invoke, invoke_json, servers_of

STEPS = ["resolve", "connect", "IDENTIFY", "subscribe", "publish", "receive", "health", "delete topic"]


def failed(document):
    """Return text and advice of each failed step."""
    return {each["step"]: (each["text"], each["advice"]) for each in document["checks"] if each["status"] == "failed"}


def statuses(document):
    return {each["step"]: each["status"] for each in document["checks"]}


# --- the way of a message


def test_output_names_each_step_with_its_time(fakensqd):
    result = invoke("ping", *servers_of(fakensqd))

    lines = [line.split() for line in result.stdout.splitlines()]
    assert lines[0] == ["nsqd", fakensqd.tcp_address]
    assert [line[:2] for line in lines[1:8]] == [["ok", step] for step in STEPS[:-1]]
    assert all(line[3] == "ms" for line in lines[1:8])
    assert lines[-1] == ["all", "steps", "passed"]


def test_given_topic_is_used_and_kept(fakensqd):
    fakensqd.publish("orders", b"waits for no channel")

    status, document = invoke_json("ping", "--topic", "orders", *servers_of(fakensqd))

    assert status == 0
    assert "delete topic" not in statuses(document)
    assert [each["topic_name"] for each in NsqdHTTPClient.from_url(fakensqd.http_address).stats()["topics"]] == [
        "orders"
    ]


def test_paused_topic_is_a_failure_with_advice(fakensqd):
    client = NsqdHTTPClient.from_url(fakensqd.http_address)
    client.create_topic("orders")
    client.pause_topic("orders")

    _, document = invoke_json("ping", "--topic", "orders", "--timeout", 0.3, *servers_of(fakensqd))

    text, advice = failed(document)["receive"]
    assert text == "the message was published to topic orders, and did not come back within 0.3 s"
    assert "paused" in advice


def test_each_nsqd_needs_its_http_address(fakensqd):
    result = invoke("ping", *servers_of(fakensqd), "--nsqd-http", "127.0.0.1:1")

    assert result.exit_code == 2
    assert "--nsqd-http is given 2 times and --nsqd 1 times" in result.stderr


def test_signal_gives_its_status():
    def interrupt(sock):
        os.kill(os.getpid(), signal.SIGTERM)
        while sock.recv(4096):
            pass
        gevent.sleep(60)

    with peer(interrupt) as address:
        result = invoke("ping", "--nsqd", address)

    assert result.exit_code == 143
    greenlets = [each for each in gc.get_objects() if isinstance(each, gevent.Greenlet) and not each.dead]
    assert [each.name for each in greenlets if each.name.startswith("gnsq-ping")] == []


def test_topic_without_a_subscriber_is_deleted(fakensqd):
    fakensqd.add(on.command("SUB"), error("E_SUB_FAILED", "too many consumers"))

    _, document = invoke_json("ping", *servers_of(fakensqd))

    assert list(failed(document)) == ["subscribe"]
    assert statuses(document)["publish"] == "ok"
    assert NsqdHTTPClient.from_url(fakensqd.http_address).stats()["topics"] == []


# --- wrong addresses


def test_ports_of_another_kind_are_recognized(fakelookupd, fakensqd):
    to_nsqd = "the HTTP port of an nsqd", f"give its TCP port: --nsqd {fakensqd.tcp_address}"
    to_lookupd = "the TCP port of an nsqlookupd, for nsqds", "give its HTTP port, usually 4161: --lookupd HOST:4161"
    as_lookupd = "the HTTP port of an nsqlookupd", f"give it as an nsqlookupd: --lookupd {fakelookupd.http_address}"
    as_nsqd = "the TCP port of an nsqd", f"give it as an nsqd: --nsqd {fakensqd.tcp_address}"
    for option, address, step, (text, advice) in (
        ("--nsqd", fakensqd.http_address, "IDENTIFY", to_nsqd),
        ("--nsqd", fakelookupd.tcp_address, "IDENTIFY", to_lookupd),
        ("--nsqd", fakelookupd.http_address, "IDENTIFY", as_lookupd),
        ("--lookupd", fakelookupd.tcp_address, "nodes", to_lookupd),
        ("--lookupd", fakensqd.tcp_address, "nodes", as_nsqd),
        ("--lookupd", fakensqd.http_address, "nodes", to_nsqd),
    ):
        status, document = invoke_json("ping", option, address)

        assert (status, failed(document)) == (1, {step: (f"this is {text}", advice)})
        assert statuses(document).get("publish") in ("skipped", None)


def test_port_without_a_server_is_named_and_hides_no_other(fakensqd):
    port = refused_port()
    wrong = f"127.0.0.1:{port}"

    servers = "--nsqd", wrong, "--nsqd-http", wrong, "--lookupd", wrong, *servers_of(fakensqd)
    status, document = invoke_json("ping", *servers)

    found = failed(document)
    assert (status, list(found)) == (1, ["nodes", "connect"])
    assert {each["step"] for each in document["checks"] if each["status"] == "ok"} == set(STEPS)
    assert found["nodes"][0] == found["connect"][0] == f"nothing listens on port {port} of 127.0.0.1"
    assert found["nodes"][1].startswith("start nsqlookupd, or correct the port")
    assert found["connect"][1].startswith("start nsqd, or correct the port")


def test_empty_nsqlookupd_is_a_failure_unless_an_nsqd_is_given(fakelookupd, fakensqd):
    alone, document = invoke_json("ping", "--lookupd", fakelookupd.http_address)
    beside, _ = invoke_json("ping", "--lookupd", fakelookupd.http_address, *servers_of(fakensqd))

    assert (alone, beside) == (1, 0)
    assert failed(document)["nodes"][0] == "knows no nsqd"
    assert "--lookupd-tcp-address" in failed(document)["nodes"][1]


@pytest.mark.fakecluster(nsqds=1, broadcast_address="nsqd-1.invalid")
def test_broadcast_address_that_is_unknown_here_is_explained(fakecluster):
    _, document = invoke_json("ping", "--lookupd", fakecluster.lookupds[0].http_address)

    text, advice = failed(document)["resolve"]
    assert text == "this machine does not know the host nsqd-1.invalid"
    assert f"{fakecluster.lookupds[0].http_address} names this address, which is nsqd's --broadcast" in advice


def test_server_that_gives_no_answer_is_explained(fakensqd):
    fakensqd.stop_reading()

    _, document = invoke_json("ping", "--timeout", 0.2, "--nsqd", fakensqd.tcp_address)

    assert failed(document)["IDENTIFY"][0] == "the port accepts connections, but gave no answer within 0.2 s"


# --- health


def test_nsqd_that_is_not_healthy_is_a_failure(fakensqd):
    fakensqd.add(on.http("/ping"), answer(500, b"NOK - disk full"))

    status, document = invoke_json("ping", *servers_of(fakensqd))

    assert status == 1
    assert failed(document)["health"][0] == "nsqd is not healthy: NOK - disk full"
    assert statuses(document)["receive"] == "ok"


def test_unreachable_http_port_is_a_warning(fakensqd):
    wrong = f"127.0.0.1:{refused_port()}"

    status, document = invoke_json("ping", "--nsqd", fakensqd.tcp_address, "--nsqd-http", wrong)

    (health,) = [each for each in document["checks"] if each["step"] == "health"]
    assert status == 0
    assert health["status"] == "warning"
    assert "--nsqd-http" in health["advice"]


# --- TLS


@pytest.fixture
def tls_nsqd(fakensqd_certificates):
    """Start nsqds with the certificate of some names and options."""
    started = []

    def start(names=("127.0.0.1",), *, expired=False, **options):
        certificate, key = fakensqd_certificates.server(names, expired=expired)
        nsqd = FakeNsqd(tls_cert=certificate, tls_key=key, record=True, **options).in_thread().start()
        started.append(nsqd)
        return nsqd

    yield start
    for nsqd in started:
        nsqd.stop()


def test_certificate_that_expires_soon_is_a_warning(tls_nsqd, fakensqd_certificates):
    nsqd = tls_nsqd(tls_required="tcp-https")

    status, document = invoke_json("ping", "--tls-ca", fakensqd_certificates.ca, *servers_of(nsqd))

    (tls,) = [each for each in document["checks"] if each["step"] == "TLS"]
    assert status == 0
    assert tls["status"] == "warning"
    assert tls["text"].startswith("TLSv1.3, TLS_")
    assert "certificate of 127.0.0.1, expires in 29 days" in tls["text"]


def test_missing_tls_is_explained(tls_nsqd):
    nsqd = tls_nsqd(tls_required="tcp-https")

    _, document = invoke_json("ping", *servers_of(nsqd))

    assert list(failed(document)) == ["subscribe", "publish"]
    assert failed(document)["publish"][0].startswith("nsqd requires TLS")
    assert failed(document)["publish"][1] == "give --tls; with an own CA also --tls-ca FILE"


OTHER_NAMES = ["nsqd.internal", "nsqd.example"]
NOT_ACCEPTED = [
    pytest.param(
        {},
        ["--tls"],
        "nsqd's certificate is signed by a CA that this machine does not",
        "--tls-ca FILE",
        id="unknown CA",
    ),
    pytest.param({"expired": True}, ["--tls-ca", "CA"], "nsqd's certificate has expired", "renew it", id="expired"),
    pytest.param(
        {"names": OTHER_NAMES},
        ["--tls-ca", "CA"],
        "nsqd's certificate is not for 127.0.0.1, but for nsqd.internal, nsqd.example",
        "--tls-server-name nsqd.internal",
        id="another name",
    ),
]


@pytest.mark.parametrize(("made", "options", "text", "advice"), NOT_ACCEPTED)
def test_certificate_that_is_not_accepted_is_explained(tls_nsqd, fakensqd_certificates, made, options, text, advice):
    words = [fakensqd_certificates.ca if word == "CA" else word for word in options]

    _, document = invoke_json("ping", *words, *servers_of(tls_nsqd(**made)))

    said, advised = failed(document)["TLS"]
    assert said.startswith(text)
    assert advice in advised


def test_missing_certificate_of_the_client_is_explained(tls_nsqd, fakensqd_certificates):
    ca = fakensqd_certificates.ca
    nsqd = tls_nsqd(tls_client_auth_policy="require-verify", tls_root_ca_file=ca)
    client = fakensqd_certificates.client()
    own = ("--tls-ca", ca, "--tls-cert", client.certificate, "--tls-key", client.key)
    servers = ("--nsqd", nsqd.tcp_address, "--nsqd-http", f"https://{nsqd.https_address}")

    _, without = invoke_json("ping", "--tls-ca", ca, *servers_of(nsqd))
    status, _ = invoke_json("ping", *own, *servers)

    assert "--tls-cert FILE and --tls-key FILE" in failed(without)["TLS"][1]
    assert status == 0


@pytest.mark.parametrize("key", SENTENCES)
def test_each_sentence_has_its_facts(key):
    code, _, name = key.partition(" ")

    text, advice = explain(NSQException("x", code=code, name=name), Facts("h:1", has_ca=name == "ca_certs"))

    assert "{" not in text + advice


# --- AUTH


@pytest.fixture
def auth_nsqd(tls_nsqd):
    """An nsqd with TLS and AUTH."""
    with FakeAuthServer({"all": [Grant()]}).in_thread() as server:
        yield tls_nsqd(auth_http_addresses=server.http_address)


def test_missing_secret_is_explained_and_tls_is_still_tried(auth_nsqd, fakensqd_certificates):
    _, document = invoke_json("ping", "--tls-ca", fakensqd_certificates.ca, *servers_of(auth_nsqd))

    assert failed(document) == {
        "AUTH": (
            "nsqd requires AUTH, and no secret is given",
            "nsqd runs with --auth-http-address: give --auth-secret-file",
        )
    }
    assert statuses(document)["TLS"] == "warning"
    assert auth_nsqd.transcript.commands("AUTH") == []


def test_unknown_secret_is_explained_and_not_shown(auth_nsqd, tmp_path):
    (tmp_path / "secret").write_text("no-such-secret")

    result = invoke("ping", "-vv", "--auth-secret-file", tmp_path / "secret", *servers_of(auth_nsqd))

    assert result.exit_code == 1
    assert "nsqd's auth server does not accept the secret" in result.stdout
    assert "no-such-secret" not in result.output
