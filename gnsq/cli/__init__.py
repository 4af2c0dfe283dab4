"""The ``gnsq`` program. Needs click and rich: the extra ``gnsq[cli]``."""
