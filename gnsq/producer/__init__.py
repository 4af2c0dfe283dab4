"""Producer: publishes messages to several nsqds."""

from gnsq.producer.options import ProducerOptions, ProducerOptionsDict
from gnsq.producer.producer import Producer
from gnsq.producer.publish import Unconfirmed
from gnsq.producer.publish_many import Chunk, NSQManyFailed
from gnsq.producer.result import PublishResult

__all__ = [
    "Chunk",
    "NSQManyFailed",
    "Producer",
    "ProducerOptions",
    "ProducerOptionsDict",
    "PublishResult",
    "Unconfirmed",
]
