"""Receivers: processes or threads that write the messages of a channel into a spool."""
