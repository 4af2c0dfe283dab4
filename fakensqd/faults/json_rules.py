"""Decode and encode rules, toxics and states of a server as JSON, for clients in another process or language.

Pure. JSON has the same names and arguments as the Python functions and classes, as in these examples:

``{"on": "reply", "kind": "PUB", "topic": "orders", "times": {"nth": 3}, "actions": [{"action": "disconnect"}]}``,
``{"toxic": "latency", "seconds": 0.2, "upstream": true}``. Bytes are text (not for inject) or ``{"base64": "..."}``.
"""

from __future__ import annotations

import binascii
import dataclasses
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from reprlib import repr as _shown  # shortens long values
from typing import TYPE_CHECKING, Any

from fakensqd.faults.actions import ACTIONS
from fakensqd.faults.rules import EQUAL_FIELDS, Action, Match, Rule, on
from fakensqd.faults.toxics import TOXICS, Toxic
from fakensqd.transcript import decode_bytes, encode_bytes
from gnsq.texts import nearest

if TYPE_CHECKING:
    from fakensqd.faults.link import ActiveToxic

__all__ = ["decode_rules", "decode_state", "decode_toxic", "encode_rule", "encode_toxic"]

_Object = Mapping[str, Any]  # Any: JSON
# A function that reads the value of a field or raises, and a description of the allowed values for the error text.
_Field = tuple[Callable[[Any], Any], str]  # Any: JSON


# --- fields -----------------------------------------------------------------------------------------------------------


def _typed(kind: type, allowed: str) -> _Field:
    def read(value: Any) -> Any:  # Any: JSON
        if type(value) is not kind:
            raise ValueError
        return value

    return read, allowed


def _number(kind: type[int | float], allowed: str, minimum: float = -sys.float_info.max) -> _Field:
    def read(value: Any) -> Any:
        if type(value) not in (int, kind) or not minimum <= value <= sys.float_info.max:
            raise ValueError
        return kind(value)

    return read, allowed


def _integers(value: Any) -> tuple[int, ...]:
    return tuple(map(_INTEGER[0], _typed(list, "a list")[0](value)))


def _frame(value: Any) -> bytes | str:
    return "heartbeat" if value == "heartbeat" else decode_bytes({"base64": value["base64"]})


def _integer_or_bytes(value: Any) -> int | bytes:
    return value if type(value) is int else decode_bytes(value)


def _true(value: Any) -> bool:
    if value is not True:
        raise ValueError
    return True


_TEXT = _typed(str, "text")
_FLAG = _typed(bool, "true or false")
_INTEGER = _number(int, "a whole number")
_NUMBER = _number(float, "a number")
_COUNT = _number(int, "a whole number from 1", minimum=1)
_BYTES: _Field = (decode_bytes, 'text, or {"base64": "..."}')
_MATCHERS: dict[str, _Field] = {
    "kind": _TEXT,
    "topic": _TEXT,
    "channel": _TEXT,
    "connection": _COUNT,
    "client_id": _TEXT,
    "body": _BYTES,
    "method": _TEXT,
    "executed": _FLAG,
}
_TIMES: dict[str, _Field] = {
    "nth": _COUNT,
    "first": _COUNT,
    "every": _COUNT,
    "sometimes": _NUMBER,
    "always": (_true, "true"),
    "after": _NUMBER,
}
# Arguments of actions, toxics and states, by their annotation. The action, toxic or method itself checks the bounds.
_ANNOTATED: dict[str, _Field] = {
    "str": _TEXT,
    "Part": _TEXT,
    "bool": _FLAG,
    "int": _INTEGER,
    "int | None": _INTEGER,
    "float": _NUMBER,
    "bytes | None": _BYTES,
    "Frame": (_frame, '"heartbeat", or {"base64": "..."}'),
    "int | bytes | None": (_integer_or_bytes, f"a whole number, {_BYTES[1]}"),
    "tuple[int, ...]": (_integers, "a list of whole numbers"),
}
_TOXIC_TARGET: dict[str, _Field] = {"upstream": _FLAG, "connection": _COUNT}
_RULE = ("on", "times", "actions", "optional", "name")
# For each value of the JSON field "on": the method of the class ``on``, and its matchers (keys of _MATCHERS).
_CONNECTION_MATCHERS = ("kind", "topic", "channel", "connection", "client_id", "body")
_POINTS: dict[str, tuple[Callable[..., Match], Sequence[str]]] = {
    "command": (on.command, _CONNECTION_MATCHERS),
    "reply": (on.reply, _CONNECTION_MATCHERS),
    "frame": (on.frame, _CONNECTION_MATCHERS),
    "connect": (on.connect, ("connection",)),
    "http": (on.http, ("kind", "method", "topic", "channel", "body", "executed")),
}


