"""What is said where the extra is not installed."""

import importlib
import importlib.util
import os
import sys
import tomllib
from pathlib import Path

import pytest

from gnsq.spark import pipeline
from tests.kit import run

SCRIPTS = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]["scripts"]


def test_missing_packages_are_named_with_the_extra(monkeypatch):
    there = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name in ("click", "pyspark") else there(name))

    with pytest.raises(ImportError, match=r"needs click, pyspark: pip install 'gnsq\[spark\]'"):
        importlib.reload(pipeline)


def script(name):
    """Run what an installed script of this name runs."""
    module, _, function = SCRIPTS[name].partition(":")
    return ["-c", f"from {module} import {function}; {function}()"]


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(script("gnsq-pipeline"), id="gnsq-pipeline"),
        pytest.param(["-m", "gnsq.spark.pipeline"], id="module"),
    ],
)
@pytest.mark.subprocess
def test_program_without_the_extra_says_in_one_line_what_to_install(tmp_path, arguments):
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\nfor name in ('click', 'pyarrow', 'pyspark'):\n    sys.modules[name] = None\n"
    )
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])

    done = run(sys.executable, *arguments, "--help", env={**os.environ, "PYTHONPATH": path})

    assert done.returncode == 1
    [line] = done.stderr.splitlines()
    assert "gnsq.spark.pipeline needs click, pyarrow, pyspark: pip install 'gnsq[spark]'" in line
