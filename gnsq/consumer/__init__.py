"""Consumer: receives the messages of one channel. See consumer.py for what lies where."""

from gnsq.consumer.consumer import Consumer, Handler
from gnsq.consumer.options import ConsumerOptions, ConsumerOptionsDict

__all__ = ["Consumer", "ConsumerOptions", "ConsumerOptionsDict", "Handler"]
