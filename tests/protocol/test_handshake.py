"""The handshake's steps, answered from lists."""

import itertools
import json
import sys

import pytest

from gnsq.errors import NSQBadBody, NSQException, NSQIdentifyFailed, NSQProtocolError
from gnsq.options import ConnectionOptions
from gnsq.protocol.frames import ERROR, HEARTBEAT, MESSAGE, RESPONSE
from gnsq.protocol.handshake import (
    Identity,
    ReadFrame,
    StartTLS,
    Write,
    auth_steps,
    handshake,
    upgrade_steps,
)

# As nsqd 1.3.0 sends it.
ANSWER = (
    b'{"max_rdy_count":100,"version":"1.3.0","max_msg_timeout":900000,"msg_timeout":60000,"tls_v1":false,'
    b'"deflate":false,"deflate_level":6,"max_deflate_level":6,"snappy":false,"sample_rate":0,"auth_required":false,'
    b'"output_buffer_size":16384,"output_buffer_timeout":250}'
)


OK = (RESPONSE, b"OK")


def answer(**fields):
    """A response to IDENTIFY as nsqd 1.3.0 sends it, but for some fields."""
    return RESPONSE, json.dumps({**json.loads(ANSWER), **fields}).encode()


def drive(steps, frames, done=None):
    """Answer each ReadFrame from the list. Returns the written bytes and started upgrades, in order, and the result."""
    answers, done = iter(frames), [] if done is None else done
    reply = None
    while True:
        try:
            step = steps.send(reply)
        except StopIteration as end:
            return done, end.value
        reply = None
        if isinstance(step, Write):
            done.append(step.data)
        elif isinstance(step, ReadFrame):
            reply = next(answers)
        else:
            done.append("tls" if isinstance(step, StartTLS) else step.codec.name)


def run(frames, **options):
    return drive(handshake(ConnectionOptions(**options)), frames)


def test_magic_then_identify():
    written, _ = run([(RESPONSE, b"OK")], client_id="me", hostname="me.example")

    assert written[0] == b"  V2"
    assert written[1].startswith(b"IDENTIFY\n")
    assert json.loads(written[1][13:]) == {
        "client_id": "me",
        "hostname": "me.example",
        "short_id": "me",
        "long_id": "me.example",
        "feature_negotiation": True,
        "heartbeat_interval": 30000,
        "output_buffer_size": 16384,
        "output_buffer_timeout": 250,
        "tls_v1": False,
        "snappy": False,
        "deflate": False,
        "user_agent": "gnsq/2.0.0rc1",
    }


def test_response_to_identify_sets_the_identity():
    _, identity = run([(RESPONSE, ANSWER)], heartbeat_interval=5)

    assert identity == Identity(
        version="1.3.0",
        max_rdy_count=100,
        msg_timeout=60.0,
        max_msg_timeout=900.0,
        heartbeat_interval=5,
        response=json.loads(ANSWER),
    )


UNKNOWN = [
    pytest.param({}, (None, 30.0), id="not asked"),
    pytest.param({"msg_timeout": 10, "heartbeat_interval": 5}, (10, 30.0), id="less"),
    pytest.param({"msg_timeout": 600, "heartbeat_interval": 50}, (60.0, 50), id="more"),
    pytest.param({"heartbeat_interval": -1}, (None, 0.0), id="no heartbeats"),
]


@pytest.mark.parametrize(("options", "expected"), UNKNOWN)
def test_server_without_negotiation_may_ignore_the_wanted_values(options, expected):
    _, identity = run([(RESPONSE, b"OK")], **options)

    assert (identity.msg_timeout, identity.heartbeat_interval) == expected
    assert (identity.version, identity.max_rdy_count) == (None, 2500)


