"""The applications of the pages about web frameworks and systemd run, and report errors to their clients."""

import contextlib
import os
import signal
import socket
import sqlite3
import sys

import pytest

from fakensqd import on
from fakensqd.faults import error
from tests.docs.pages import ROOT, blocks
from tests.kit import child, wait_for_program

pytestmark = pytest.mark.subprocess
PAGE = "guides/web-frameworks.md"

# What the pages leave to the reader's own Django.
DJANGO_FILES = {
    "settings.py": """
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "db"}}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
INSTALLED_APPS = ["orders"]
NSQD = "127.0.0.1:4150"
ROOT_URLCONF = "urls"
""",
    "urls.py": """
from django.urls import path
from orders.views import take_order

urlpatterns = [path("orders", take_order)]
""",
    "orders/__init__.py": "",
    "orders/migrations/__init__.py": "",
    "orders/management/__init__.py": "",
    "orders/management/commands/__init__.py": "",
    "orders/models.py": """
from django.db import models


class Order(models.Model):
    cents = models.IntegerField()
""",
}

# Each defines ``client``, which takes a body, and prints the response.
CLIENTS = {
    "flask": """
from flask_app import app, producer

def client(body):
    response = app.test_client().post("/orders", data=body)
    print(response.status_code, response.text)
""",
    "django": """
import django

django.setup()

from django.test import Client
from django.test.utils import setup_test_environment

from orders.nsq import producer

setup_test_environment()

def client(body):
    response = Client().post("/orders", body, content_type="text/plain")
    print(response.status_code, response.content.decode())
""",
    "fastapi": """
from fastapi.testclient import TestClient
from fastapi_app import app, producer

opened = TestClient(app).__enter__()

def client(body):
    response = opened.post("/orders", content=body)
    print(response.status_code, response.text)
""",
}


@pytest.fixture
def start(tmp_path, fakensqd):
    """Write the files of a page; returns a function that starts Python with them."""

    def start(page, *command, **variables):
        files = {block.title: block.code for block in blocks(page) if block.title and block.language == "python"}
        for name, text in {**files, **DJANGO_FILES}.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text.replace("127.0.0.1:4150", fakensqd.tcp_address))
        django = {"DJANGO_SETTINGS_MODULE": "settings"}
        environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}", **django, **variables}
        return child(sys.executable, *command, cwd=tmp_path, env=environment)

    return start


@pytest.mark.parametrize("framework", CLIENTS)
def test_application_stores_bodies_and_reports_errors(framework, fakensqd, start):
    pytest.importorskip(framework)
    requests = "\nfor body in (b'1', b'', b'full'):\n    client(body)\nproducer.close()\n"

    with (
        fakensqd.add(on.command("PUB", body=b"full").always(), error("E_PUB_FAILED")),
        start(PAGE, "-c", CLIENTS[framework] + requests) as program,
    ):
        out, err = program.communicate()

    assert out == "202 stored\n400 an order has a body\n503 not stored\n", err
    assert fakensqd.messages("orders") == [b"1"]


def test_command_of_django_stores_orders(fakensqd, start, tmp_path):
    pytest.importorskip("django")
    fakensqd.publish("orders", b'{"id": 1, "cents": 250}', b'{"id": 1, "cents": 250}')
    migrate = "import django; from django.core.management import call_command as call; django.setup()"
    with start(PAGE, "-c", f"{migrate}; call('makemigrations', 'orders'); call('migrate')") as program:
        assert program.wait() == 0, program.communicate()

    with start(PAGE, "-m", "django", "bill_orders") as program:
        wait_for_program(program, lambda: len(fakensqd.transcript.finished()) == 2)
        program.send_signal(signal.SIGTERM)
        out, err = program.communicate()

    assert program.returncode == 0, out + err
    with contextlib.closing(sqlite3.connect(tmp_path / "db")) as database:
        assert database.execute("select cents from orders_order").fetchall() == [(250,)]


def test_service_of_systemd_says_that_it_is_ready(fakensqd, start, socket_folder):
    fakensqd.publish("orders", b"1")
    with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) as systemd:
        systemd.bind(str(socket_folder / "notify"))
        systemd.settimeout(30)
        variables = {"NSQD": fakensqd.tcp_address, "NOTIFY_SOCKET": str(socket_folder / "notify")}
        with start("guides/systemd.md", "worker.py", **variables) as program:
            states = {systemd.recv(100), systemd.recv(100)}
            wait_for_program(program, lambda: len(fakensqd.transcript.finished()) == 1)
            program.send_signal(signal.SIGTERM)
            out, err = program.communicate()

    assert states == {b"READY=1", b"WATCHDOG=1"}
    assert (out, program.returncode) == ("bill b'1'\n", 0), err
