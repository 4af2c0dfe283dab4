"""gnsq: a gevent client for NSQ, the realtime message queue."""

from gnsq.options import VERSION as __version__

__all__ = ["__version__"]
