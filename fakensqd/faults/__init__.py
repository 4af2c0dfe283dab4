"""Faults that a test injects into an emulated daemon.

Rules (``on``, the actions, Scenario) act on commands, replies, frames, connections and HTTP requests. Toxics, in
fakensqd.faults.toxics, act on the bytes of connections.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fakensqd.faults.actions import (
        answer,
        corrupt,
        delay,
        disconnect,
        drop,
        duplicate,
        error,
        expire_message,
        inject,
        refuse,
        reorder,
        reset,
    )
    from fakensqd.faults.rules import Action, Event, Match, Point, Rule, Scenario, Times, on

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
    "expire_message",
]

_IN_RULES = ("Action", "Event", "Match", "Point", "Rule", "Scenario", "Times", "on")
_MODULES = {name: "rules" if name in _IN_RULES else "actions" for name in __all__}


def __dir__() -> list[str]:
    """List the public names, also those that are not loaded yet."""
    return sorted(__all__)


def __getattr__(name: str) -> object:
    """Load a public name when it is used, so that servers without rules do not load the actions. Source: PEP 562."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
