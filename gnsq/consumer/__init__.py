"""Consumer: receives the messages of one channel. The docstring of consumer.py names the classes that do the work."""

from gnsq.consumer.consumer import Consumer
from gnsq.consumer.handlers import Handler
from gnsq.consumer.options import ConsumerOptions, ConsumerOptionsDict

__all__ = ["Consumer", "ConsumerOptions", "ConsumerOptionsDict", "Handler"]
