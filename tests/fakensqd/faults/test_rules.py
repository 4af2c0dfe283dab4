"""Conditions of rules, and which rule fires on an event."""

from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakensqd import FakeCluster, FakeNsqd
from fakensqd.faults.actions import drop, reorder
from fakensqd.faults.control import FaultControl
from fakensqd.faults.rules import CommandName, Event, Point, Rule, Scenario, on
from fakensqd.lookupd.session import LOOKUPD
from fakensqd.nsqd.session import NSQD
from fakensqd.transcript import Transcript

PUB = Event(Point.COMMAND, "PUB", 0.0, 2, "me", "orders", "", (b"a", b"b"))


def firing(faults, *events):
    """Names of the rules that fire on each event; None for no rule."""
    faults.transcript = Transcript()
    names = []
    for event in events:
        faults.apply_rules(event, ())
        names.append(next(iter(faults.transcript.fired()), None))
        faults.transcript.clear()
    return names


def fired(match, count, *, seed=1):
    """Numbers of the events, of so many alike, on which a rule fires."""
    faults = FaultControl("FakeNsqd", NSQD, seed=seed)
    faults.add([Rule(match, drop())], 0.0)
    names = firing(faults, *(Event(match.point, match.kind or "PUB", 0.0) for _ in range(count)))
    return [number for number, name in enumerate(names, 1) if name]


MATCHES = [
    pytest.param(on.command(), on.reply("PUB"), "it is command, not reply", id="point"),
    pytest.param(on.command("PUB"), on.command("FIN"), "kind is 'PUB', not 'FIN'", id="kind"),
    pytest.param(on.command(topic="orders"), on.command(topic="t"), "topic is 'orders', not 't'", id="topic"),
    pytest.param(on.command(channel=""), on.command(channel="c"), "channel is '', not 'c'", id="channel"),
    pytest.param(on.command(connection=2), on.command(connection=1), "connection is 2, not 1", id="connection"),
    pytest.param(on.command(client_id="me"), on.command(client_id="you"), "client_id is 'me', not 'you'", id="client"),
    pytest.param(on.command(body=b"b"), on.command(body=b"c"), "body is in 2 messages, not b'c'", id="body"),
    pytest.param(
        *(on.command(where=lambda event, count=count: len(event.bodies) == count) for count in (2, 1)),
        "where() says no",
        id="predicate",
    ),
]


@pytest.mark.parametrize(("fitting", "missing", "text"), MATCHES)
def test_match_accepts_the_event_or_says_why_not(fitting, missing, text):
    assert fitting.mismatches(PUB) == []
    assert missing.mismatches(PUB) == [text]


@given(number=st.integers(1, 20), count=st.integers(0, 60))
def test_rule_fires_on_the_events_of_its_times(number, count):
    numbers = range(1, count + 1)

    assert fired(on.command(), count) == [each for each in numbers if each == 1]
    assert fired(on.command().nth(number), count) == [each for each in numbers if each == number]
    assert fired(on.command().first(number), count) == [each for each in numbers if each <= number]
    assert fired(on.command().every(number), count) == [each for each in numbers if each % number == 0]
    assert fired(on.command().always(), count) == list(numbers)


def test_events_before_after_are_not_counted():
    faults = FaultControl("FakeNsqd", NSQD, seed=1)
    faults.add([Rule(on.command().after(5.0).nth(2), drop())], 10.0)

    names = firing(faults, *(Event(Point.COMMAND, "PUB", now) for now in (14.9, 15.0, 15.1)))

    assert [name is not None for name in names] == [False, False, True]


def test_sometimes_depends_on_the_seed():
    match = on.command().sometimes(0.1)

    assert fired(match, 1000, seed=7) == fired(match, 1000, seed=7)
    assert fired(match, 1000, seed=7) != fired(match, 1000, seed=8)
    assert 50 < len(fired(match, 1000)) < 200


WRONG = [
    pytest.param(lambda: on.http("lookup"), id="path"),
    pytest.param(lambda: on.http("/pub", body=b"x"), id="body of a request not executed"),
    pytest.param(lambda: on.command().nth(0), id="nth"),
    pytest.param(lambda: on.command().sometimes(1.5), id="sometimes"),
    pytest.param(lambda: on.command().after(-1), id="after"),
]


