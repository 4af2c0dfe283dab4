"""Keeps passwords and other secrets out of crash reports, which show the local variables of each function."""

from __future__ import annotations

import functools
import sys
import traceback
from collections.abc import Callable
from typing import ParamSpec, TypeVar

__all__ = ["clears_locals"]

_P = ParamSpec("_P")
_T = TypeVar("_T")


def clears_locals(function: Callable[_P, _T]) -> Callable[_P, _T]:
    """Decorate a function whose arguments, or what it computes of them, may hold a secret.

    If it raises an exception, the local variables of this function and of those that it has called are cleared, so that
    tools that record them, such as Sentry's, get none. The lines of the traceback stay, and so do the variables of
    callers, and those in the traceback of an exception that a caller was already handling.
    """

    @functools.wraps(function)
    def wrapper(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        handled = sys.exception()
        try:
            return function(*args, **kwargs)
        except BaseException as error:
            del args, kwargs
            _clear_frames(error, handled)
            raise

    return wrapper


def _clear_frames(error: BaseException, handled: BaseException | None) -> None:
    """Clear the local variables in the tracebacks of an error and of all that led to it, but not of ``handled``."""
    seen = [] if handled is None else [handled]
    waiting: list[BaseException | None] = [error]
    while waiting:
        each = waiting.pop()
        if each is not None and each not in seen:
            seen.append(each)
            waiting += [each.__cause__, each.__context__]
            traceback.clear_frames(each.__traceback__)