def test_heartbeat_before_the_answer_is_answered():
    written, identity = run([(RESPONSE, HEARTBEAT), (RESPONSE, ANSWER)])

    assert written[2:] == [b"NOP\n"]
    assert identity.version == "1.3.0"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("heartbeat interval (120000)", r"heartbeat_interval is 120 s; nsqd limits it by --max-heartbeat-interval"),
        ("msg timeout (60000000)", r"msg_timeout is 60000 s; nsqd limits it by --max-msg-timeout \(default 15 min\)"),
        ("output buffer timeout (5)", r"output_buffer_timeout is 5 ms; .*--min-output-buffer-timeout"),
        ("output buffer size (99999)", r"output_buffer_size is 99999 bytes; .*--max-output-buffer-size"),
    ],
)
def test_refused_option_is_named_with_its_unit_and_its_limit(text, words):
    with pytest.raises(NSQBadBody, match=words):
        run([(ERROR, f"E_BAD_BODY IDENTIFY {text} is invalid".encode())])


@pytest.mark.parametrize("level", [None, 0, 3])
@pytest.mark.parametrize(
    ("tls", "compression", "auth"), list(itertools.product([False, True], [None, "snappy", "deflate"], [False, True]))
)
def test_tls_compression_and_auth_start_in_nsqds_order(tls, compression, auth, level):
    asked = {"tls_v1": tls, "auth_secret": b"secret", **({compression: True} if compression else {})}
    offered = {"tls_v1": tls, "auth_required": auth, **({compression: True} if compression else {})}
    upgrades = [*(["tls"] if tls else []), *([compression] if compression else [])]
    auth_answer = [(RESPONSE, b'{"identity":"me","identity_url":"","permission_count":1}')] if auth else []

    done, identity = run([answer(deflate_level=level, **offered), *[OK for _ in upgrades], *auth_answer], **asked)

    assert done[2:] == [*upgrades, *([b"AUTH\n\x00\x00\x00\x06secret"] if auth else [])]
    assert (identity.tls, identity.compression and identity.compression.name) == (tls, compression)
    assert dict(identity.auth) == ({"identity": "me", "identity_url": "", "permission_count": 1} if auth else {})
    assert identity.warnings == ()


@pytest.mark.parametrize("frame", [answer(auth_required=True), answer(auth_required=True, tls_v1=True, snappy=True)])
def test_required_auth_without_a_secret_is_an_error_before_anything_else(frame):
    steps = handshake(ConnectionOptions(tls_v1=bool(json.loads(frame[1])["tls_v1"]), snappy=True))

    with pytest.raises(NSQException, match=r"requires AUTH, .*: give auth_secret"):
        drive(steps, [frame])


@pytest.mark.parametrize(
    ("frame", "words"),
    [
        pytest.param(answer(), "it runs without --tls-cert and --tls-key", id="not offered"),
        pytest.param(OK, "it answers IDENTIFY with a plain OK", id="plain OK"),
        pytest.param(answer(auth_required=True), "TLS was asked for and nsqd does not offer it", id="with a secret"),
    ],
)
def test_tls_that_is_not_offered_ends_the_connection_before_the_secret_is_sent(frame, words):
    done = []
    with pytest.raises(NSQException, match=words):
        drive(handshake(ConnectionOptions(tls_v1=True, auth_secret=b"secret")), [frame], done)

    assert len(done) == 2
    assert not any(b"secret" in data for data in done)


@pytest.mark.parametrize("name", ["snappy", "deflate"])
@pytest.mark.parametrize("frame", [answer(), OK], ids=["not offered", "plain OK"])
def test_compression_that_is_not_offered_is_a_warning(name, frame):
    done, identity = run([frame], **{name: True})

    assert done[2:] == []
    assert identity.compression is None
    assert identity.warnings == (f"{name} was asked for and nsqd does not offer it; going on without compression",)


@pytest.mark.parametrize(
    ("asked", "offered"),
    [
        ({}, {"tls_v1": True}),
        ({}, {"snappy": True}),
        ({"snappy": True}, {"deflate": True}),
        ({"snappy": True}, {"snappy": True, "deflate": True}),
    ],
)
def test_unwanted_tls_or_compression_is_a_protocol_error(asked, offered):
    with pytest.raises(NSQProtocolError, match="which was not asked for"):
        run([answer(**offered)], **asked)


