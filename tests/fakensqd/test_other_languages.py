"""Clients in other languages against ``fakensqd nsqd --faults-over-http``: faults come over HTTP, and they recover.

Each is skipped where its library is not installed: node must find nsqjs (NODE_PATH), or Go's module cache have go-nsq.
Nothing is downloaded.
"""

import json
import os
import shutil
from pathlib import Path
from subprocess import DEVNULL

import pytest
from gevent import Timeout

from tests.fakensqd.programs import FREE_PORTS, LIMIT, child, program, run_command
from tests.fakensqd.wire import request
from tests.helpers import wait_until

pytestmark = pytest.mark.slow

CLIENTS = Path(__file__).parent / "clients"
GO_NSQ = "github.com/nsqio/go-nsq v1.1.0"


def nsqjs(directory):
    """The command of a consumer of nsqjs."""
    node = shutil.which("node")
    if node is None or run_command(node, "-e", "require('nsqjs')").returncode:
        pytest.skip("node does not find nsqjs: npm install nsqjs, and NODE_PATH with its node_modules")
    return [node, str(CLIENTS / "consumer.js")]


def go_nsq(directory):
    """The command of a consumer of go-nsq, which is built here."""
    go = shutil.which("go")
    if go is None:
        pytest.skip("there is no go on PATH")
    shutil.copy(CLIENTS / "consumer.go", directory)
    (directory / "go.mod").write_text(f"module consumer\n\ngo 1.21\n\nrequire {GO_NSQ}\n")
    offline = {"GOFLAGS": "-mod=mod", "GOPROXY": "off", "GOSUMDB": "off", "GOTOOLCHAIN": "local"}
    built = run_command(go, "build", "-o", "consumer", ".", limit=100.0, cwd=directory, env=os.environ | offline)
    if "module lookup disabled" in built.stderr:
        pytest.skip(f"Go's module cache has no go-nsq: go mod download {GO_NSQ.replace(' ', '@')}")
    assert built.returncode == 0, built.stderr
    return [str(directory / "consumer")]


@pytest.fixture(scope="module", params=[nsqjs, go_nsq], ids=["nsqjs", "go-nsq"])
def command(request, tmp_path_factory):
    return request.param(tmp_path_factory.mktemp("client"))


class Running:
    """A consumer in another language, and the fakensqd program that it is connected to."""

    def __init__(self, addresses, client):
        self.addresses = addresses
        self.client = client

    def publish(self, body):
        assert request(self.addresses["HTTP"], "POST", "/pub?topic=t", body) == "OK"

    def printed(self):
        """Wait for a line: body and attempts of a message."""
        with Timeout(LIMIT):
            return self.client.stdout.readline().decode().split()

    def faults(self, method, path="", document=None):
        data = None if document is None else json.dumps(document).encode()
        answer = request(self.addresses["FAULTS"], method, f"/faults{path}", data)
        assert "message" not in answer, answer
        return answer

    def channel(self):
        """Statistics of the channel; None before the channel exists."""
        topics = request(self.addresses["HTTP"], "GET", "/stats?format=json&topic=t")["topics"] or []
        return next((channel for topic in topics for channel in topic["channels"]), None)

    def is_connected(self):
        channel = self.channel()
        return channel is not None and channel["client_count"] == 1

    def is_done(self):
        channel = self.channel()
        return channel["depth"] + channel["in_flight_count"] + channel["deferred_count"] == 0


@pytest.fixture
def running(command):
    # Messages in flight on a connection that ended are delivered again after msg-timeout.
    arguments = [*FREE_PORTS, "--faults-http-address=127.0.0.1:0", "--msg-timeout=1s"]
    with program("nsqd", *arguments, listeners=3) as server:
        arguments = (*command, server.addresses["TCP"], "t", "c")
        with child(*arguments, limit=100.0, text=False, stderr=DEVNULL) as client:
            running = Running(server.addresses, client)
            wait_until(running.is_connected, LIMIT)
            yield running


@pytest.mark.subprocess
def test_client_whose_fin_is_lost_reconnects_and_gets_the_message_again(running):
    rule = {"on": "command", "kind": "FIN", "actions": [{"action": "disconnect"}]}
    assert running.faults("POST", document=rule) == {"id": 1}

    running.publish(b"x")

    assert [running.printed(), running.printed()] == [["x", "1"], ["x", "2"]]
    wait_until(running.is_done, LIMIT)
    assert [rule["fired"] for rule in running.faults("GET")["rules"]] == [1]


@pytest.mark.subprocess
def test_client_reconnects_after_an_outage(running):
    running.publish(b"before")
    assert running.printed() == ["before", "1"]
    wait_until(running.is_done, LIMIT)

    assert running.faults("POST", "/down")["down"]
    running.faults("POST", "/up")

    wait_until(running.is_connected, LIMIT)
    running.publish(b"after")
    assert running.printed() == ["after", "1"]


@pytest.mark.subprocess
def test_client_reconnects_after_a_faulty_link(running):
    toxic = running.faults("POST", "/toxics", {"toxic": "reset", "upstream": False})
    running.publish(b"x")
    wait_until(lambda: running.channel()["client_count"] == 0, LIMIT)

    running.faults("DELETE", f"/toxics?id={toxic['id']}")

    (body, _) = running.printed()
    assert body == "x"
    wait_until(running.is_done, LIMIT)
