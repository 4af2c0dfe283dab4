"""Values that people and hostile peers write: JSON, TOML, and texts of settings."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import HealthCheck, Phase, core, given, seed, settings
from hypothesis import strategies as st

# What arithmetic, comparison or text can choke on.
numbers = st.integers() | st.floats() | st.sampled_from([0, -1, 2**63, 10**400, -(10**400)])


def json_values(names: st.SearchStrategy[str] = st.text(max_size=4)) -> st.SearchStrategy:  # noqa: B008  # a constant
    """JSON of a few values, with these names in its objects."""
    return st.recursive(
        st.none() | st.booleans() | numbers | st.text(max_size=8),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
        max_leaves=6,
    )


values = json_values()
# Texts that people give to settings.
texts = st.text(max_size=12) | st.builds(
    "{}{}".format,
    st.integers() | st.floats() | st.sampled_from(["", "1", "+5", "1_0", ".5", "9" * 400, "9" * 5000, "²", "-", "1m1"]),
    st.sampled_from(["", "s", "ms", "m", "h", "d", " minutes", "K", "G", "%", ":4150", "\x00", "\udcff", " ", "x"]),
)


def toml(value: object) -> str:
    """Write a value of JSON as TOML; what TOML does not have becomes something that is no TOML."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(name)} = {toml(each)}" for name, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    if isinstance(value, float):
        return repr(value)
    return json.dumps(value, ensure_ascii=not isinstance(value, str) or not value.isprintable())


def drawn(strategy: st.SearchStrategy, count: int, number: int | None = None) -> list[Any]:  # Any: the strategy's
    """Draw values that depend on a seed alone, for a test that handles all of them together.

    Args:
        number: The seed; default: that of make fuzz, else always the same.
    """
    found: list[Any] = []
    limits = {"suppress_health_check": list(HealthCheck), "deadline": None}

    @seed((core.global_force_seed or 0) if number is None else number)
    @settings(max_examples=count, database=None, phases=[Phase.generate], **limits)
    @given(strategy)
    def draw(value: object) -> None:
        found.append(value)

    draw()
    return found
