"""Settings with which Spark does not start."""

import subprocess
import sys

import pytest

PROGRAM = """
import sys
from pathlib import Path
from gnsq.errors import NSQException
from gnsq.spark.pipeline.session import open_session
try:
    with open_session("x", master=sys.argv[1], settings=dict([sys.argv[2].split("=")]), log=Path(sys.argv[3])):
        pass
except NSQException as error:
    print(error)
"""


@pytest.mark.spark
@pytest.mark.parametrize(
    ("master", "setting", "words"),
    [
        pytest.param(
            "local[1]",
            "spark.driver.memory=lots",
            "Java has ended at once: Invalid maximum heap size: -Xmxlots: see the settings spark and master",
            id="memory",
        ),
        pytest.param(
            "locl[1]",
            "spark.ui.enabled=false",
            "Java has ended at once: Master must either be yarn or start with spark, k8s, or local: see the settings "
            "spark and master",
            id="master",
        ),
        pytest.param(
            "local[1]",
            "spark.sql.shuffle.partitions=many",
            "[INVALID_CONF_VALUE.TYPE_MISMATCH] The value 'many' in the config \"spark.sql.shuffle.partitions\" is "
            "invalid. It should be a/an 'int' value.",
            id="setting",
        ),
    ],
)
@pytest.mark.subprocess
def test_setting_with_which_spark_does_not_start_is_told_in_one_line(tmp_path, master, setting, words):
    (tmp_path / "log").write_text("of an earlier run\n")
    command = [sys.executable, "-c", PROGRAM, master, setting, str(tmp_path / "log")]

    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)

    assert done.stdout == f"Spark does not start: {words}\n", done.stderr
