"""Health over HTTP: why a receiver is not live, or not ready."""

import pytest

from gnsq.spark.receiver.exporter import ReceiverCollector
from gnsq.spark.receiver.health import parse_health_address, why_not_live, why_not_ready
from tests.kit import refused_port
from tests.spark.helpers import numbered, publish, wait_for
from tests.spark.receiver.test_exporter import samples


def test_receiver_is_ready_while_it_receives(hub, make):
    receiver = make()
    assert why_not_ready(receiver) == "the spool is not open yet"

    hub.call(receiver.start)
    wait_for(lambda: hub.call(lambda: receiver.subscriptions.nsqds))
    assert hub.call(why_not_ready, receiver) == ""

    hub.call(receiver.close)
    assert hub.call(why_not_ready, receiver) == "stopping"


def test_receiver_without_any_nsqd_that_answers_is_not_ready(hub, make):
    address = f"127.0.0.1:{refused_port()}"
    receiver = make(nsqd_tcp_addresses=(address,))

    hub.call(receiver.start)

    wait_for(lambda: hub.call(why_not_ready, receiver).startswith(f"{address} not connected: "))
    assert hub.call(why_not_live, receiver) == ""


def test_receiver_is_ready_although_nsqlookupd_names_no_nsqd(fakelookupd, hub, make):
    receiver = make(nsqd_tcp_addresses=(), lookupd_http_addresses=(fakelookupd.http_address,))

    hub.call(receiver.start)

    assert hub.call(why_not_ready, receiver) == ""


def test_failing_disk_makes_a_receiver_not_ready_but_leaves_it_live(fakensqd, hub, make, disk):
    disk.fail(".arrow", OSError(28, "No space left on device"))
    receiver = make()
    hub.call(receiver.start)
    publish(fakensqd, "clicks", numbered(1))

    wait_for(lambda: hub.call(why_not_ready, receiver) == "the spool can't be written, see the log")
    assert hub.call(why_not_live, receiver) == ""
    assert hub.call(samples, ReceiverCollector(receiver))["gnsq_receiver_spool_failing", "archive"] == 1


def test_receiver_whose_write_hangs_is_not_live(fakensqd, hub, make, disk):
    disk.hold(".arrow")
    receiver = make()
    hub.call(receiver.start)
    publish(fakensqd, "clicks", numbered(1))
    assert disk.was_reached.wait(20)

    assert hub.call(why_not_live, receiver, 0.0).startswith("the spool's file system has not answered for ")
    assert hub.call(why_not_live, receiver) == ""


# --- its address


def test_address_without_host_or_port_is_refused():
    for address in ("127.0.0.1", ":8080", "127.0.0.1:0", "127.0.0.1:http", "/run/health"):
        with pytest.raises(ValueError, match="address"):
            parse_health_address(address)
