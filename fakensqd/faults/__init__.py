"""Faults: what a test can do to the connections of an emulated daemon.

Rules (``on``, the actions, Scenario) act on what is said; toxics, in a module of their own, on the bytes of the link.
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
        inject,
        refuse,
        reorder,
        reset,
        time_out,
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
    "time_out",
]

_MODULES = {
    "Action": "rules",
    "Event": "rules",
    "Match": "rules",
    "Point": "rules",
    "Rule": "rules",
    "Scenario": "rules",
    "Times": "rules",
    "answer": "actions",
    "corrupt": "actions",
    "delay": "actions",
    "disconnect": "actions",
    "drop": "actions",
    "duplicate": "actions",
    "error": "actions",
    "inject": "actions",
    "on": "rules",
    "refuse": "actions",
    "reorder": "actions",
    "reset": "actions",
    "time_out": "actions",
}


def __dir__() -> list[str]:
    """List the public names, loaded or not."""
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> object:
    """Load a public name: a server that is given no rules loads none. Source: PEP 562."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
