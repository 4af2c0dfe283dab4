"""Pending requests: which ones are sent when, and which gets which response. Nothing is sent."""

import pytest

from gnsq.errors import NSQConnectionClosed, NSQMPubFailed, NSQSocketError
from gnsq.nsqd.pending import ConfirmedLimits, PendingCall, PendingRequests, connection_lost_error
from gnsq.protocol.frames import ERROR, OK, RESPONSE, encode_frame

OK_FRAME = encode_frame(RESPONSE, OK)


class FakeRequest:
    """A request that records how it ended."""

    def __init__(self, command, largest_message=0, mpub_body_size=0, defer=0, topic="", deadline=60.0):
        self.encode = lambda: command
        self.size = len(command)
        self.largest_message = largest_message
        self.plain_size = float("inf") if mpub_body_size or defer else largest_message
        self.mpub_body_size = mpub_body_size
        self.defer = defer
        self.topic = topic
        self.deadline = deadline
        self.outcomes = []

    def on_response(self, data):
        self.outcomes.append(data)

    def on_error(self, error):
        self.outcomes.append(("refused", error))

    def on_connection_lost(self, error):
        self.outcomes.append(("lost", str(error)))

    def on_not_sent(self, error):
        self.outcomes.append(("not executed", str(error)))

    def on_overdue(self, now):
        self.outcomes.append("overdue")


@pytest.fixture
def unblocked():
    return []


@pytest.fixture
def requests(unblocked):
    return PendingRequests(lambda: unblocked.append(True))


def put(requests, *all_of_them):
    for request in all_of_them:
        requests.put(request)
    return list(all_of_them)


# --- sending


@pytest.mark.parametrize(
    ("sizes", "limit", "taken"),
    [
        pytest.param([3, 3, 3], 8, 2, id="those that fit"),
        pytest.param([3, 3, 3], 6, 2, id="up to the limit"),
        pytest.param([9, 1], 3, 1, id="one that is longer, alone"),
        pytest.param([], 3, 0, id="nothing"),
    ],
)
def test_next_batch_has_up_to_limit_bytes(requests, sizes, limit, taken):
    put(requests, *[FakeRequest(b"x" * size) for size in sizes])

    data = requests.next_batch(limit, 0.0)

    assert data == b"x" * sum(sizes[:taken])
    assert [request.size for request in requests.sent] == sizes[:taken]
    assert [request.size for request in requests.unsent] == sizes[taken:]
    assert requests.unsent_bytes == sum(sizes[taken:])
    assert (len(requests), bool(requests)) == (len(sizes), bool(sizes))


DOUBTFUL = [
    pytest.param({"largest_message": 11}, id="larger"),
    pytest.param({"mpub_body_size": 50}, id="multipublish"),
    pytest.param({"defer": 1}, id="deferred"),
]


@pytest.mark.parametrize("claim", DOUBTFUL)
def test_request_that_may_be_refused_is_sent_alone(requests, unblocked, claim):
    put(requests, FakeRequest(b"0", largest_message=10))
    requests.next_batch(100, 0.0)
    requests.resolve(OK)
    assert requests.next_batch(100, 0.0) == b""
    del unblocked[:]
    put(requests, FakeRequest(b"1"), FakeRequest(b"2", **claim), FakeRequest(b"3"))

    assert requests.next_batch(100, 0.0) == b"13"
    assert requests.next_batch(100, 0.0) == b""
    assert requests.blocked
    put(requests, FakeRequest(b"4"))
    requests.resolve(OK)
    requests.resolve(OK)
    assert (requests.blocked, unblocked) == (False, [True])
    assert requests.next_batch(100, 0.0) == b"2"
    assert requests.next_batch(100, 0.0) == b""
    requests.resolve(OK)
    assert requests.next_batch(100, 0.0) == b"4"


