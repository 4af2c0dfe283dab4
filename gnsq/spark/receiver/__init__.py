"""Receivers: processes or threads that write the messages of a channel into a spool."""

from gnsq.spark.receiver.receiver import Receiver, tune_gc

__all__ = ["Receiver", "tune_gc"]
