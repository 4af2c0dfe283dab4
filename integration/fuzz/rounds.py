"""Pytest plugin of ``make fuzz``: runs each random test again and again, each time with the next seed.

A test that has no time left is run once. All tests share the time, and one that needs less leaves the rest to others.
"""

from __future__ import annotations

import time
from collections import Counter

import pytest
from hypothesis import HealthCheck, core, settings

# More inputs for a start of a test, and no limit but that of the test itself.
settings.register_profile(
    "fuzz", max_examples=1000, deadline=None, print_blob=True, suppress_health_check=list(HealthCheck)
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--seconds", type=float, default=0.0, help="seconds of all random tests together")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Rounds(config.getoption("seconds")), "fuzz-rounds")


class Rounds:
    """Repeats tests, and counts their rounds."""

    def __init__(self, seconds: float) -> None:
        self._ends = time.monotonic() + seconds
        self._left = 0
        self._rounds: Counter[str] = Counter()
        self._failed: list[tuple[str, int]] = []

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self._left = len(session.items)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Function) -> object:
        first, self._left = core.global_force_seed, self._left - 1
        ends = time.monotonic() + (self._ends - time.monotonic()) / (self._left + 1)
        try:
            result = yield
            self._rounds[item.nodeid] += 1
            while time.monotonic() < ends:
                core.global_force_seed += 1
                item.runtest()
                self._rounds[item.nodeid] += 1
        except Exception:
            self._failed.append((item.nodeid, core.global_force_seed))
            raise
        finally:
            core.global_force_seed = first
        return result

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        terminalreporter.section("random tests")
        for name, count in self._rounds.items():
            terminalreporter.line(f"{name}: {count} rounds")
        for name, seed in self._failed:
            terminalreporter.line(f"to repeat: make fuzz SECONDS=0 SEED={seed} ONLY='{name}'")
