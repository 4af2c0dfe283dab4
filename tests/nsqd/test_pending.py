"""Which requests are sent when, and who gets which answer: by values, nothing is sent."""

import pytest

from gnsq.errors import NSQConnectionClosed, NSQMPubFailed, NSQSocketError, make_error
from gnsq.nsqd.pending import PendingCall, PendingRequests, connection_lost_error
from gnsq.protocol.frames import ERROR, OK, RESPONSE, encode_frame

OK_FRAME = encode_frame(RESPONSE, OK)


class Asked:
    """A request that writes down what it is told."""

    def __init__(self, command, largest_message=0, mpub_body_size=0, defer=0, topic=""):
        self.command = command
        self.size = len(command)
        self.largest_message = largest_message
        self.mpub_body_size = mpub_body_size
        self.defer = defer
        self.topic = topic
        self.told = []

    def on_response(self, data):
        self.told.append(data)

    def on_error(self, error):
        self.told.append(("refused", error))

    def on_connection_lost(self, error):
        self.told.append(("lost", str(error)))

    def on_not_sent(self, error):
        self.told.append(("not executed", str(error)))


@pytest.fixture
def kicks():
    return []


@pytest.fixture
def requests(kicks):
    return PendingRequests(lambda: kicks.append(True))


def put(requests, *all_of_them):
    for request in all_of_them:
        requests.put(request)
    return list(all_of_them)


# --- what is sent


@pytest.mark.parametrize(
    ("sizes", "limit", "taken"),
    [
        pytest.param([3, 3, 3], 9, 3, id="all that fit"),
        pytest.param([3, 3, 3], 8, 2, id="those that fit"),
        pytest.param([3, 3, 3], 6, 2, id="up to the limit"),
        pytest.param([9, 1], 3, 1, id="one that is longer, alone"),
        pytest.param([1, 9], 3, 1, id="what is before one that is longer"),
        pytest.param([], 3, 0, id="nothing"),
    ],
)
@pytest.mark.parametrize("doubtful", [False, True], ids=["nothing doubtful", "after something doubtful"])
def test_take_hands_over_about_so_many_bytes(requests, sizes, limit, taken, doubtful):
    if doubtful:
        put(requests, Asked(b"x", largest_message=1))
        requests.next_batch(1)
        requests.resolve(OK)
        put(requests, *[Asked(b"x" * size, largest_message=1, defer=0) for size in sizes])
    else:
        put(requests, *[Asked(b"x" * size) for size in sizes])

    data = requests.next_batch(limit)

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
def test_what_nsqd_may_refuse_goes_alone(requests, kicks, claim):
    put(requests, Asked(b"0", largest_message=10))
    requests.next_batch(100)
    requests.resolve(OK)
    assert requests.next_batch(100) == b""
    del kicks[:]
    put(requests, Asked(b"1"), Asked(b"2", **claim), Asked(b"3"))

    assert requests.next_batch(100) == b"13"
    assert requests.next_batch(100) == b""
    assert requests.blocked
    put(requests, Asked(b"4"))
    requests.resolve(OK)
    requests.resolve(OK)
    assert (requests.blocked, kicks) == (False, [True])
    assert requests.next_batch(100) == b"2"
    assert requests.next_batch(100) == b""
    requests.resolve(OK)
    assert requests.next_batch(100) == b"4"


def test_where_nothing_is_known_the_least_goes_first(requests):
    put(
        requests, Asked(b"1", largest_message=2_000_000), Asked(b"2", largest_message=1), Asked(b"3", largest_message=1)
    )

    assert requests.next_batch(100) == b"2"
    requests.resolve(OK)
    assert requests.next_batch(100) == b"3"


def test_what_all_have_waited_for_is_not_put_off_again(requests):
    put(requests, Asked(b"0", largest_message=10))
    requests.next_batch(100)
    requests.resolve(OK)
    put(requests, Asked(b"1", largest_message=20), Asked(b"2", largest_message=1))
    assert requests.next_batch(100) == b"2"
    assert requests.next_batch(100) == b""

    put(requests, Asked(b"3", largest_message=15), Asked(b"4", largest_message=1))
    requests.resolve(OK)

    assert requests.next_batch(100) == b"1"


@pytest.mark.parametrize("claim", DOUBTFUL)
def test_what_nsqd_has_taken_goes_with_others(requests, claim):
    put(requests, Asked(b"0", **claim))
    requests.next_batch(100)
    requests.resolve(OK)
    put(requests, Asked(b"1"), Asked(b"2", **claim), Asked(b"3"))

    assert requests.next_batch(100) == b"123"


def test_what_was_not_sent_alone_proves_nothing(requests):
    put(requests, Asked(b"1"), Asked(b"2", largest_message=1))
    requests.next_batch(100)

    requests.resolve(OK)
    put(requests, Asked(b"3"))

    assert requests.next_batch(100) == b"2"


