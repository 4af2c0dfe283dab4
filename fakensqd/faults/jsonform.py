"""Rules as JSON, for clients in another process or language: the same matchers, times and actions, by the same names.

Pure. ``{"on": "reply", "kind": "PUB", "topic": "orders", "times": {"nth": 3}, "actions": [{"action": "disconnect"}]}``.
Bytes are text, or ``{"base64": "..."}``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fakensqd.faults.actions import ACTIONS, Action
from fakensqd.faults.match import Match, on
from fakensqd.faults.scenario import Rule
from fakensqd.transcript import decode_bytes, encode_bytes

__all__ = ["decode_rules", "encode_rule"]

_Object = Mapping[str, Any]  # Any: JSON

_POINTS: dict[str, Callable[..., Match]] = {
    "command": on.command,
    "reply": on.reply,
    "frame": on.frame,
    "connect": on.connect,
    "http": on.http,
}
_MATCHERS = ("kind", "topic", "channel", "connection", "client_id", "body", "method", "executed")
_TIMES = ("nth", "first", "every", "sometimes", "always", "after")
_RULE = ("on", "times", "actions", "optional", "name")
# Parameters that are bytes; "frame" may be a word, too.
_BYTES = ("body", "to", "frame")


def decode_rules(document: object) -> list[Rule]:
    """Read a rule, or the rules of a scenario, which stand in a list.

    Raises:
        ValueError: If it is none; the text says what is wrong.
    """
    documents = document if isinstance(document, list) else [document]
    try:
        return [_decode_rule(each) for each in documents]
    except (TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"no rule: {error}") from error


def _decode_rule(document: object) -> Rule:
    if not isinstance(document, dict):
        raise ValueError(f"a rule is an object, not {document!r}")
    unknown = set(document) - {*_RULE, *_MATCHERS}
    if unknown:
        raise ValueError(f"a rule has no {', '.join(sorted(unknown))}; it has {', '.join((*_RULE, *_MATCHERS))}")
    if document.get("on") not in _POINTS:
        raise ValueError(f"on is one of {', '.join(_POINTS)}, not {document.get('on')!r}")
    arguments = {name: document[name] for name in _MATCHERS[1:] if name in document}
    if "body" in arguments:
        arguments["body"] = decode_bytes(arguments["body"])
    kind = [document["kind"]] if "kind" in document else []
    match = _timed(_POINTS[document["on"]](*kind, **arguments), document.get("times", {}))
    actions = [_decode_action(action) for action in document.get("actions", ())]
    return Rule(match, *actions, optional=bool(document.get("optional")), name=document.get("name", ""))


def _timed(match: Match, times: object) -> Match:
    if isinstance(times, str):
        times = {times: True}
    if not isinstance(times, dict) or not set(times) <= set(_TIMES) or len(set(times) - {"after"}) > 1:
        raise ValueError(f"times has one of {', '.join(_TIMES[:-1])}, and perhaps after; not {times!r}")
    for name, value in times.items():
        match = match.always() if name == "always" else getattr(match, name)(value)
    return match


def _decode_action(document: _Object) -> Action:
    name = document["action"]
    if name not in ACTIONS:
        raise ValueError(f"action {name!r} is none of {', '.join(ACTIONS)}")
    arguments = {key: value for key, value in document.items() if key != "action"}
    for key in _BYTES:
        value = arguments.get(key)
        if isinstance(value, dict) or (isinstance(value, str) and key != "frame"):
            arguments[key] = decode_bytes(value)
    return ACTIONS[name](**arguments)


def encode_rule(rule: Rule) -> dict[str, object]:
    """Describe a rule and what has become of it; a predicate, or a function of one's own, by its name only."""
    match, times = rule.match, rule.match.times
    described: dict[str, object] = {"name": rule.name, "on": match.point.value.partition("_")[0]}
    for name in ("kind", "topic", "channel", "connection", "client_id", "method"):
        if getattr(match, name) is not None:
            described[name] = getattr(match, name)
    if match.body is not None:
        described["body"] = encode_bytes(match.body)
    if match.point.value.endswith("_answer"):
        described["executed"] = True
    if str(times):
        described["times"] = str(times).removeprefix(".")
    described["actions"] = [_encoded_action(action) for action in rule.actions]
    state = {"optional": rule.optional, "armed": rule.armed_at is not None and not rule.over}
    return described | state | {"fitting": rule.fitting, "fired": rule.fired}


def _encoded_action(action: object) -> Mapping[str, object]:
    if not isinstance(action, Action):
        return {"action": getattr(action, "__name__", repr(action))}
    arguments: Sequence[tuple[str, Any]] = list(action.arguments.items())  # Any: of all types
    return {"action": action.name} | {
        name: encode_bytes(value) if isinstance(value, bytes) else value for name, value in arguments
    }
