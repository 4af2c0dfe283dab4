"""Options as attributes of a consumer, under the names of gnsq 1.0."""

from __future__ import annotations

import dataclasses
from typing import Any, Protocol, overload

from gnsq.consumer.options import ConsumerOptions

__all__ = ["OptionAttribute"]


class _HasOptions(Protocol):
    options: ConsumerOptions

    def apply_options(self) -> None:
        """Take over what was set."""


class OptionAttribute:
    """Reads one option; sets it, within its bounds."""

    _name = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, instance: None, owner: type) -> OptionAttribute: ...

    @overload
    def __get__(self, instance: _HasOptions, owner: type) -> Any: ...  # Any: each option has its own type

    def __get__(self, instance: _HasOptions | None, owner: type) -> Any:
        return self if instance is None else getattr(instance.options, self._name)

    def __set__(self, instance: _HasOptions, value: Any) -> None:  # Any: as above
        instance.options = dataclasses.replace(instance.options, **{self._name: value})
        instance.apply_options()