def test_first_publish_to_each_topic_goes_alone_where_they_need_leave(requests):
    requests.check_topics()
    put(requests, Asked(b"1", topic="t"), Asked(b"2", topic="t"), Asked(b"3", topic="u"))

    assert requests.next_batch(100) == b"1"
    requests.resolve(OK)
    assert requests.next_batch(100) == b"2"
    requests.resolve(OK)
    assert requests.next_batch(100) == b"3"


def test_behind_doubts_as_much_is_sent_as_before(requests):
    put(requests, Asked(b"0", largest_message=1))
    requests.next_batch(100)
    requests.resolve(OK)
    put(requests, *[Asked(b"xxx") for _ in range(3)])

    assert requests.next_batch(7) == b"xxxxxx"


# --- what is taken back


def test_withdrawn_requests_are_never_sent(requests):
    first, second, third = put(requests, Asked(b"1"), Asked(b"22"), Asked(b"333"))

    assert requests.cancel_unsent([third, first]) == [third, first]

    assert requests.unsent == [second]
    assert requests.unsent_bytes == 2
    assert requests.next_batch(100) == b"22"
    assert (first.told, third.told) == ([], [])


def test_what_was_sent_or_is_anothers_is_not_withdrawn(requests):
    (sent,) = put(requests, Asked(b"1"))
    requests.next_batch(100)
    (unsent,) = put(requests, Asked(b"2"))

    assert requests.cancel_unsent([sent, Asked(b"3")]) == []
    assert requests.cancel_unsent([]) == []

    assert (list(requests.sent), requests.unsent, requests.unsent_bytes) == ([sent], [unsent], 1)


# --- answers


def test_answers_go_to_the_oldest_that_was_sent(requests):
    first, second = put(requests, Asked(b"1"), Asked(b"2"))
    requests.next_batch(100)

    requests.resolve(b"one")

    assert (first.told, second.told) == ([b"one"], [])


def test_oks_that_come_together_are_given_out_together(requests):
    asked = put(requests, Asked(b"1"), Asked(b"2"), Asked(b"3"))
    requests.next_batch(100)

    assert requests.resolve_oks(OK_FRAME * 2)

    assert [request.told for request in asked] == [[OK], [OK], []]


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(OK_FRAME[:-1], id="cut"),
        pytest.param(OK_FRAME + OK_FRAME[:3], id="cut behind one"),
        pytest.param(OK_FRAME * 3, id="more than were sent"),
        pytest.param(encode_frame(RESPONSE, b"NO"), id="another response as long"),
        pytest.param(OK_FRAME + encode_frame(ERROR, b"E_"), id="an error behind one"),
    ],
)
def test_what_is_not_only_whole_oks_is_left_to_others(requests, data):
    asked = put(requests, Asked(b"1"), Asked(b"2"), Asked(b"unsent"))
    requests.next_batch(2)

    assert not requests.resolve_oks(data)

    assert [request.told for request in asked] == [[], [], []]
    assert len(requests.sent) == 2


def test_refusal_goes_to_the_oldest(requests):
    first, second = put(requests, Asked(b"1"), Asked(b"2"))
    requests.next_batch(100)
    error = NSQMPubFailed("MPUB failed exiting")

    requests.refuse(error)

    assert (first.told, second.told) == ([("refused", error)], [])


def test_refusal_of_nothing_that_was_sent_is_nobodys(requests):
    (unsent,) = put(requests, Asked(b"1"))

    requests.refuse(NSQMPubFailed("MPUB failed exiting"))

    assert unsent.told == []


# --- the end


def test_what_was_sent_is_lost_with_the_connection_and_what_was_not_is_not_executed(requests):
    (sent,) = put(requests, Asked(b"1"))
    requests.next_batch(100)
    (unsent,) = put(requests, Asked(b"2"))

    requests.fail("nsqd:4150", NSQConnectionClosed("gone"))

    assert sent.told == [("lost", "nsqd:4150: gone")]
    assert unsent.told == [("not executed", "nsqd:4150: gone")]
    assert (len(requests), requests.unsent_bytes) == (0, 0)


def test_nothing_behind_a_refusal_is_executed(requests):
    asked = put(requests, Asked(b"1"), Asked(b"2"))
    requests.next_batch(1)

    requests.fail("nsqd:4150", make_error(b"E_BAD_MESSAGE too big"))

    assert [told for request in asked for told, _ in request.told] == ["not executed", "not executed"]
    assert "this one was not executed" in asked[0].told[0][1]


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


def test_call_holds_its_answer(requests):
    answered, refused = put(requests, PendingCall(b"1"), PendingCall(b"2"))
    requests.next_batch(100)

    requests.resolve(b"one")
    requests.refuse(NSQMPubFailed("no"))

    assert answered.get(block=False) == b"one"
    assert isinstance(refused.exception, NSQMPubFailed)
