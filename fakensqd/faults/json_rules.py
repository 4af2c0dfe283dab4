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
from fakensqd.faults.rules import EQUAL_FIELDS, Action, Match, Matchers, Rule, on
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


_TEXT = _typed(str, "text")
_FLAG = _typed(bool, "true or false")
_INTEGER = _number(int, "a whole number")
_NUMBER = _number(float, "a number")
_COUNT = _number(int, "a whole number from 1", minimum=1)
_BYTES: _Field = (decode_bytes, 'text, or {"base64": "..."}')
# Arguments by their annotation. The function or method itself checks the bounds.
_ANNOTATED: dict[str, _Field] = {
    "str": _TEXT,
    "str | None": _TEXT,
    "Part": _TEXT,
    "FrameName | None": _TEXT,
    "bool": _FLAG,
    "bool | None": _FLAG,
    "int": _INTEGER,
    "int | None": _INTEGER,
    "float": _NUMBER,
    "bytes | None": _BYTES,
    "Frame": (_frame, '"heartbeat", or {"base64": "..."}'),
    "int | bytes | None": (_integer_or_bytes, f"a whole number, {_BYTES[1]}"),
    "tuple[int, ...]": (_integers, "a list of whole numbers"),
}
_TARGET: dict[str, _Field] = {"upstream": _FLAG, "connection": _COUNT}
_RULE: dict[str, _Field] = {"optional": _FLAG, "name": _TEXT}
# The methods of the class ``on`` that make a Match, and the methods of Match that change its times.
_POINTS = {name: getattr(on, name) for name in ("command", "reply", "frame", "connect", "http")}
_TIMES = {name: getattr(Match, name) for name in ("nth", "first", "every", "sometimes", "always", "after")}


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
    point = _chosen(document, "on", _POINTS, "on")
    arguments = _arguments(document, f"on {point}", _POINTS[point], ("on", "times", "actions", *_RULE))
    match = _timed(_POINTS[point](**arguments), document.get("times", {}))
    actions = document.get("actions")
    if not isinstance(actions, list) or not actions:
        raise ValueError(f"actions is {_shown(actions)}, not a list of one action at least")
    return Rule(match, *map(_decode_action, actions), **_present(document, _RULE))


def _timed(match: Match, times: object) -> Match:
    if isinstance(times, str):
        times = {times: True}
    if not isinstance(times, dict) or not set(times) <= set(_TIMES) or len(set(times) - {"after"}) > 1:
        raise ValueError(f"times is {_shown(times)}, not one of {', '.join(list(_TIMES)[:-1])}, and perhaps after")
    for name in times:
        fields = [field for field, _ in _fields(_TIMES[name]).values()]
        if not fields and times[name] is not True:
            raise ValueError(f"times.{name} is {_shown(times[name])}, not true")
        match = _TIMES[name](match, *(_read(times, name, field, "times.") for field in fields))
    return match


def _decode_action(document: object) -> Action:
    name = _chosen(document, "action", ACTIONS, "an action")
    return ACTIONS[name](**_arguments(document, f"action {name}", ACTIONS[name], ("action",)))


def decode_toxic(document: Any) -> tuple[Toxic, dict[str, Any]]:  # Any: of all types
    """Decode a toxic; return the toxic, and the other arguments of Link.add().

    Raises:
        ValueError: If the document is invalid; the text says what is wrong.
    """
    name = _chosen(document, "toxic", TOXICS, "a toxic")
    arguments = _arguments(document, f"toxic {name}", TOXICS[name], ("toxic", *_TARGET))
    return TOXICS[name](**arguments), _present(document, _TARGET)


def decode_state(name: str, document: object, change: Callable[..., object]) -> dict[str, Any]:  # Any: of all types
    """Decode the arguments of a method that begins or ends a state.

    Raises:
        ValueError: If the document is not an object, or an argument is unknown, missing or of another type.
    """
    if not isinstance(document, dict):
        raise ValueError(f"the arguments of {name} are {_shown(document)}, not an object")
    return _arguments(document, name, change)


def _chosen(document: Any, key: str, known: Mapping[str, object], owner: str) -> str:
    name = document.get(key) if isinstance(document, dict) else None
    if not isinstance(name, str) or name not in known:
        shown = document if name is None else name
        raise ValueError(f"{owner} is {_shown(shown)}, not one of {', '.join(known)}")
    return name


def _fields(called: Callable[..., object]) -> dict[str, tuple[_Field, bool]]:
    """Return the arguments of a function that JSON can give, each with True if it must be given."""
    found: dict[str, tuple[str, bool]] = {}
    for name, parameter in inspect.signature(called).parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            found |= {matcher: (hint.__forward_arg__, False) for matcher, hint in Matchers.__annotations__.items()}
        else:
            found[name] = parameter.annotation, parameter.default is parameter.empty
    return {
        name: (_COUNT if name == "connection" else _ANNOTATED[annotation], required)
        for name, (annotation, required) in found.items()
        if annotation in _ANNOTATED
    }


def _arguments(
    document: Any, owner: str, called: Callable[..., object], others: Sequence[str] = ()
) -> dict[str, Any]:  # Any: of all types
    """Decode the arguments of a function. The last word of ``owner`` is the function's name in JSON."""
    fields = _fields(called)
    known = (*others, *fields)
    if unknown := sorted(set(document) - set(known)):
        given = ", ".join(f"{name} ({_shown(document[name])})" for name in unknown)
        allowed = nearest(unknown, known, "it has") if known else "; it has no arguments"
        raise ValueError(f"{owner} has no {given}{allowed}")
    for name, (field, required) in fields.items():
        if required and name not in document:
            raise ValueError(f"{owner} has no {name}, which must be {field[1]}")
    where = f"{owner.rpartition(' ')[2]}."
    return _present(document, {name: field for name, (field, _) in fields.items()}, where)


def _present(document: _Object, fields: Mapping[str, _Field], where: str = "") -> dict[str, Any]:  # Any: of all types
    return {name: _read(document, name, field, where) for name, field in fields.items() if name in document}


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
