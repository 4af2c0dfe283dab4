"""Receivers: processes, threads or tasks that write the messages of a channel into a spool."""

from gnsq.spark.receiver.receiver import Receiver, collect_rarely

__all__ = ["Receiver", "collect_rarely"]
