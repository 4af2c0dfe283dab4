"""Faults that a test injects into an emulated daemon.

Rules (``on``, the actions, Scenario) act on commands, replies, frames, connections and HTTP requests. Toxics, in
fakensqd.faults.toxics, act on the bytes of connections.
"""

from fakensqd.faults import actions
from fakensqd.faults.actions import *  # noqa: F403  # so that an action is declared in one module
from fakensqd.faults.rules import Action, Event, Match, Point, Rule, Scenario, Times, on

__all__ = ["Action", "Event", "Match", "Point", "Rule", "Scenario", "Times", "on"]
__all__ += actions.__all__


def __dir__() -> list[str]:
    """List the public names only."""
    return sorted(__all__)
