"""Handlers to connect to a Consumer's signals, and what shows others how it does. Each module is imported by name."""
