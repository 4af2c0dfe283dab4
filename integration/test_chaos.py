"""Chaos with real servers, a minute with fixed seeds; see integration/chaos. ``make chaos`` takes longer."""

import sys

import pytest

from integration.servers import needs_programs
from tests.kit import run

pytestmark = [
    pytest.mark.real,
    pytest.mark.slow,
    pytest.mark.timeout(400),
    needs_programs,
]


@pytest.mark.parametrize(
    "flags",
    [["--seconds=60", "--seed=4201"], ["--seconds=40", "--seed=4201", "--commands"]],
    ids=["cluster", "commands"],
)
def test_invariants_hold(flags):
    result = run(sys.executable, "-m", "integration.chaos", *flags, limit=390)

    print(result.stdout)
    assert result.returncode == 0, result.stdout + result.stderr
