"""Fixtures of all tests of the emulator: clients that are closed, certificates that are made once."""

import ssl

import pytest
from gevent import socket
from gevent.ssl import SSLContext

from fakensqd import Certificates
from fakensqd.options import NsqdOptions
from fakensqd.tls import server_context as make_server_context
from gnsq.transport import TcpTransport
from tests.kit.wire import Client


@pytest.fixture(autouse=True)
def _clients_are_closed():
    yield
    while Client.opened:
        Client.opened.pop().socket.close()


@pytest.fixture
def ends():
    """Transports of server and client."""
    ours, theirs = socket.socketpair()
    yield TcpTransport(ours, "client"), TcpTransport(theirs, "server")
    ours.close()
    theirs.close()


@pytest.fixture(scope="session")
def certificates(tmp_path_factory):
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="session")
def tls_options(certificates):
    """Options of an nsqd that offers TLS."""
    files = certificates.server()
    return {"tls_cert": files.certificate, "tls_key": files.key}


@pytest.fixture(scope="session")
def server_context(tls_options):
    return make_server_context(NsqdOptions(**tls_options))


@pytest.fixture(scope="session")
def client_context(certificates):
    """A context that trusts the CA of the certificates."""
    context = SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(certificates.ca)
    return context
