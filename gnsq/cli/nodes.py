"""Finds the nsqds of a cluster and asks all of them for their statistics, by the Census of gnsq."""

from __future__ import annotations

import dataclasses
import time

from gnsq.addresses import format_address, is_port, is_unix, parse_address
from gnsq.census import Census, Node
from gnsq.cli.servers import Cluster
from gnsq.cli.sums import Snapshot, set_rates

__all__ = ["NodePoller", "http_address"]


def http_address(nsqd: str) -> str:
    """Guess the HTTP address of an nsqd from its TCP address: the port is one higher, as in nsqd's defaults.

    Raises:
        ValueError: If there is no such port.
    """
    host, port = parse_address(nsqd)
    if is_unix(host) or not is_port(port + 1):
        raise ValueError(f"{nsqd} has no HTTP port one above it; give its HTTP address: --nsqd-http HOST:PORT")
    return format_address(host, port + 1)


class NodePoller:
    """Asks the nsqds of a cluster for the numbers of topics and channels.

    The nsqds are those that the nsqlookupds name, and those of --nsqd, at their HTTP addresses.

    Args:
        topic, channel: Ask only for this topic or channel.

    Attributes:
        census: Who asks.
    """

    def __init__(self, cluster: Cluster, topic: str | None = None, channel: str | None = None) -> None:
        self._names = topic, channel
        # Addresses in --nsqd for which there is no HTTP address.
        self._unusable: list[Node] = []
        guessed: list[str] = []
        for nsqd in cluster.nsqds if not cluster.nsqds_http else ():
            try:
                guessed.append(http_address(nsqd))
            except ValueError as error:
                self._unusable.append(Node(nsqd, error=str(error)))
        self.census = Census((*cluster.nsqds_http, *guessed), cluster.lookupds, cluster.http)
        self._has_guessed = bool(guessed)
        # By address: what it has answered last.
        self._before: dict[str, Node] = {}
        self._polled_at: float | None = None

    def poll(self, limit: float | None = None) -> Snapshot:
        """Ask all nsqds, each with the timeout, and wait for all.

        Args:
            limit: Seconds after which those that have not answered are not waited for.
        """
        polled = self.census.poll(*self._names, limit=limit, has_clients=self._names[1] is not None)
        nodes = [self._explained(self._with_rates(node)) for node in polled.nodes]
        self._before |= {node.address: node for node in polled.nodes if node.stats is not None}
        now = time.monotonic()
        seconds = None if self._polled_at is None else now - self._polled_at
        self._polled_at = now
        return Snapshot((*nodes, *self._unusable), polled.lookupds, time.time(), seconds)

    def _with_rates(self, node: Node) -> Node:
        before = self._before.get(node.address)
        if node.stats is None or before is None or before.stats is None:
            return node
        return dataclasses.replace(node, stats=set_rates(node.stats, before.stats, node.polled_at - before.polled_at))

    def _explained(self, node: Node) -> Node:
        if not node.error or node.registered is not None or not self._has_guessed:
            return node
        hint = "the port is that of --nsqd + 1: if nsqd's HTTP port is another one, give --nsqd-http HOST:PORT"
        return dataclasses.replace(node, error=f"{node.error}; {hint}")
