"""A consumer and a producer in each of gunicorn's workers: a reload and the end lose no message."""

import contextlib
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import gevent
import pytest
import requests
from gevent import socket

from gnsq import NsqdHTTPClient, Producer
from tests.kit import bodies, channel_stats, child, wait_for_program, wait_until

pytestmark = pytest.mark.subprocess


LISTENING = r"http://127\.0\.0\.1:\d+"
ROOT = Path(__file__).parent.parent.parent


@contextlib.contextmanager
def gunicorn(folder, **environment):
    """Run gunicorn with two workers; returns its process. Its output is in folder/out."""
    # --timeout 0: on a busy machine a worker may be silent for 30 s.
    command = [sys.executable, "-m", "gunicorn", "-c", "integration/gunicorn_conf.py", "--workers=2", "--timeout=0"]
    command += ["--preload", "--bind=127.0.0.1:0", "integration.gunicorn_app:app"]
    # HOME: recent versions put a socket there.
    environment = {**os.environ, "HOME": str(folder), **environment}
    with (
        (folder / "out").open("w") as out,
        child(*command, cwd=ROOT, env=environment, stdout=out, stderr=subprocess.STDOUT) as process,
    ):
        yield process


def handled(folder):
    return [line for line in (folder / "out").read_text().splitlines() if line.startswith("handled")]


def listening(folder, process):
    """Wait until gunicorn listens; returns its host and port."""
    wait_for_program(process, lambda: re.search(LISTENING, (folder / "out").read_text()))
    return re.search(LISTENING, (folder / "out").read_text())[0].removeprefix("http://").split(":")


class Load:
    """Clients that send one request after another, until gunicorn has ended.

    Attributes:
        answers: Status and body of each answer, by the request's name; None if there was none.
    """

    def __init__(self, host, port, clients):
        self.answers = {}
        self._address = (host, int(port))
        self._jobs = [gevent.spawn(self._send_all, number) for number in range(clients)]

    def _send_all(self, client):
        # Reset: gunicorn has ended before it has accepted the connection.
        with contextlib.suppress(ConnectionRefusedError, ConnectionResetError):
            for number in range(100_000):
                self._send(f"{client}-{number}")
                gevent.sleep(0.05)  # without a pause they would use a whole core while gunicorn starts its workers

    def _send(self, name):
        with socket.create_connection(self._address, timeout=30) as connection:
            self.answers[name] = None
            with contextlib.suppress(ConnectionResetError, BrokenPipeError):
                body = f"body of {name}".encode()
                head = f"POST /{name} HTTP/1.1\r\nHost: web\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
                connection.sendall(head.encode() + body)
                answer = b"".join(iter(lambda: connection.recv(4096), b""))
                head, _, body = answer.decode().partition("\r\n\r\n")
                self.answers[name] = (int(head.split()[1]), body) if head else None

    @property
    def answered(self):
        return [name for name, answer in self.answers.items() if answer is not None]

    def join(self):
        gevent.joinall(self._jobs, timeout=30, raise_error=True)


def begun(folder):
    """Return the process ids of workers, by the names of the requests that they have begun."""
    lines = (folder / "out").read_text().splitlines()
    return {name: pid for _, name, pid in (line.split() for line in lines if line.startswith("begun"))}


def workers(folder):
    """Return the number of workers that had a request."""
    return len(set(begun(folder).values()))


def test_reload_and_end_under_load_lose_nothing_and_repeat_nothing(nsqd, topic, socket_folder):
    client, sent = NsqdHTTPClient.from_url(nsqd.http_address), nsqd.topic()
    for name, channel in ((topic, "web"), (sent, "bodies")):
        client.create_topic(name)
        client.create_channel(name, channel)
    published = []

    def are_busy():
        """However fast the workers are, there is more to do."""
        if channel_stats(nsqd, topic, "web")["depth"] < 500:
            published.extend(b"%d" % number for number in range(len(published), len(published) + 1000))
            producer.multipublish(topic, published[-1000:])
        return bool(handled(socket_folder))

    def consumers():
        return {client["remote_address"] for client in channel_stats(nsqd, topic, "web")["clients"]}

    environment = {"NSQD_TCP_ADDRESS": nsqd.tcp_address, "TOPIC": topic, "BODIES_TOPIC": sent}
    with Producer(nsqd.tcp_address) as producer, gunicorn(socket_folder, **environment) as process:
        host, port = listening(socket_folder, process)
        # gunicorn waits without end for a worker that gets the signal while it starts.
        wait_for_program(process, lambda: len(consumers()) == 2)
        first = consumers()
        # It is healthy while it consumes.
        assert requests.get(f"http://{host}:{port}/", timeout=10).status_code == 200
        load = Load(host, port, clients=20)
        wait_for_program(process, lambda: are_busy() and len(load.answered) > 100 and workers(socket_folder) == 2)
        process.send_signal(signal.SIGHUP)
        wait_for_program(process, lambda: are_busy() and len(consumers() - first) == 2 and workers(socket_folder) == 4)
        process.send_signal(signal.SIGTERM)

        # The clients go on meanwhile: gunicorn waits for requests that are not sent.
        wait_until(lambda: process.poll() is not None, 100)
        load.join()
        stats = channel_stats(nsqd, topic, "web")

    assert process.returncode == 0

    assert len(handled(socket_folder)) == len(set(handled(socket_folder)))
    assert len(handled(socket_folder)) + stats["depth"] == len(published)
    assert (stats["in_flight_count"], stats["requeue_count"], stats["timeout_count"]) == (0, 0, 0)

    held = bodies(nsqd, sent)
    assert [name for name in load.answered if load.answers[name] != (200, name)] == []
    assert {f"body of {name}".encode() for name in load.answered} <= set(held)
    assert len(held) == len(set(held))
    # What a worker had begun was finished.
    assert set(begun(socket_folder)) == set(load.answered)
