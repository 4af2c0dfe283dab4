"""gnsq completion: the scripts of the shells, and names of topics and channels from the servers."""

import os
import shutil
import subprocess
import sys

import pytest
from click.shell_completion import ShellComplete

from fakensqd import on
from fakensqd.faults import answer
from gnsq import NsqdHTTPClient
from gnsq.cli.main import command_line
from tests.helpers import peer, refused_port, run


def completions(*words):
    """Return what completes the last word."""
    *arguments, incomplete = words
    completer = ShellComplete(command_line, {}, "gnsq", "_GNSQ_COMPLETE")
    return [item.value for item in completer.get_completions(list(arguments), incomplete)]


@pytest.fixture
def orders(fakensqd):
    """An nsqd with the topics orders and clicks; orders has the channels archive and mail#ephemeral."""
    client = NsqdHTTPClient.from_url(fakensqd.http_address)
    for topic in ("orders", "clicks"):
        client.create_topic(topic)
    for channel in ("archive", "mail#ephemeral"):
        client.create_channel("orders", channel)
    return fakensqd


def options_of(nsqd):
    return ["--nsqd", nsqd.tcp_address, "--nsqd-http", nsqd.http_address]


# --- names


def test_topics_come_from_nsqd(orders):
    assert completions("stats", *options_of(orders), "") == ["clicks", "orders"]
    assert completions("stats", *options_of(orders), "o") == ["orders"]
    assert completions("ping", *options_of(orders), "--topic", "c") == ["clicks"]
    assert completions("topic", "delete", *options_of(orders), "c") == ["clicks"]
    assert completions("tail", *options_of(orders), "orders", "c") == ["clicks"]


def test_channels_are_those_of_the_topic_before(orders):
    assert completions("stats", *options_of(orders), "orders", "") == ["archive", "mail#ephemeral"]
    assert completions("stats", *options_of(orders), "clicks", "") == []
    assert completions("channel", "delete", *options_of(orders), "orders", "a") == ["archive"]
    assert "tail" in completions("tial", *options_of(orders), "t")


def test_names_come_from_nsqlookupd(fakecluster):
    client = NsqdHTTPClient.from_url(fakecluster.nsqds[1].http_address)
    client.create_topic("orders")
    client.create_channel("orders", "archive")
    lookupd = ["--lookupd", fakecluster.lookupds[0].http_address]

    assert completions("stats", *lookupd, "") == ["orders"]
    assert completions("stats", *lookupd, "orders", "a") == ["archive"]


def test_environment_names_the_servers(orders, monkeypatch):
    monkeypatch.setenv("GNSQ_NSQD", orders.tcp_address)
    monkeypatch.setenv("GNSQ_NSQD_HTTP", orders.http_address)

    assert completions("stats", "o") == ["orders"]


def test_file_names_the_servers(orders, tmp_path):
    file = tmp_path / "gnsq.toml"
    file.write_text(f'[clusters.a]\nnsqd = "{orders.tcp_address}"\nnsqd_http = "{orders.http_address}"\n')

    assert completions("stats", "--config", str(file), "--cluster", "a", "o") == ["orders"]


def test_errors_complete_nothing(tmp_path, capfd):
    file = tmp_path / "gnsq.toml"
    file.write_text("not TOML")

    assert completions("stats", "o") == []
    assert completions("stats", "--nsqd", f"127.0.0.1:{refused_port()}", "o") == []
    assert completions("stats", "--nsqd", "127.0.0.1:no-port", "o") == []
    assert completions("stats", "--config", str(file), "o") == []
    assert capfd.readouterr() == ("", "")


def test_silent_server_does_not_hold_up_the_others(orders):
    def say_nothing(sock):
        while sock.recv(4096):
            pass

    with peer(say_nothing) as address:
        assert completions("stats", *options_of(orders), "--nsqd-http", address, "o") == ["orders"]


HOSTILE = [b"x$(touch x)", b"x\\u001b]0;y", b"`x`", b"x;y", b"x y"]


@pytest.mark.parametrize("name", HOSTILE)
def test_names_that_are_not_valid_never_reach_the_shell(fakensqd, name):
    topics = (
        b'{"topics": [{"topic_name": "%b", "channels": []}, {"topic_name": "t", "channels": [{"channel_name": "%b"}]}]}'
    )
    fakensqd.add(on.http("/stats").always(), answer(200, topics % (name, name)))

    assert completions("stats", *options_of(fakensqd), "") == []
    assert completions("stats", *options_of(fakensqd), "t", "") == []


# --- scripts


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_script_of_each_shell_is_printed(shell, gnsq):
    result = gnsq("completion", shell)

    assert result.exit_code == 0
    assert f"_GNSQ_COMPLETE={shell}_complete" in result.stdout


def test_unknown_shell_is_refused(gnsq):
    result = gnsq("completion", "csh")

    assert result.exit_code == 2
    assert "'csh' is not one of" in result.stderr


@pytest.fixture
def program(tmp_path):
    """The command gnsq, in a directory of its own."""
    file = tmp_path / "gnsq"
    file.write_text(f'#!/bin/sh\nexec {sys.executable} -m gnsq "$@"\n')
    file.chmod(0o755)
    return file


@pytest.mark.subprocess
def test_bash_completes_with_the_script(orders, gnsq, program):
    line = ["gnsq", "stats", *options_of(orders), "orders", "arch"]
    script = gnsq("completion", "bash").stdout + (
        f"COMP_WORDS=({' '.join(line)}) COMP_CWORD={len(line) - 1}\n_gnsq_completion {program}\necho ${{COMPREPLY[@]}}"
    )

    result = run("bash", "-c", script, env=os.environ, stdin=subprocess.DEVNULL)

    assert result.stdout.split() == ["archive"]
    assert result.stderr == ""


@pytest.mark.subprocess
@pytest.mark.skipif(not shutil.which("fish"), reason="there is no fish on PATH")
def test_fish_completes_with_the_script(orders, gnsq, program):
    line = " ".join(["gnsq", "stats", *options_of(orders), "orders", "arch"])
    script = f"{gnsq('completion', 'fish').stdout}\ncomplete -C '{line}'"
    environment = {**os.environ, "PATH": f"{program.parent}:{os.environ['PATH']}", "HOME": str(program.parent)}

    result = run("fish", "--no-config", "-c", script, env=environment, stdin=subprocess.DEVNULL)

    assert result.stdout.split() == ["archive"]
    assert result.stderr == ""


@pytest.mark.subprocess
@pytest.mark.skipif(not shutil.which("zsh"), reason="there is no zsh on PATH")
def test_zsh_completes_with_the_script(orders, gnsq, program):
    # zsh completes only in its line editor. So this calls the script's function, and prints what it passes to zsh.
    line = ["gnsq", "stats", *options_of(orders), "orders", "arch"]
    script = (
        f"compdef() {{ }}\ncompadd() {{ print -l -- ${{(P)@[-1]}} }}\n{gnsq('completion', 'zsh').stdout}\n"
        f"words=({' '.join(line)}) CURRENT={len(line)}\n_gnsq_completion"
    )
    environment = {**os.environ, "PATH": f"{program.parent}:{os.environ['PATH']}"}

    result = run("zsh", "-f", "-c", script, env=environment, stdin=subprocess.DEVNULL)

    assert result.stdout.split() == ["archive"]
    assert result.stderr == ""
