"""gnsq: a gevent client for NSQ, the realtime message queue."""

from gnsq import errors, protocol, states, util
from gnsq.backofftimer import BackoffTimer
from gnsq.consumer import Consumer
from gnsq.lookupd import LookupdClient
from gnsq.message import Message
from gnsq.nsqd import NsqdHTTPClient, NsqdTCPClient
from gnsq.options import VERSION as __version__
from gnsq.producer import Producer

__all__ = [
    "BackoffTimer",
    "Consumer",
    "LookupdClient",
    "Message",
    "NsqdHTTPClient",
    "NsqdTCPClient",
    "Producer",
    "__version__",
    "errors",
    "protocol",
    "states",
    "util",
]
