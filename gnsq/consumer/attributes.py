"""Options as attributes of a consumer, under the names of gnsq 1.0."""

from __future__ import annotations

import dataclasses
from typing import Any, Protocol, overload

from gnsq.consumer.options import ConsumerOptions

__all__ = ["OptionAttribute"]


class _HasOptions(Protocol):
    options: ConsumerOptions


class OptionAttribute:
    """Reads one option; sets it, within its bounds, where it is asked for anew each time.

    Args:
        settable: Whether it is.
    """

    def __init__(self, *, settable: bool = True) -> None:
        self._settable = settable
        self._name = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, instance: None, owner: type) -> OptionAttribute: ...

    @overload
    def __get__(self, instance: _HasOptions, owner: type) -> Any: ...  # Any: each option has its own type

    def __get__(self, instance: _HasOptions | None, owner: type) -> Any:
        return self if instance is None else getattr(instance.options, self._name)

    def __set__(self, instance: _HasOptions, value: Any) -> None:  # Any: as above
        if not self._settable:
            raise AttributeError(f"{self._name} can't be changed; give it to the constructor")
        instance.options = dataclasses.replace(instance.options, **{self._name: value})
