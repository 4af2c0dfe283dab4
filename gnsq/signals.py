"""Signals: told to whoever is connected, at nobody's risk. Knows no sender."""

from __future__ import annotations

import logging
from typing import Any

from blinker import Signal

__all__ = ["notify"]

logger = logging.getLogger(__name__)


def notify(signal: Signal, sender: object, **keywords: Any) -> None:  # Any: each signal has its own keywords
    """Send a signal; a receiver that raises is logged, and takes neither a connection nor a message with it."""
    if not signal.receivers:
        return
    try:
        signal.send(sender, **keywords)
    except Exception:
        logger.exception("a receiver of a signal of %r raised", sender)