# --- documents --------------------------------------------------------------------------------------------------------


def decode_rules(document: object) -> list[Rule]:
    """Decode a rule, or a scenario, which is a list of rules.

    Raises:
        ValueError: If the document is invalid; the text says what is wrong.
    """
    documents = document if isinstance(document, list) else [document]
    if not documents:
        raise ValueError("the list is empty; it must have at least one rule")
    return [_decode_rule(each) for each in documents]


def _decode_rule(document: object) -> Rule:
    if not isinstance(document, dict):
        raise ValueError(f"a rule is {_shown(document)}, not an object")
    _check_names(document, "a rule", (*_RULE, *_MATCHERS))
    point = document.get("on")
    if not isinstance(point, str) or point not in _POINTS:
        raise ValueError(f"on is {_shown(point)}, not one of {', '.join(_POINTS)}")
    make, known = _POINTS[point]
    _check_names(document, f"on {point}", (*_RULE, *known))
    arguments = {name: _read(document, name, field) for name, field in _MATCHERS.items() if name in document}
    kind = [arguments.pop("kind")] if "kind" in arguments else []
    match = _timed(make(*kind, **arguments), document.get("times", {}))
    actions = document.get("actions")
    if not isinstance(actions, list) or not actions:
        raise ValueError(f"actions is {_shown(actions)}, not a list of one action at least")
    optional = _read(document, "optional", _FLAG) if "optional" in document else False
    name = _read(document, "name", _TEXT) if "name" in document else ""
    return Rule(match, *map(_decode_action, actions), optional=optional, name=name)


def _timed(match: Match, times: object) -> Match:
    if isinstance(times, str):
        times = {times: True}
    if not isinstance(times, dict) or not set(times) <= set(_TIMES) or len(set(times) - {"after"}) > 1:
        raise ValueError(f"times is {_shown(times)}, not one of {', '.join(list(_TIMES)[:-1])}, and perhaps after")
    for name in times:
        value = _read(times, name, _TIMES[name], "times.")
        match = match.always() if name == "always" else getattr(match, name)(value)
    return match


def _decode_action(document: object) -> Action:
    name = document.get("action") if isinstance(document, dict) else None
    if not isinstance(document, dict) or not isinstance(name, str) or name not in ACTIONS:
        raise ValueError(f"an action is {_shown(name or document)}, not one of {', '.join(ACTIONS)}")
    return ACTIONS[name](**_arguments(document, f"action {name}", ACTIONS[name], ("action",)))


def decode_toxic(document: object) -> tuple[Toxic, dict[str, Any]]:  # Any: of all types
    """Decode a toxic; return the toxic, and the other arguments of Link.add().

    Raises:
        ValueError: If the document is invalid; the text says what is wrong.
    """
    name = document.get("toxic") if isinstance(document, dict) else None
    if not isinstance(document, dict) or not isinstance(name, str) or name not in TOXICS:
        raise ValueError(f"a toxic is {_shown(name or document)}, not one of {', '.join(TOXICS)}")
    arguments = _arguments(document, f"toxic {name}", TOXICS[name], ("toxic", *_TOXIC_TARGET))
    target = {key: _read(document, key, field) for key, field in _TOXIC_TARGET.items() if key in document}
    return TOXICS[name](**arguments), target


