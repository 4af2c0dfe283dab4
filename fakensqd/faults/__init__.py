"""Faults: what a test can do to the connections of an emulated daemon.

Rules (``on``, the actions, Scenario) act on what is said; toxics, in a module of their own, on the bytes of the link.
"""

from __future__ import annotations

from fakensqd.faults.actions import (
    Action,
    answer,
    corrupt,
    delay,
    disconnect,
    drop,
    duplicate,
    error,
    inject,
    refuse,
    reorder,
    reset,
    time_out,
)
from fakensqd.faults.match import Event, Match, Point, Times, on
from fakensqd.faults.scenario import Rule, Scenario

__all__ = [
    "Action",
    "Event",
    "Match",
    "Point",
    "Rule",
    "Scenario",
    "Times",
    "answer",
    "corrupt",
    "delay",
    "disconnect",
    "drop",
    "duplicate",
    "error",
    "inject",
    "on",
    "refuse",
    "reorder",
    "reset",
    "time_out",
]
