"""How random tests run: reproducible where CI is set, new cases each time elsewhere."""

import os
from datetime import timedelta

from hypothesis import settings

# The deadline is there to find what hangs, not what is slow: a machine may be busy.
settings.register_profile("dev", deadline=timedelta(seconds=10), print_blob=True)
settings.register_profile("ci", settings.get_profile("dev"), derandomize=True, database=None)
settings.load_profile("ci" if os.environ.get("CI") else "dev")
