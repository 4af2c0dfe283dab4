"""IDENTIFY: bounds, order of checks, what is in force afterwards."""

import pytest

from fakensqd.nsqd.identify import Identification, IdentifyError, Settings, Upgrades, decode_identify, negotiated
from fakensqd.options import NsqdOptions

OPTIONS = NsqdOptions()
DEFAULT = Settings.default(OPTIONS)


def identified(**asked):
    return DEFAULT.identified(Identification(**asked), OPTIONS)


def test_a_body_is_read_by_its_fields():
    asked = decode_identify(b'{"client_id": "me", "heartbeat_interval": 1000, "feature_negotiation": true, "x": 1}')

    assert asked == Identification(client_id="me", heartbeat_interval=1000, feature_negotiation=True)


def test_nothing_asked_leaves_the_defaults():
    assert identified() == DEFAULT
    assert (
        Settings(
            heartbeat_interval=30.0,
            output_buffer_size=16384,
            output_buffer_timeout=0.25,
            sample_rate=0,
            msg_timeout=60.0,
        )
        == DEFAULT
    )


@pytest.mark.parametrize(
    ("field", "asked", "in_force"),
    [
        ("heartbeat_interval", -1, 0.0),
        ("heartbeat_interval", 1000, 1.0),
        ("heartbeat_interval", 60000, 60.0),
        ("output_buffer_timeout", -1, 0.0),
        ("output_buffer_timeout", 25, 0.025),
        ("output_buffer_timeout", 30000, 30.0),
        ("output_buffer_size", -1, 1),
        ("output_buffer_size", 64, 64),
        ("output_buffer_size", 65536, 65536),
        ("sample_rate", 99, 99),
        ("msg_timeout", 1000, 1.0),
        ("msg_timeout", 900000, 900.0),
    ],
)
def test_what_is_allowed_is_in_force(field, asked, in_force):
    assert getattr(identified(**{field: asked}), field) == in_force


def test_no_buffer_has_no_timeout_either():
    settings = identified(output_buffer_size=-1, output_buffer_timeout=1000)

    assert (settings.output_buffer_size, settings.output_buffer_timeout) == (1, 0.0)


def test_a_msg_timeout_of_minus_one_is_refused_though_other_fields_take_it():
    with pytest.raises(IdentifyError, match=r"^msg timeout \(-1\) is invalid$"):
        identified(msg_timeout=-1)


def test_checks_come_in_the_order_of_nsqd():
    bad = {
        "heartbeat_interval": 1,
        "output_buffer_timeout": 1,
        "output_buffer_size": 1,
        "sample_rate": 100,
        "msg_timeout": 1,
    }
    texts = []
    for field in list(bad):
        with pytest.raises(IdentifyError) as caught:
            identified(**bad)
        texts.append(str(caught.value).partition(" (")[0])
        del bad[field]

    assert texts == [
        "heartbeat interval",
        "output buffer timeout",
        "output buffer size",
        "sample rate",
        "msg timeout",
    ]


def test_a_second_identify_keeps_what_it_does_not_name():
    settings = identified(msg_timeout=5000).identified(Identification(heartbeat_interval=2000), OPTIONS)

    assert (settings.msg_timeout, settings.heartbeat_interval) == (5.0, 2.0)


TLS = {"tls_cert": "cert.pem", "tls_key": "key.pem"}


@pytest.mark.parametrize(
    ("asked", "offered", "upgrades"),
    [
        pytest.param({}, TLS, Upgrades(), id="nothing"),
        pytest.param({"tls_v1": True}, TLS, Upgrades(tls=True), id="TLS"),
        pytest.param({"tls_v1": True}, {}, Upgrades(), id="TLS is not offered"),
        pytest.param({"snappy": True}, {}, Upgrades(snappy=True), id="snappy"),
        pytest.param({"snappy": True}, {"snappy": False}, Upgrades(), id="snappy is not offered"),
        pytest.param({"deflate": True}, {}, Upgrades(deflate=True, deflate_level=6), id="deflate"),
        pytest.param({"deflate": True}, {"deflate": False}, Upgrades(), id="deflate is not offered"),
        pytest.param({"deflate": True, "snappy": True}, {"deflate": False}, Upgrades(snappy=True), id="one of two"),
        pytest.param({"deflate": True, "deflate_level": 2}, {}, Upgrades(deflate=True, deflate_level=2), id="level"),
        pytest.param({"deflate": True, "deflate_level": 9}, {}, Upgrades(deflate=True), id="level too high"),
        pytest.param({"deflate": True, "deflate_level": -1}, {}, Upgrades(deflate=True), id="level too low"),
        pytest.param({"deflate_level": 2}, {}, Upgrades(), id="level without deflate"),
        pytest.param({}, {"max_deflate_level": 3}, Upgrades(deflate_level=3), id="highest level"),
    ],
)
def test_what_is_asked_for_and_offered_is_negotiated(asked, offered, upgrades):
    assert negotiated(Identification(**asked), NsqdOptions(**offered)) == upgrades
