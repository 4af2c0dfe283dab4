import os
import signal
import subprocess
import sys
import threading

import pytest
from click.testing import CliRunner

from gnsq.spark.pipeline.demo import main
from tests.spark.helpers import wait_for

pytestmark = pytest.mark.subprocess


DEMO = [sys.executable, "-m", "gnsq.spark.pipeline.demo"]


def test_missing_file_is_named(tmp_path):
    done = subprocess.run(
        [*DEMO, "--file", str(tmp_path / "none")], capture_output=True, text=True, timeout=60, check=False
    )

    assert done.returncode == 2
    assert f"{tmp_path / 'none'}: No such file" in done.stderr


@pytest.mark.spark
def test_lines_of_a_file_are_accounted_for(shared_session, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "some.jsonl"
    event = '{"time":"2026-01-01T10:00:%02d+01:00","user":"u","page":"/"}\n'
    path.write_text("".join(event % second for second in range(50)) + "not json\n\n[]\n123\n" + event % 59)

    done = CliRunner().invoke(main, ["--file", str(path)], obj=shared_session)

    assert done.exit_code == 0, done.output
    assert "published 54 = archived 51 + dead-lettered 3" in done.output
    assert "archived 51 = entered the aggregation 51 = counted 51" in done.output
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("gnsq-demo")] == []
    assert f"report: {tmp_path / 'demo/report.html'}\n" in done.output
    report = (tmp_path / "demo/report.html").read_text()
    assert "All 54 events are accounted for." in report
    assert "<th scope=row>body is not a JSON object</th>" in report
    assert "<code>archive</code></th><td>51 rows in " in report


@pytest.mark.spark
def test_signal_stops_it_cleanly(shared_session, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.chdir(tmp_path)

    def stop():
        wait_for(lambda: list(tmp_path.glob("gnsq-demo-*/*/archive/spool/*")), limit=60)
        os.kill(os.getpid(), signal.SIGTERM)

    stopper = threading.Thread(target=stop)
    stopper.start()
    done = CliRunner().invoke(main, ["--messages", "10000"], obj=shared_session)
    stopper.join()

    assert done.exit_code == 130, done.output
    assert "stopped" in done.output
    assert list(tmp_path.iterdir()) == []
