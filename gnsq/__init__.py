"""gnsq: a gevent client for NSQ, the realtime message queue.

A public name is imported only when it is used. So fakensqd, which does not use the clients, starts 70 ms faster.
"""

from __future__ import annotations

# As typing.TYPE_CHECKING, without the time of its import: a signal before gnsq.startup receives it is a traceback.
TYPE_CHECKING = False
if TYPE_CHECKING:  # for type checkers, a name that is imported "as" itself is public
    from gnsq import errors as errors
    from gnsq import protocol as protocol
    from gnsq import states as states
    from gnsq import util as util
    from gnsq.backofftimer import BackoffTimer as BackoffTimer
    from gnsq.consumer import Consumer as Consumer
    from gnsq.deprecated import Lookupd as Lookupd
    from gnsq.deprecated import Nsqd as Nsqd
    from gnsq.deprecated import Reader as Reader
    from gnsq.errors import NSQErrorCode as NSQErrorCode
    from gnsq.errors import NSQException as NSQException
    from gnsq.errors import NSQGiveUp as NSQGiveUp
    from gnsq.errors import NSQNotSent as NSQNotSent
    from gnsq.errors import NSQRequeueMessage as NSQRequeueMessage
    from gnsq.errors import NSQUnknown as NSQUnknown
    from gnsq.lookupd import LookupdClient as LookupdClient
    from gnsq.message import Message as Message
    from gnsq.message import finish_all as finish_all
    from gnsq.nsqd import NsqdHTTPClient as NsqdHTTPClient
    from gnsq.nsqd import NsqdTCPClient as NsqdTCPClient
    from gnsq.producer import Producer as Producer
    from gnsq.producer import PublishResult as PublishResult
    from gnsq.running import run as run

    __version__: str

_MODULES = {
    "BackoffTimer": "backofftimer",
    "Consumer": "consumer",
    "Lookupd": "deprecated",
    "LookupdClient": "lookupd",
    "Message": "message",
    "Nsqd": "deprecated",
    "NSQErrorCode": "errors",
    "NSQException": "errors",
    "NSQGiveUp": "errors",
    "NSQNotSent": "errors",
    "NSQRequeueMessage": "errors",
    "NSQUnknown": "errors",
    "NsqdHTTPClient": "nsqd",
    "NsqdTCPClient": "nsqd",
    "Producer": "producer",
    "PublishResult": "producer",
    "Reader": "deprecated",
    "finish_all": "message",
    "run": "running",
}
__all__ = [*_MODULES, "__version__", "errors", "protocol", "states", "util"]
# Submodules that a program may use as attributes of gnsq without importing them: most were attributes in gnsq 1.0.
_SUBMODULES = {*_MODULES.values(), "errors", "httpclient", "protocol", "reader", "states", "util"}


def __getattr__(name: str) -> object:
    """Load a public name or a submodule of _SUBMODULES. Source: PEP 562."""
    from importlib import import_module

    if name == "__version__":
        return import_module("gnsq.options").VERSION
    if name in _MODULES:
        return getattr(import_module(f"gnsq.{_MODULES[name]}"), name)
    if name in _SUBMODULES:
        return import_module(f"gnsq.{name}")
    raise AttributeError(f"module 'gnsq' has no attribute {name!r}; public names are {', '.join(__all__)}")


def __dir__() -> list[str]:
    """List the public names, even those that are not imported yet."""
    return sorted(__all__)