def test_secret_is_not_sent_to_a_server_that_does_not_ask():
    for frame in (answer(), OK):
        done, _ = run([frame], auth_secret=b"secret")

        assert done[2:] == []


def test_answer_to_auth_that_is_no_json_breaks_the_protocol():
    with pytest.raises(NSQProtocolError, match=r"b'OK' to AUTH is not a JSON object"):
        drive(auth_steps(b"secret"), [OK])


def test_layer_that_does_not_begin_with_ok_breaks_the_protocol():
    with pytest.raises(NSQProtocolError, match=r"b'KO' after the start of TLS, expected OK"):
        drive(upgrade_steps(StartTLS()), [(RESPONSE, b"KO")])
    with pytest.raises(NSQIdentifyFailed):
        drive(upgrade_steps(StartTLS()), [(ERROR, b"E_IDENTIFY_FAILED IDENTIFY failed EOF")])


@pytest.mark.parametrize(
    ("options", "offered", "words"),
    [
        ({"output_buffer_timeout": 24}, {}, "output_buffer_timeout 24 ms is below 25 ms"),
        ({"output_buffer_size": -1, "deflate": True}, {"deflate": True}, "output_buffer_size -1 with deflate"),
        ({"output_buffer_timeout": -1, "deflate": True}, {"deflate": True}, "output_buffer_timeout -1 with deflate"),
    ],
)
def test_unfavourable_options_are_a_warning(options, offered, words):
    _, identity = run([answer(**offered), OK], **options)

    assert [words in warning for warning in identity.warnings] == [True]


@pytest.mark.parametrize("timeout", [-1, 0, 25])
def test_good_output_buffer_timeouts_are_not_warned_of(timeout):
    assert run([answer()], output_buffer_timeout=timeout)[1].warnings == ()


def test_snappy_that_can_not_be_imported_is_said_before_anything_is_sent(monkeypatch):
    monkeypatch.setitem(sys.modules, "snappy", None)

    with pytest.raises(ImportError, match="snappy was asked for"):
        next(handshake(ConnectionOptions(snappy=True)))


@pytest.mark.parametrize(
    ("frame", "words"),
    [
        pytest.param((MESSAGE, b"x"), "frame of type 2", id="message"),
        pytest.param((RESPONSE, b"hello"), "neither OK nor a JSON object", id="not json"),
        pytest.param((RESPONSE, b"[]"), "neither OK nor a JSON object", id="list"),
        pytest.param((RESPONSE, b"[" * 100_000), "neither OK nor a JSON object", id="deep"),
        pytest.param((RESPONSE, b'{"max_rdy_count":"1"}'), "max_rdy_count '1'", id="count is not an integer"),
        pytest.param((RESPONSE, b'{"max_rdy_count":-1}'), "max_rdy_count -1", id="negative count"),
        pytest.param((RESPONSE, b'{"max_rdy_count":true}'), "max_rdy_count True", id="count is a bool"),
        pytest.param((RESPONSE, b'{"max_rdy_count":1%s}' % (b"0" * 4000)), r"0\.\.\. in the response", id="huge count"),
        pytest.param(
            (RESPONSE, b'{"max_rdy_count":1%s}' % (b"0" * 5000)), "neither OK nor", id="count of 5,001 digits"
        ),
    ],
)
def test_unexpected_response_is_a_protocol_error(frame, words):
    with pytest.raises(NSQProtocolError, match=words):
        run([frame])


def test_version_is_cleaned_for_the_log_and_kept_in_the_identity():
    version = "1.3.0\n\x1b[2Jforged" + "x" * 1000
    _, identity = run([answer(version=version)])

    assert identity.summary == f"nsqd {('1.3.0  [2Jforged' + 'x' * 1000)[:200]}..."
    assert identity.version == identity.response["version"] == version


def test_options_travel_in_milliseconds():
    written, _ = run([(RESPONSE, b"OK")], heartbeat_interval=-1, msg_timeout=90.5, sample_rate=10)

    body = json.loads(written[1][13:])
    assert (body["heartbeat_interval"], body["msg_timeout"], body["sample_rate"]) == (-1, 90500, 10)
