"""Handlers for a Consumer's signals, and integrations for monitoring. Each module is imported by name."""