@pytest.mark.parametrize("claim", DOUBTFUL)
def test_request_sent_at_once_that_may_be_refused_lets_others_wait(requests, unblocked, claim):
    requests.put_sent(FakeRequest(b"1", **claim))
    put(requests, FakeRequest(b"2"))
    assert requests.next_batch(100, 0.0) == b""

    requests.resolve(OK)

    assert (requests.blocked, unblocked) == (False, [True])
    assert requests.next_batch(100, 0.0) == b"2"
    requests.resolve(OK)
    requests.put_sent(FakeRequest(b"3", **claim))
    put(requests, FakeRequest(b"4"))
    assert requests.next_batch(100, 0.0) == b"4"


def test_smallest_request_is_sent_first_without_confirmed_limits(requests):
    put(
        requests,
        FakeRequest(b"1", largest_message=2_000_000),
        FakeRequest(b"2", largest_message=1),
        FakeRequest(b"3", largest_message=1),
    )

    assert requests.next_batch(100, 0.0) == b"2"
    requests.resolve(OK)
    assert requests.next_batch(100, 0.0) == b"3"


def test_request_that_others_have_waited_for_keeps_its_place(requests):
    put(requests, FakeRequest(b"0", largest_message=10))
    requests.next_batch(100, 0.0)
    requests.resolve(OK)
    put(requests, FakeRequest(b"1", largest_message=20), FakeRequest(b"2", largest_message=1))
    assert requests.next_batch(100, 0.0) == b"2"
    assert requests.next_batch(100, 0.0) == b""

    put(requests, FakeRequest(b"3", largest_message=15), FakeRequest(b"4", largest_message=1))
    requests.resolve(OK)

    assert requests.next_batch(100, 0.0) == b"1"


@pytest.mark.parametrize("claim", DOUBTFUL)
def test_confirmed_request_is_sent_with_others(requests, claim):
    put(requests, FakeRequest(b"0", **claim))
    requests.next_batch(100, 0.0)
    requests.resolve(OK)
    put(requests, FakeRequest(b"1"), FakeRequest(b"2", **claim), FakeRequest(b"3"))

    assert requests.next_batch(100, 0.0) == b"123"


def test_request_that_was_not_sent_alone_confirms_no_limit(requests):
    put(requests, FakeRequest(b"1"), FakeRequest(b"2", largest_message=1))
    requests.next_batch(100, 0.0)

    requests.resolve(OK)
    put(requests, FakeRequest(b"3"))

    assert requests.next_batch(100, 0.0) == b"2"


def test_first_publish_to_each_topic_goes_alone_where_they_need_leave(requests):
    requests.check_topics()
    put(requests, FakeRequest(b"no"), FakeRequest(b"PUB"))
    put(requests, FakeRequest(b"1", topic="t"), FakeRequest(b"2", topic="t"), FakeRequest(b"3", topic="u"))

    assert requests.next_batch(100, 0.0) == b"noPUB"
    requests.resolve(OK)
    requests.resolve(OK)
    assert requests.next_batch(100, 0.0) == b"1"
    requests.resolve(OK)
    assert requests.next_batch(100, 0.0) == b"2"
    requests.resolve(OK)
    assert requests.next_batch(100, 0.0) == b"3"


def test_batches_are_as_large_as_before_after_a_request_was_sent_alone(requests):
    put(requests, FakeRequest(b"0", largest_message=1))
    requests.next_batch(100, 0.0)
    requests.resolve(OK)
    put(requests, *[FakeRequest(b"xxx") for _ in range(3)])

    assert requests.next_batch(7, 0.0) == b"xxxxxx"
    assert requests.next_batch(1, 0.0) == b"xxx"


@pytest.mark.parametrize("largest_message", [0, 5], ids=["", "may be refused"])
def test_request_is_never_sent_after_its_deadline(requests, largest_message):
    late, in_time, later = put(
        requests,
        FakeRequest(b"1", largest_message, deadline=1.0),
        FakeRequest(b"2", deadline=2.0),
        FakeRequest(b"3", deadline=3.0),
    )

    assert requests.next_batch(1, 1.0) == b"2"
    assert requests.next_batch(100, 3.0) == b""

    assert (late.outcomes, in_time.outcomes, later.outcomes) == (["overdue"], [], ["overdue"])
    assert (requests.unsent, requests.unsent_bytes, requests.due) == ([], 0, float("inf"))


# --- cancelling


