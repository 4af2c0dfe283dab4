"""What is said where the extra is not installed."""

import os
import sys
import tomllib
from pathlib import Path

import pytest

from tests.kit import run

SCRIPTS = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]["scripts"]


@pytest.mark.subprocess
def test_program_without_the_extra_says_in_one_line_what_to_install(tmp_path):
    module, _, function = SCRIPTS["gnsq-pipeline"].partition(":")
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\nfor name in ('click', 'pyarrow', 'pyspark'):\n    sys.modules[name] = None\n"
    )
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])

    for arguments in ("-c", f"from {module} import {function}; {function}()"), ("-m", "gnsq.spark.pipeline"):
        done = run(sys.executable, *arguments, "--help", env={**os.environ, "PYTHONPATH": path})

        assert done.returncode == 1
        [line] = done.stderr.splitlines()
        assert "gnsq.spark.pipeline needs click, pyarrow, pyspark: pip install 'gnsq[spark]'" in line
