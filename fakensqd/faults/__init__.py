"""Faults: what a test can do to the connections of an emulated daemon.

Rules (``on``, the actions, Scenario) act on what is said; toxics, in a module of their own, on the bytes of the link.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fakensqd.faults.action import Action
    from fakensqd.faults.actions import (
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

# The others are actions.
_MODULES = {
    "Action": "action",
    "Event": "match",
    "Match": "match",
    "Point": "match",
    "Rule": "scenario",
    "Scenario": "scenario",
    "Times": "match",
    "on": "match",
}


def __getattr__(name: str) -> object:
    """Load a public name: a server that is given no rules loads none. Source: PEP 562."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES.get(name, 'actions')}"), name)
