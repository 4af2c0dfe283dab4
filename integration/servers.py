"""Pytest plugin of the tests with real servers: why tests were skipped, at the end."""

from __future__ import annotations

import os
import shutil
from collections import Counter

import pytest

from fakensqd.real import RealLookupd, RealNsqd

PROGRAMS = ("nsqd", "nsqlookupd")
NO_PROGRAMS = "starts servers of its own, and there is no nsqd and nsqlookupd on PATH"
needs_programs = pytest.mark.skipif(not all(map(shutil.which, PROGRAMS)), reason=NO_PROGRAMS)


def given(name: str) -> RealNsqd | RealLookupd | None:
    """Return a running server by the variables NAME_TCP_ADDRESS and NAME_HTTP_ADDRESS."""
    tcp, http = (os.environ.get(f"{name.upper()}_{kind}_ADDRESS") for kind in ("TCP", "HTTP"))
    kind = RealLookupd if name.startswith("nsqlookupd") else RealNsqd
    return kind.at(tcp, http) if tcp and http else None


def running(name: str, *flags: str) -> RealNsqd | RealLookupd:
    """Make a server with flags, for ``with``."""
    return (RealNsqd if name == "nsqd" else RealLookupd)(flags=flags)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Say in the last line of a run how many tests were skipped, and why."""
    terminal = config.pluginmanager.get_plugin("terminalreporter")
    if terminal is None or hasattr(config, "workerinput"):
        return
    reasons = Counter(report.longrepr[2].removeprefix("Skipped: ") for report in terminal.stats.get("skipped", ()))
    if reasons:
        why = "; ".join(f"{number} {reason}" for reason, number in reasons.most_common())
        terminal.line(f"integration: {reasons.total()} tests were skipped: {why}")