@pytest.mark.parametrize("make", WRONG)
def test_invalid_condition_is_refused(make):
    with pytest.raises(ValueError):  # noqa: PT011  # each has its own text
        make()


WRITTEN = [
    (on.reply("PUB", topic="orders").nth(3), "on.reply('PUB', topic='orders').nth(3)"),
    (on.frame("message", body=b"x").every(5), "on.frame('message', body=b'x').every(5)"),
    (on.connect(connection=2).after(1.5).sometimes(0.5), "on.connect(connection=2).after(1.5).sometimes(0.5)"),
    (on.http("/pub", executed=True), "on.http('/pub', executed=True)"),
    (on.command(where=callable), "on.command(where=callable)"),
]


@pytest.mark.parametrize(("match", "text"), WRITTEN, ids=[text for _, text in WRITTEN])
def test_match_is_formatted_as_it_is_written(match, text):
    assert str(match) == text


# --- rules in order ---------------------------------------------------------------------------------------------------


def names(faults, *kinds):
    return firing(faults, *(Event(Point.COMMAND, kind, 0.0) for kind in kinds))


def test_first_rule_that_fires_takes_the_event():
    faults = FaultControl("FakeNsqd", NSQD, seed=1)
    faults.add([Rule(on.command("PUB"), drop(), name="a")], 0.0)
    faults.add([Rule(on.command("PUB"), drop(), name="b")], 0.0)

    assert names(faults, "PUB", "PUB", "PUB") == ["a", "b", None]


def test_scenario_arms_one_rule_after_the_other():
    faults = FaultControl("FakeNsqd", NSQD, seed=1)
    scenario = (
        Scenario()
        .then(on.command("PUB").first(2), drop(), name="a")
        .then(on.command("FIN").always(), drop(), name="b")
        .then(on.command("PUB"), drop(), name="c")
    )
    faults.add(scenario.rules, 0.0)

    assert names(faults, "FIN", "PUB", "FIN", "PUB", "PUB") == [None, "a", None, "a", None]
    assert names(faults, "FIN", "FIN", "PUB") == ["b", "b", "c"]


def test_explanation_has_the_nearest_event():
    faults = FaultControl("FakeNsqd", NSQD, seed=1)
    first = Rule(on.command("PUB", topic="t").nth(2), drop(), name="first")
    second = Rule(on.command("FIN"), drop(), name="second")
    faults.add([first, second], 0.0)
    assert first.explain() == "first: nothing of that kind happened"
    assert second.explain() == "second: never armed, those before it have not fired"

    faults.apply_rules(Event(Point.COMMAND, "SUB", 0.0, 1, topic="u"), ())
    faults.apply_rules(Event(Point.COMMAND, "PUB", 0.0, 1, topic="u"), ())
    assert first.explain() == "first: nearest was PUB topic='u' on connection 1: topic is 'u', not 't'"

    faults.apply_rules(Event(Point.COMMAND, "PUB", 0.0, 1, topic="t"), ())
    assert first.explain() == "first: 1 fitted, and its time did not come"


SWAPPED = [
    pytest.param((drop(), on.reply("PUB")), "(drop(), on.reply('PUB'))", id="swapped"),
    pytest.param((on.reply("PUB"), on.reply("SUB")), "(on.reply('PUB'), on.reply('SUB'))", id="two conditions"),
    pytest.param(("PUB", drop()), "('PUB', drop())", id="a word"),
]


@pytest.mark.parametrize(("arguments", "given"), SWAPPED)
@pytest.mark.parametrize("take", [Rule, Scenario().then, FakeNsqd().add, FakeCluster().add])
def test_arguments_of_a_rule_in_another_order_are_refused(take, arguments, given):
    with pytest.raises(TypeError) as caught:
        take(*arguments)

    assert str(caught.value) == f"{given}: a condition comes first, as on.reply('PUB'), and actions after it, as drop()"


def test_rule_without_a_possible_action_is_refused():
    with pytest.raises(TypeError, match="needs an action"):
        Rule(on.command())
    with pytest.raises(TypeError, match=r"drop is not called: write drop\(\.\.\.\)"):
        Rule(on.command(), drop)
    with pytest.raises(ValueError, match=r"on.command\(\): reorder\(\) is for frame, reply"):
        Rule(on.command(), reorder())


def test_rules_take_the_commands_of_both_servers():
    assert set(get_args(CommandName)) == {*NSQD.commands, *LOOKUPD.commands}
