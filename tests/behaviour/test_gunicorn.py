"""A consumer in gunicorn's workers: reloads and ends lose nothing."""

import contextlib
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import requests

from gnsq import NsqdHTTPClient, Producer
from tests.helpers import channel_stats, wait_until

LISTENING = r"http://127\.0\.0\.1:\d+"
ROOT = Path(__file__).parent.parent.parent


@contextlib.contextmanager
def gunicorn(nsqd, topic, folder, *options):
    """Run it with two workers; gives the process and where it listens. What it prints is in folder/out."""
    command = [sys.executable, "-m", "gunicorn", "-c", "integration/gunicorn_conf.py", "--workers", "2"]
    command += ["--bind", f"unix:{folder}/web.sock", "integration.gunicorn_app:app", *options]
    # HOME: recent versions put a socket there.
    environment = {**os.environ, "HOME": str(folder), "NSQD_TCP_ADDRESS": nsqd.tcp_address, "TOPIC": topic}
    with (
        (folder / "out").open("w") as out,
        subprocess.Popen(command, cwd=ROOT, env=environment, stdout=out, stderr=subprocess.STDOUT) as process,
    ):
        try:
            yield process
        finally:
            process.kill()


def handled(folder):
    return [line for line in (folder / "out").read_text().splitlines() if line.startswith("handled")]


@pytest.mark.parametrize("options", [(), ("--preload",)], ids=["", "preload"])
def test_reload_and_end_under_load_lose_nothing_and_repeat_nothing(nsqd, topic, tmp_path, options):
    client = NsqdHTTPClient.from_url(nsqd.http_address)
    client.create_topic(topic)
    client.create_channel(topic, "web")
    with Producer(nsqd.tcp_address) as producer, gunicorn(nsqd, topic, tmp_path, *options) as process:
        wait_until(lambda: len(channel_stats(nsqd, topic, "web")["clients"]) == 2, 30)
        producer.multipublish(topic, [b"%d" % number for number in range(300)])
        wait_until(lambda: len(handled(tmp_path)) > 50, 30)
        process.send_signal(signal.SIGHUP)
        wait_until(lambda: len(handled(tmp_path)) > 150, 30)
        process.send_signal(signal.SIGTERM)

        assert process.wait(30) == 0
        stats = channel_stats(nsqd, topic, "web")

    assert len(handled(tmp_path)) == len(set(handled(tmp_path)))
    assert len(handled(tmp_path)) + stats["depth"] == 300
    assert (stats["in_flight_count"], stats["requeue_count"], stats["timeout_count"]) == (0, 0, 0)


def test_worker_is_healthy_while_it_consumes(nsqd, topic, tmp_path):
    NsqdHTTPClient.from_url(nsqd.http_address).create_topic(topic)
    NsqdHTTPClient.from_url(nsqd.http_address).create_channel(topic, "web")
    with gunicorn(nsqd, topic, tmp_path, "--bind", "127.0.0.1:0") as process:
        wait_until(lambda: re.search(LISTENING, (tmp_path / "out").read_text()), 30)
        address = re.search(LISTENING, (tmp_path / "out").read_text())[0]
        wait_until(lambda: requests.get(address, timeout=10).status_code == 200, 30)
        # A worker that is told to end while it boots has gunicorn wait for it in vain.
        wait_until(lambda: len(channel_stats(nsqd, topic, "web")["clients"]) == 2, 30)
        process.send_signal(signal.SIGTERM)

        assert process.wait(30) == 0
