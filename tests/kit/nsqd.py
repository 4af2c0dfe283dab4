"""What tests ask an nsqd, fake or real."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from gnsq import Message, NsqdHTTPClient, NsqdTCPClient
from tests.kit.waits import LIMIT, wait_until


class Nsqd(Protocol):
    """The addresses of an nsqd, fake or real."""

    tcp_address: str
    http_address: str


def channel_stats(nsqd: Nsqd, topic: str, channel: str) -> dict[str, Any]:
    """Return nsqd's statistics of one channel."""
    stats = NsqdHTTPClient.from_url(nsqd.http_address).stats(topic, channel)
    (found,) = stats["topics"]
    (result,) = found["channels"]
    return result


def bodies(nsqd: Nsqd, topic: str, channel: str = "bodies") -> list[bytes]:
    """Read and finish all messages of a topic through a new channel; returns the bodies in their order."""
    host, port = nsqd.tcp_address.split(":")
    client = NsqdTCPClient(host, int(port), timeout=LIMIT)
    client.connect()
    client.subscribe(topic, channel)
    client.check_ok()
    client.ready(2500)
    count = channel_stats(nsqd, topic, channel)["message_count"]
    got: list[bytes] = []
    while len(got) < count:
        message = client.read_response()[1]
        assert isinstance(message, Message)
        got.append(message.body)
        message.finish()
    client.close_stream()
    # nsqd would give the next message to a client that it does not know to be gone.
    wait_until(lambda: not channel_stats(nsqd, topic, channel)["clients"])
    return got


def first_of(nsqds: Sequence[Any]) -> Callable[[Sequence[Any]], Any]:  # Any: FakeNsqd, and links
    """Make a strategy of a producer: the first of these nsqds that has a link; of its links, the least busy."""
    addresses = [nsqd.tcp_address for nsqd in nsqds]
    return lambda links: min(links, key=lambda link: (addresses.index(link.address), link.pending))
