"""Handlers for a Consumer's signals, and integrations for monitoring. This package imports none of its modules."""