def test_withdrawn_requests_are_never_sent(requests):
    first, second, third = put(requests, FakeRequest(b"1"), FakeRequest(b"22"), FakeRequest(b"333"))

    assert requests.cancel_unsent([third, first]) == [third, first]

    assert requests.unsent == [second]
    assert requests.unsent_bytes == 2
    assert requests.next_batch(100, 0.0) == b"22"
    assert (first.outcomes, third.outcomes) == ([], [])


def test_sent_request_is_not_cancelled(requests):
    (sent,) = put(requests, FakeRequest(b"1"))
    requests.next_batch(100, 0.0)
    (unsent,) = put(requests, FakeRequest(b"2"))

    assert requests.cancel_unsent([sent, FakeRequest(b"3")]) == []
    assert requests.cancel_unsent([]) == []

    assert (list(requests.sent), requests.unsent, requests.unsent_bytes) == ([sent], [unsent], 1)


# --- answers


def test_several_ok_frames_confirm_several_requests(requests):
    asked = put(requests, FakeRequest(b"1"), FakeRequest(b"2"), FakeRequest(b"3"))
    requests.next_batch(100, 0.0)

    assert requests.take_confirmed(OK_FRAME * 2) == asked[:2]

    assert list(requests.sent) == asked[2:]


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(OK_FRAME[:-1], id="cut"),
        pytest.param(OK_FRAME + OK_FRAME[:3], id="cut after one"),
        pytest.param(OK_FRAME * 3, id="more than were sent"),
        pytest.param(encode_frame(RESPONSE, b"NO"), id="another response as long"),
        pytest.param(OK_FRAME + encode_frame(ERROR, b"E_"), id="an error after one"),
    ],
)
def test_data_that_is_not_only_whole_ok_frames_confirms_nothing(requests, data):
    asked = put(requests, FakeRequest(b"1"), FakeRequest(b"2"), FakeRequest(b"unsent"))
    requests.next_batch(2, 0.0)

    assert requests.take_confirmed(data) == []

    assert [request.outcomes for request in asked] == [[], [], []]
    assert len(requests.sent) == 2


# --- the end


def test_lost_connection_makes_sent_requests_unknown_and_others_not_executed(requests):
    (sent,) = put(requests, FakeRequest(b"1"))
    requests.next_batch(100, 0.0)
    (unsent,) = put(requests, FakeRequest(b"2"))

    requests.fail("nsqd:4150", NSQConnectionClosed("gone"))

    assert sent.outcomes == [("lost", "nsqd:4150: gone")]
    assert unsent.outcomes == [("not executed", "nsqd:4150: gone")]
    assert (len(requests), requests.unsent_bytes) == (0, 0)


@pytest.mark.parametrize(
    ("error", "longest", "suspected"),
    [
        pytest.param(NSQSocketError(104, "reset"), 1025, True, id="reset with a long one"),
        pytest.param(NSQSocketError(104, "reset"), 1024, False, id="reset with short ones"),
        pytest.param(NSQSocketError(32, "broken pipe"), 1025, False, id="another error"),
        pytest.param(None, 1025, False, id="closed by us"),
    ],
)
def test_reset_names_the_limits_that_a_long_body_may_have_hit(error, longest, suspected):
    assert ("compare with its --max-msg-size" in str(connection_lost_error("nsqd:4150", error, longest))) is suspected


def test_pending_call_has_the_data_of_its_response(requests):
    answered, refused = put(requests, PendingCall(b"1"), PendingCall(b"2"))
    requests.next_batch(100, 0.0)

    requests.resolve(b"one")
    requests.refuse(NSQMPubFailed("no"))

    assert answered.get(block=False) == b"one"
    assert isinstance(refused.exception, NSQMPubFailed)


# --- confirmed limits


def test_larger_confirmed_size_is_kept_when_a_smaller_one_is_confirmed():
    limits = ConfirmedLimits()
    largest = FakeRequest(b"", 10, mpub_body_size=50, defer=100)
    limits.record_confirmed(largest)

    limits.record_confirmed(FakeRequest(b"", 1))

    assert not limits.may_be_refused(largest)
