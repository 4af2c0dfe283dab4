"""Names that can be imported, by module."""

import importlib

import pytest

from gnsq import protocol, util
from gnsq.protocol.frames import encode_message
from tests.kit import run_program

PUBLIC = {
    "gnsq": ["BackoffTimer", "Consumer", "LookupdClient", "Message", "NsqdHTTPClient", "NsqdTCPClient", "Producer"],
    "gnsq.consumer": ["Consumer"],
    "gnsq.producer": ["Producer"],
    "gnsq.nsqd": ["HOSTNAME", "NsqdHTTPClient", "NsqdTCPClient", "SHORTNAME"],
    "gnsq.states": ["BACKOFF", "CLOSED", "CONNECTED", "DISCONNECTED", "INIT", "RUNNING", "THROTTLED"],
    "gnsq.util": ["normalize_nsqd_address", "parse_lookupds", "parse_nsqds"],
    "gnsq.lookupd": ["LookupdClient"],
    "gnsq.message": ["Message"],
    "gnsq.protocol": [
        *["AUTH", "CLS", "DPUB", "FIN", "IDENTIFY", "MPUB", "NOP", "PUB", "RDY", "REQ", "SUB", "TOUCH", "MAGIC_V2"],
        *["FRAME_TYPE_ERROR", "FRAME_TYPE_MESSAGE", "FRAME_TYPE_RESPONSE", "HEARTBEAT", "OK", "VALID_NAME_RE"],
        *["assert_valid_channel_name", "assert_valid_topic_name", "valid_channel_name", "valid_topic_name"],
        *["auth", "close", "deferpublish", "finish", "identify", "multipublish", "multipublish_body", "nop", "publish"],
        *["ready", "requeue", "subscribe", "touch", "unpack_message", "unpack_response", "unpack_size"],
    ],
    "gnsq.backofftimer": ["BackoffTimer"],
    "gnsq.httpclient": ["HTTPClient", "USERAGENT"],
    "gnsq.errors": ["ERROR_CODES", "NSQException", "make_error"],
    "fakensqd": ["Certificates", "FakeAuthServer", "FakeCluster", "FakeLookupd", "FakeNsqd", "Grant"],
}


@pytest.mark.parametrize("module", sorted(PUBLIC))
def test_names_of_1_0_can_be_imported(module):
    found = importlib.import_module(module)

    assert [name for name in PUBLIC[module] if not hasattr(found, name)] == []


@pytest.mark.parametrize("name", ["gnsq", "gnsq.errors", "gnsq.options", "fakensqd"])
def test_all_names_exist_and_none_is_listed_twice(name):
    module = importlib.import_module(name)

    assert len(set(module.__all__)) == len(module.__all__)
    assert [item for item in module.__all__ if not hasattr(module, item)] == []


def test_wire_functions_of_1_0_read_frames():
    assert protocol.unpack_size(b"\x00\x00\x00\x06") == 6
    assert protocol.unpack_response(b"\x00\x00\x00\x01E_INVALID") == (protocol.FRAME_TYPE_ERROR, b"E_INVALID")
    data = encode_message(1, 2, b"0123456789abcdef", b"x")
    assert protocol.unpack_message(data) == (1, 2, b"0123456789abcdef", b"x")


@pytest.mark.subprocess
def test_submodules_of_1_0_are_attributes():
    names = ["backofftimer", "consumer", "errors", "httpclient", "lookupd", "message", "nsqd", "producer", "protocol"]
    code = f"import gnsq; print([name for name in {[*names, 'states', 'util']} if not hasattr(gnsq, name)])"

    assert run_program(code, flags=()).stdout == "[]\n"


def test_addresses_are_normalized_as_in_1_0():
    assert util.normalize_nsqd_address("host") == "host:4150"
    assert util.parse_nsqds(["a:1", "b"]) == {"a:1", "b:4150"}
    assert [lookupd.address for lookupd in util.parse_lookupds("host")] == ["http://host:4161/"]