def decode_state(name: str, document: object, change: Callable[..., object]) -> dict[str, Any]:  # Any: of all types
    """Decode the arguments of a method that begins or ends a state.

    Raises:
        ValueError: If the document is not an object, or an argument is unknown, missing or of another type.
    """
    if not isinstance(document, dict):
        raise ValueError(f"the arguments of {name} are {_shown(document)}, not an object")
    return _arguments(document, name, change)


def _arguments(
    document: _Object, owner: str, called: Callable[..., object], others: Sequence[str] = ()
) -> dict[str, Any]:  # Any: of all types
    """Decode the arguments of a function. The last word of ``owner`` is the function's name in JSON."""
    parameters = inspect.signature(called).parameters
    fields = {name: _ANNOTATED[parameter.annotation] for name, parameter in parameters.items()}
    _check_names(document, owner, (*others, *fields))
    missing = [name for name, value in parameters.items() if value.default is value.empty and name not in document]
    if missing:
        raise ValueError(f"{owner} has no {missing[0]}, which must be {fields[missing[0]][1]}")
    where = f"{owner.rpartition(' ')[2]}."
    return {name: _read(document, name, field, where) for name, field in fields.items() if name in document}


def _check_names(document: _Object, owner: str, known: Sequence[str]) -> None:
    unknown = sorted(set(document) - set(known))
    if unknown:
        given = ", ".join(f"{name} ({_shown(document[name])})" for name in unknown)
        allowed = nearest(unknown, known, "it has") if known else "; it has no arguments"
        raise ValueError(f"{owner} has no {given}{allowed}")


def _read(document: _Object, name: str, field: _Field, where: str = "") -> Any:  # Any: each field has its own type
    read, allowed = field
    try:
        return read(document[name])
    except (ValueError, KeyError, TypeError, binascii.Error):
        raise ValueError(f"{where}{name} is {_shown(document[name])}, not {allowed}") from None


def encode_rule(rule: Rule) -> dict[str, object]:
    """Encode a rule, its state and counts. An action of the user becomes its name; ``where`` is left out."""
    match, times = rule.match, rule.match.times
    document: dict[str, object] = {"name": rule.name, "on": match.point.value.partition("_")[0]}
    document |= {name: value for name in EQUAL_FIELDS if (value := getattr(match, name)) is not None}
    if match.body is not None:
        document["body"] = encode_bytes(match.body)
    if match.point.value.endswith("_answer"):
        document["executed"] = True
    if str(times):
        document["times"] = str(times).removeprefix(".")
    document["actions"] = [_encoded_action(action) for action in rule.actions]
    state = {"optional": rule.optional, "armed": rule.armed_at is not None and not rule.is_spent}
    return document | state | {"fitting": rule.fitting, "fired": rule.fired}


def _encoded_action(action: object) -> Mapping[str, object]:
    if not isinstance(action, Action):
        return {"action": getattr(action, "__name__", repr(action))}
    arguments = action.arguments.items()
    return {"action": action.name} | {
        name: encode_bytes(value) if isinstance(value, bytes) else value for name, value in arguments
    }


def encode_toxic(active: ActiveToxic) -> dict[str, object]:
    """Encode an active toxic: its id, and the fields of decode_toxic(). A toxic of the user becomes its repr()."""
    toxic, name = active.toxic, type(active.toxic).__name__
    is_ours = TOXICS.get(name) is type(toxic)
    document: dict[str, object] = {"id": active.number, "toxic": name if is_ours else repr(toxic)}
    if is_ours:
        document |= dataclasses.asdict(toxic)  # type: ignore[call-overload]  # the emulator's toxics are dataclasses
    target = {"upstream": active.upstream, "connection": active.connection}
    return document | {key: value for key, value in target.items() if value is not None}
