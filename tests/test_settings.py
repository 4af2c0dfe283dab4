"""Values of settings from texts and from TOML."""

from __future__ import annotations

import contextlib
import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakensqd.options import NsqdOptions
from gnsq.consumer.options import ConsumerOptions
from gnsq.http.options import HttpOptions
from gnsq.options import ConnectionOptions, Options, option
from gnsq.settings import TIME_UNITS, parse_number, read_value
from tests.strategies import texts, values


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        *[(".5m", 30.0), ("1.s", 1.0), ("-1s", -1.0), ("+3us", 3e-6), ("3\u00b5s", 3e-6), ("3\u03bcs", 3e-6)],
        *[("7ns", 7e-9), (" 0.5 ", 0.5), ("1d12h", 129600.0), ("90 s", 90.0), (" 1 hour 30 minutes ", 5400.0)],
    ],
)
def test_number_or_duration_is_seconds(text, seconds):
    assert parse_number(text, TIME_UNITS) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "-", "s", ".s", "1x", "1s x", "--1s", "1 5 s", "5 blue", "minutes"])
def test_text_that_is_neither_number_nor_duration_is_refused(text):
    with pytest.raises(ValueError, match="not a duration"):
        parse_number(text, TIME_UNITS)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings(Options):
    timeout: float = option(1.0, "", unit="s", minimum=0.001)
    count: int = option(1, "", minimum=1)
    part: float | None = option(None, "", minimum=0, maximum=1)
    on: bool = option(False, "")
    size: int | None = option(None, "", unit="bytes", minimum=1)
    kind: str = option("a", "", choices=("a", "b"))
    names: tuple[str, ...] = option((), "")
    secrets: tuple[str, ...] = option((), "", secret=True)


FIELDS = Settings.__dataclass_fields__
VALUES = [
    *[("timeout", "10m", 600.0), ("timeout", 5, 5), ("count", "7", 7), ("part", "0.5", 0.5), ("size", "1.5M", 3 << 19)],
    *[("on", True, True), ("kind", "b", "b"), ("names", "a", ("a",)), ("names", ["a", "b"], ("a", "b"))],
]
REFUSED = [
    ("timeout", "soon", "timeout must be a number of seconds, or a duration such as 500ms, 1m30s or 3d, not 'soon'"),
    ("timeout", "0s", "timeout 0s must be at least 0.001 s"),
    ("timeout", [1], "timeout must be a number of seconds, or a duration such as 500ms, 1m30s or 3d, not list"),
    ("size", "1 byte", "size must be a number of bytes, such as 500000, 100M or 1G, not '1 byte'"),
    ("count", "1.5", "count must be a whole number, not '1.5'"),
    ("on", "yes", "on must be true or false, not 'yes'"),
    ("kind", "c", "kind 'c' must be one of a, b"),
    ("names", 5, "names must be a string or a list of strings, not 5"),
    ("secrets", 5, "secrets must be a string or a list of strings, not a int"),
]


@pytest.mark.parametrize(("name", "given", "value"), VALUES)
def test_value_is_read_by_the_type_of_its_field(name, given, value):
    assert read_value(FIELDS[name], given) == value


@pytest.mark.parametrize(("name", "given", "text"), REFUSED)
def test_refused_value_is_named_with_what_is_right(name, given, text):
    with pytest.raises((TypeError, ValueError)) as caught:
        read_value(FIELDS[name], given)

    assert str(caught.value) == text


ALL_FIELDS = [
    pytest.param(field, id=f"{kind.__name__} {field.name}")
    for kind in (Settings, ConnectionOptions, ConsumerOptions, HttpOptions, NsqdOptions)
    for field in dataclasses.fields(kind)
]


@given(st.sampled_from([param.values[0] for param in ALL_FIELDS]), texts | values)
def test_any_value_is_taken_or_refused_with_the_name_of_the_setting(field, value):
    text = ""
    try:
        read = read_value(field, value)
    except (TypeError, ValueError) as error:
        text = str(error)
    else:
        assert read_value(field, read) == read or read != read  # nan

    assert text == "" or text.startswith(field.name)


@given(st.text(alphabet="0123456789.hmsun \u00b5+-dx", max_size=12) | texts)
def test_any_text_is_a_duration_or_refused(text):
    with contextlib.suppress(ValueError):
        assert isinstance(parse_number(text, TIME_UNITS), float)


@given(st.lists(st.tuples(st.integers(0, 10**6), st.sampled_from(sorted(TIME_UNITS))), min_size=1, max_size=4))
def test_duration_is_the_sum_of_its_parts(parts):
    text = "".join(f"{number}{unit}" for number, unit in parts)

    # sum() is more exact since Python 3.12.
    assert parse_number(text, TIME_UNITS) == pytest.approx(sum(number * TIME_UNITS[unit] for number, unit in parts))
