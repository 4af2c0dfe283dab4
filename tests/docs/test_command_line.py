"""The command lines and the file of the guide to the command line are valid."""

import re
import shlex
from pathlib import Path

import click
import pytest

from gnsq.cli.main import command_line
from gnsq.cli.servers import load_cluster
from tests.docs.pages import FOLDER, blocks

PAGE = "guides/command-line.md"
FILES = ("orders.jsonl", "saved.jsonl", "photo.png", "later.txt", "client.pem", "secret")


def command_lines():
    """List the arguments of each call of gnsq in the page."""
    lines = [
        line for block in blocks(PAGE) if block.language == "sh" for line in block.code.replace("\\\n", "").splitlines()
    ]
    for line in lines:
        for call in re.findall(r"\bgnsq (?!--help)[^|>)]*", line.partition("  #")[0]):
            yield shlex.split(call)[1:]


def examples(command=command_line):
    """List the arguments of the examples in the help of all commands."""
    for line in getattr(command, "examples", ()):
        yield shlex.split(line.rpartition("| ")[2])[1:]
    for each in getattr(command, "commands", {}).values():
        yield from examples(each)


def test_help_of_all_commands_has_the_first_sentence_of_each():
    commands = command_line.commands.items()

    assert command_line.sentences == {name: each.get_short_help_str(1000) for name, each in commands}


@pytest.mark.parametrize(
    "arguments", [call for call in [*command_lines(), *examples()] if call[0] in command_line.commands], ids=" ".join
)
def test_command_line_is_valid(arguments, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in FILES:
        (tmp_path / name).write_text("1\n")
    command = command_line
    while isinstance(command, click.Group):
        command, arguments = command.commands[arguments[0]], arguments[1:]

    with command.make_context(command.name, list(arguments)) as context:
        assert context.params


def test_help_of_each_command_begins_with_an_example():
    def commands(group):
        for each in group.commands.values():
            yield from [each, *commands(each)] if isinstance(each, click.Group) else [each]

    own = [each for each in commands(command_line) if each.name not in ("completion", "help")]

    assert [each.name for each in own if not each.examples] == []


def test_each_command_is_in_the_table_of_the_guide():
    (table,) = re.findall(r"^\| command \|.*?\n\n", (FOLDER / PAGE).read_text(), re.M | re.S)

    assert {*command_line.commands} <= {*re.findall(r"`gnsq ([a-z-]+)`", table)}


def test_file_is_valid(tmp_path, fakensqd_certificates):
    (block,) = [block for block in blocks(PAGE) if block.language == "toml"]
    path = tmp_path / "gnsq.toml"
    path.write_text(block.code)
    certificate, key = fakensqd_certificates.client("cli")
    (tmp_path / "ca.pem").symlink_to(fakensqd_certificates.ca)
    (tmp_path / "client.pem").write_text(Path(certificate).read_text() + Path(key).read_text())
    (tmp_path / "secret").write_text("s")

    assert load_cluster(None, str(path), {}).nsqds == ("127.0.0.1:4150",)
    assert load_cluster("production", str(path), {}).lookupds == ("lookupd-1:4161", "lookupd-2:4161")
    with pytest.raises(click.UsageError, match=r"there is no cluster 'productoin', .* did you mean production"):
        load_cluster("productoin", str(path), {})
