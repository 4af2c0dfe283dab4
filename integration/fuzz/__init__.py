"""Random inputs and random sessions: ``make fuzz``."""
