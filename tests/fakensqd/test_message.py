"""Message ids: they have nsqd's layout, rise, and never repeat."""

from fakensqd.message import MessageIdGenerator

NOW = 1_795_243_560 * 10**9


def test_message_id_has_time_node_and_sequence():
    (message_id,) = MessageIdGenerator(node_id=513).next(1, NOW)

    value = int(message_id, 16)
    assert len(message_id) == 16
    assert value >> 22 == (NOW >> 20) - 1288834974288
    assert value >> 12 & 1023 == 513
    assert value & 4095 == 0


def test_ids_rise_and_never_repeat_in_a_tick_beyond_it_and_when_the_clock_goes_back():
    source = MessageIdGenerator(7)

    ids = [*source.next(3, NOW), *source.next(10_000, NOW), *source.next(1, NOW + 2**20), *source.next(9, NOW - 10**9)]

    assert ids == sorted(set(ids))
    assert len(ids) == 10_013
    assert {int(message_id, 16) >> 12 & 1023 for message_id in ids} == {7}
