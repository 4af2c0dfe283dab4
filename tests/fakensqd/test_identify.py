"""IDENTIFY: bounds, order of checks, what is in force afterwards."""

import json

import pytest

from fakensqd.identify import Identification, IdentifyError, Settings, decode_identify
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


@pytest.mark.parametrize(
    ("field", "asked", "text"),
    [
        ("heartbeat_interval", -2, "heartbeat interval (-2) is invalid"),
        ("heartbeat_interval", 999, "heartbeat interval (999) is invalid"),
        ("heartbeat_interval", 60001, "heartbeat interval (60001) is invalid"),
        ("output_buffer_timeout", 24, "output buffer timeout (24) is invalid"),
        ("output_buffer_timeout", 30001, "output buffer timeout (30001) is invalid"),
        ("output_buffer_size", 63, "output buffer size (63) is invalid"),
        ("output_buffer_size", -2, "output buffer size (-2) is invalid"),
        ("output_buffer_size", 65537, "output buffer size (65537) is invalid"),
        ("sample_rate", -1, "sample rate (-1) is invalid"),
        ("sample_rate", 100, "sample rate (100) is invalid"),
        ("msg_timeout", -1, "msg timeout (-1) is invalid"),
        ("msg_timeout", 999, "msg timeout (999) is invalid"),
        ("msg_timeout", 900001, "msg timeout (900001) is invalid"),
    ],
)
def test_what_is_out_of_bounds_is_refused(field, asked, text):
    with pytest.raises(IdentifyError) as caught:
        identified(**{field: asked})

    assert str(caught.value) == text


def test_no_buffer_has_no_timeout_either():
    settings = identified(output_buffer_size=-1, output_buffer_timeout=1000)

    assert (settings.output_buffer_size, settings.output_buffer_timeout) == (1, 0.0)


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


def test_the_answer_has_all_fields_in_order_and_offers_no_upgrade():
    answer = identified(msg_timeout=5000, sample_rate=10).answer(NsqdOptions(max_rdy_count=7, max_deflate_level=3))

    assert answer == (
        b'{"max_rdy_count":7,"version":"1.3.0","max_msg_timeout":900000,"msg_timeout":5000,"tls_v1":false,'
        b'"deflate":false,"deflate_level":3,"max_deflate_level":3,"snappy":false,"sample_rate":10,'
        b'"auth_required":false,"output_buffer_size":16384,"output_buffer_timeout":250}'
    )
    assert json.loads(answer)["version"] == "1.3.0"
