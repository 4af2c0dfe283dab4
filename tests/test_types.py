"""The public interface as type checkers see it."""

import dataclasses

import pytest

from gnsq import Consumer, NsqdTCPClient, Producer
from gnsq.consumer.options import ConsumerOptions, ConsumerOptionsDict
from gnsq.httpclient import HTTPClient, HttpClientOptionsDict, HttpOptions, HttpOptionsDict
from gnsq.layers import _TLS_OPTIONS
from gnsq.options import (
    ConnectionOptions,
    ConnectionOptionsDict,
    MoreConnectionOptionsDict,
    TlsOptionsDict,
    parameters_of,
)
from gnsq.pool import ReconnectOptions, ReconnectOptionsDict
from gnsq.producer.options import ProducerOptions, ProducerOptionsDict

OPTIONS = [
    pytest.param(ConnectionOptionsDict, [ConnectionOptions], None, id="connection"),
    pytest.param(MoreConnectionOptionsDict, [ConnectionOptions], NsqdTCPClient, id="NsqdTCPClient"),
    pytest.param(ReconnectOptionsDict, [ReconnectOptions], None, id="reconnect"),
    pytest.param(ConsumerOptionsDict, [ConsumerOptions, ReconnectOptions, ConnectionOptions], Consumer, id="Consumer"),
    pytest.param(ProducerOptionsDict, [ProducerOptions, ReconnectOptions, ConnectionOptions], Producer, id="Producer"),
    pytest.param(HttpOptionsDict, [HttpOptions], HTTPClient, id="HTTPClient"),
]
# Values of gnsq 1.0 are taken, too: urllib3's objects, numbers of ssl, paths.
WIDER = {"timeout", "retries", "cert_reqs", "ca_certs", "cert_file", "key_file"}


@pytest.mark.parametrize(("keywords", "options", "owner"), OPTIONS)
def test_typed_keywords_are_the_options_with_their_types(keywords, options, owner):
    wider = WIDER if keywords is HttpOptionsDict else set()
    parameters = () if owner is None else parameters_of(owner.__init__)
    fields = {field.name: field.type for kind in options for field in dataclasses.fields(kind)}
    expected = {name: kind for name, kind in fields.items() if name not in parameters}
    typed = {name: reference.__forward_arg__ for name, reference in keywords.__annotations__.items()}

    assert typed == {name: typed.get(name) if name in wider else kind for name, kind in expected.items()}
    # Each takes what the option itself takes, and more.
    assert all(set(fields[name].split(" | ")) < set(typed[name].split(" | ")) for name in wider)


@pytest.mark.parametrize(("keywords", "options", "owner"), OPTIONS)
def test_all_typed_keywords_may_be_left_out(keywords, options, owner):
    assert keywords.__required_keys__ == frozenset()


def test_typed_keywords_of_subclasses_of_http_client_are_those_of_its_constructor():
    own = set(parameters_of(HTTPClient.__init__)) - {"host", "port", "connection_class"}

    assert set(HttpClientOptionsDict.__annotations__) == {*HttpOptionsDict.__annotations__, *own}


def test_typed_tls_options_are_those_that_are_taken():
    assert set(TlsOptionsDict.__annotations__) == set(_TLS_OPTIONS)
