"""Log lines of a producer: each names the producer, one event is one line, and each address is in it once."""

import logging
import re

import pytest

from fakensqd import FakeNsqd
from fakensqd.faults.toxics import stall
from gnsq import Producer
from tests.kit import LIMIT, first_of, wait_until


def test_lost_connections_of_a_producer_to_one_nsqd_are_one_line_that_names_it(nsqd, clock, lines):
    with Producer(nsqd.tcp_address, clock=clock, name="orders", connections_per_nsqd=4) as producer:
        wait_until(lambda: len(producer.stats().connections) == 4)
        nsqd.link.abort()
        clock.advance(0.0)

    (line,) = lines(logging.WARNING)
    assert line == f"{nsqd.tcp_address}: orders: connection lost: nsqd closed the connection; trying again in 0.1 s"


def test_option_that_nsqd_does_not_offer_is_one_warning_for_all_connections_to_it(lines):
    with (
        FakeNsqd(snappy=False) as nsqd,
        Producer(nsqd.tcp_address, name="orders", snappy=True, connections_per_nsqd=3),
    ):
        # On a busy machine, another one says that the start takes a second.
        assert [line for line in lines(logging.WARNING) if "awaited" not in line] == [
            f"{nsqd.tcp_address}: orders: snappy was asked for and nsqd does not offer it; going on without compression"
        ]


def test_stalled_nsqd_is_logged_with_its_producer_and_again_when_it_answers(clock, lines):
    with FakeNsqd(clock=clock) as one, FakeNsqd(clock=clock) as two:
        addresses = [one.tcp_address, two.tcp_address]
        with Producer(addresses, clock=clock, name="orders", strategy=first_of([one, two])) as producer:
            clock.advance(0.0)  # both connect
            with one.link.add(stall()):
                result = producer.publish_async("t", b"x", timeout=300)
                clock.advance(20.0)
            assert lines(logging.WARNING) == [
                f"{one.tcp_address}: orders: has not answered for 5 s; publishes go to other nsqds"
            ]
            clock.advance(20.0)
            result.get(timeout=LIMIT)

        assert f"{one.tcp_address}: orders: is published to again" in lines()


def test_repr_of_a_producer_says_how_it_is(fakensqd):
    producer = Producer(fakensqd.tcp_address, name="orders")
    assert repr(producer) == "<Producer orders init, 0 connections, 0 publishes pending>"
    with producer:
        producer.publish_async("t", b"x")
        assert repr(producer) == "<Producer orders running, 1 connection, 1 publish pending>"

    assert repr(producer) == "<Producer orders closed, 0 connections, 0 publishes pending>"


def test_producers_without_a_name_get_different_names():
    one, two = Producer("a"), Producer("a")

    assert re.fullmatch(r"producer-\d+", one.name)
    assert one.name != two.name


def test_name_of_a_producer_is_a_str():
    with pytest.raises(TypeError, match=r"name of a producer must be a str, not 5"):
        Producer("a", name=5)
