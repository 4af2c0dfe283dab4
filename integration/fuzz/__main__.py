"""``make fuzz``: run the random tests for some seconds, with seeds that are printed."""

from __future__ import annotations

import argparse
import random
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m integration.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0, help="seconds of all tests together; 0: each test once")
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    parser.add_argument("--only", help="a test, as pytest names it; default: all random tests")
    wanted = parser.parse_args(words)
    print(f"fuzz: {wanted.seconds:g} s, seed {wanted.seed}", flush=True)
    files = [path for path in ROOT.glob("tests/**/test_*.py") if "hypothesis" in path.read_text()]
    tests = (
        [wanted.only] if wanted.only else ["integration/fuzz", *sorted(str(path.relative_to(ROOT)) for path in files)]
    )
    options = ["-m", "hypothesis", f"--hypothesis-seed={wanted.seed}", "--hypothesis-profile=fuzz", "--timeout=0"]
    plugins = ["-p", "integration.fuzz.rounds", "-p", "integration.servers", f"--seconds={wanted.seconds}"]
    return pytest.main(["-q", "--rootdir", str(ROOT), *plugins, *options, *tests])


if __name__ == "__main__":
    sys.exit(main())
