"""--where and --contains."""

import json

import click
import pytest
from click.testing import CliRunner
from hypothesis import assume, given
from hypothesis import strategies as st

from gnsq.cli.filters import BodyFilter, Condition, filter_options
from tests.strategies import json_values

BODY = {
    "country": "NO",
    "user": {"id": 7, "name": "Ada", "tags": ["new", "vip"]},
    "items": [{"price": 9.5}],
    "paid": True,
    "one": 1,
    "note": None,
    "sum": "=1",
}


@click.command()
@filter_options
def command(body_filter):
    return body_filter.chooses


def choice(*options):
    """Return what the options choose, as a function of a body."""
    return command.main(options, standalone_mode=False)


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("country=NO", True),
        ("country=N", False),
        ("country!=SE", True),
        ("country!=NO", False),
        ("country~N", True),
        ("user.id=7", True),
        ("user.id=7.0", True),
        ("user.id=8", False),
        ("user.name~da", True),
        ("user.tags~vip", True),
        ("user.tags.1=vip", True),
        ("user.tags.2=vip", False),
        ("items.0.price=9.5", True),
        ("paid=true", True),
        ("paid=1", False),
        ("one=true", False),
        ("note=null", True),
        ("note=", False),
        ("missing=null", False),
        ("missing!=1", True),
        ("missing~1", False),
        ("user.id.x=7", False),
        ('user.tags=["new", "vip"]', True),
        ("country=NO=", False),
        ('country="NO"', True),
        ('sum="=1"', True),
        ("sum~=1", True),
        ("items.00000.price=9.5", True),
        ("items." + "9" * 5000 + ".price=9", False),
        ("user.tags.²=vip", False),
    ],
)
def test_condition_on_a_field(condition, expected):
    assert choice("--where", condition)(json.dumps(BODY).encode()) is expected


@pytest.mark.parametrize("body", [b"text", b"\xff", b"", b"[" * 100_000], ids=["text", "bytes", "empty", "deep"])
@pytest.mark.parametrize("condition", ["a=1", "a!=1"])
def test_body_that_is_not_json_is_not_chosen_by_a_condition(body, condition):
    assert not choice("--where", condition)(body)


def test_body_that_is_nested_too_deeply_for_a_comparison_is_not_chosen():
    chooses = choice("--where", "a~1")
    # How deep is too deep depends on the version of Python.
    depths = (10, *range(900, 1000), 100_000)

    assert {chooses(b'{"a":' * depth + b"1" + b"}" * depth) for depth in depths} == {True, False}


def test_all_conditions_must_be_true():
    chooses = choice("--where", "a=1", "--where", "b=2", "--contains", "x")

    assert chooses(b'{"a": 1, "b": 2, "c": "x"}')
    assert not chooses(b'{"a": 1, "b": 3, "c": "x"}')
    assert not chooses(b'{"a": 1, "b": 2}')


def test_text_is_found_in_bytes():
    assert choice("--contains", "größe")("\x00 größer".encode() + b"\xff")


@pytest.mark.parametrize(
    "condition", ["country", "=NO", "", "country==NO", "country!==NO", "country=~NO", "n>=9", "n<>9", "n = 9", "n= 9"]
)
def test_condition_with_no_operator_or_one_of_another_language_is_refused(condition):
    result = CliRunner().invoke(command, ["--where", condition])

    assert result.exit_code == 2
    assert "is not FIELD=VALUE" in result.output


WORDS = st.sampled_from("ab0")


@given(
    json_values(WORDS).map(json.dumps) | st.text(),
    st.lists(WORDS | st.text(max_size=3), min_size=1, max_size=3),
    st.sampled_from(["=", "!=", "~"]),
    json_values(WORDS).map(json.dumps) | st.text(max_size=5),
)
def test_any_condition_chooses_any_body_or_does_not(body, path, operator, value):
    data = body.encode("utf-8", "surrogatepass")

    chosen = BodyFilter((Condition(tuple(path), operator, value),)).chooses(data)

    assert chosen in (True, False)


@given(json_values(WORDS), st.lists(WORDS, min_size=1, max_size=4))
def test_field_equals_its_own_value(inner, path):
    body = inner
    for key in reversed(path):
        body = {key: body}
    data, text = json.dumps(body).encode(), json.dumps(inner)
    assume("NaN" not in text)  # it is no JSON, and Python's json takes it
    equal, unequal = (BodyFilter((Condition(tuple(path), each, text),)) for each in ("=", "!="))

    assert equal.chooses(data)
    assert not unequal.chooses(data)
    assert not BodyFilter((Condition((*path, "x"), "=", text),)).chooses(data)
