"""The servers of docker-compose.yml, or programs started with its flags: plain, TLS with client certificates, AUTH."""

import contextlib
import os
import re
import shutil
from pathlib import Path

import pytest
import yaml

from fakensqd import FakeAuthServer
from gnsq import Consumer, LookupdClient, NsqdHTTPClient, Producer
from gnsq.errors import NSQException, NSQUnauthorized
from integration.choice import COMPOSED
from integration.composed import GRANTS, make_certificates
from integration.servers import PROGRAMS, given, running
from tests.kit import wait_until
from tests.kit.wire import request

pytestmark = pytest.mark.real

SERVICES = yaml.safe_load((Path(__file__).parent.parent / "docker-compose.yml").read_text())["services"]
NAMES = {"nsqd": "nsqd", "nsqd_tls": "nsqd-tls", "nsqd_auth": "nsqd-auth"}


class Composed:
    """Servers by their names, and the directory of the certificates."""

    def __init__(self, servers, certificates):
        self.servers = servers
        self.certificates = certificates

    @property
    def lookupds(self):
        return [self.servers[name].http_address for name in ("nsqlookupd", "nsqlookupd2")]

    def tls(self):
        files = {"ca_certs": "ca.pem", "certfile": "client-2.pem", "keyfile": "client-2.key"}
        return {"tls_v1": True, "tls_options": {name: f"{self.certificates}/{file}" for name, file in files.items()}}


@contextlib.contextmanager
def started(folder):
    """Run the programs with the flags of docker-compose.yml, on free ports."""
    make_certificates(folder)
    servers = {}
    with contextlib.ExitStack() as stack:
        auth = stack.enter_context(FakeAuthServer(GRANTS).in_thread())
        for name, number in (("nsqlookupd", 1), ("nsqlookupd2", 2)):
            servers[name] = stack.enter_context(running("nsqlookupd", *_flags(f"nsqlookupd-{number}", {}, folder)))
        real = {"4160": servers["nsqlookupd"].tcp_address, "4260": servers["nsqlookupd2"].tcp_address}
        for name, service in NAMES.items():
            flags = _flags(service, {**real, "4180": auth.http_address}, folder)
            servers[name] = stack.enter_context(running("nsqd", *flags))
        yield Composed(servers, folder)


def _flags(service, real, folder):
    """Return a service's flags without its listeners, and with the real addresses of other services."""
    flags = [
        word for word in SERVICES[service]["command"].split()[1:] if not re.match("--(tcp|http|https)-address", word)
    ]
    flags = [re.sub(r"127\.0\.0\.1:(\d+)", lambda found: real[found[1]], flag) for flag in flags]
    return [flag.replace("/certificates/", f"{folder}/") for flag in flags]


@pytest.fixture(scope="module")
def composed(tmp_path_factory):
    servers = {name: given(name) for name in (*NAMES, "nsqlookupd", "nsqlookupd2")}
    if all(servers.values()) and "CERTIFICATES" in os.environ:
        yield Composed(servers, os.environ["CERTIFICATES"])
        return
    if not all(map(shutil.which, PROGRAMS)):
        pytest.skip(f"needs programs, or CERTIFICATES and all of {', '.join(COMPOSED)}")
    with started(tmp_path_factory.mktemp("certificates")) as made:
        yield made


def test_every_nsqd_is_found_by_both_nsqlookupds_where_clients_reach_it(composed):
    wanted = {composed.servers[name].tcp_address for name in NAMES}

    def found(address):
        with LookupdClient.from_url(address) as lookupd:
            return {f"{node['broadcast_address']}:{node['tcp_port']}" for node in lookupd.nodes()["producers"]}

    for address in composed.lookupds:
        wait_until(lambda address=address: wanted <= found(address))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("compression", [None, "snappy", "deflate"])
def test_messages_go_through_each_nsqd_found_by_nsqlookupd(composed, topic, name, compression):
    options = {**composed.tls(), "auth_secret": b"all"} if name == "nsqd_tls" else {"auth_secret": b"all"}
    options |= {compression: True} if compression else {}
    server = composed.servers[name]
    # TLS where it is not offered ends a connection: only this nsqd has the topic.
    with Producer(server.tcp_address, **options) as producer:
        producer.multipublish(topic, [b"%d" % number for number in range(100)])
    got = []
    with Consumer(
        topic,
        "c",
        lookupd_http_addresses=composed.lookupds,
        lookupd_poll_interval=0.5,  # the topic may reach nsqlookupd after the first poll
        message_handler=lambda consumer, message: got.append(message.body),
        max_in_flight=50,
        **options,
    ):
        wait_until(lambda: len(got) == 100)
    NsqdHTTPClient.from_url(server.http_address).delete_topic(topic)

    assert sorted(got) == sorted(b"%d" % number for number in range(100))


def test_client_without_a_certificate_is_told_what_is_missing(composed, topic):
    options = {"tls_v1": True, "tls_options": {"ca_certs": f"{composed.certificates}/ca.pem"}}

    with (
        Producer(composed.servers["nsqd_tls"].tcp_address, **options) as producer,
        pytest.raises(NSQException, match="certfile"),
    ):
        producer.publish(topic, b"x", timeout=2)


def test_secret_is_for_its_own_topics(composed, topic):
    with (
        Producer(composed.servers["nsqd_auth"].tcp_address, auth_secret=b"other") as producer,
        pytest.raises(NSQUnauthorized),
    ):
        producer.publish(topic, b"x", timeout=5)


@pytest.mark.skipif("NSQADMIN_HTTP_ADDRESS" not in os.environ, reason="needs the nsqadmin of docker-compose.yml")
def test_nsqadmin_sees_every_nsqd(composed):
    nodes = request(os.environ["NSQADMIN_HTTP_ADDRESS"], "GET", "/api/nodes")["nodes"]

    assert len(nodes) == len(NAMES)
