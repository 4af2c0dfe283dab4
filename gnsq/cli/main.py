"""The group of all commands; gnsq help; and gnsq completion, which prints the script that lets a shell complete."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from gnsq.cli.admin import channel, topic
from gnsq.cli.command import Group, connection_help
from gnsq.cli.copy import copy
from gnsq.cli.ping import ping
from gnsq.cli.pub import pub
from gnsq.cli.requeue_dead import requeue_dead
from gnsq.cli.stats import stats
from gnsq.cli.tail import tail
from gnsq.cli.to_file import to_file
from gnsq.options import VERSION

__all__ = ["command_line"]

_EXAMPLES = """
    gnsq pub orders -m '{"id": 1}' --nsqd 127.0.0.1:4150
    gnsq tail orders --lookupd 127.0.0.1:4161
    gnsq stats --cluster production
    gnsq help tail
    gnsq help connection
"""
_HELP = """Publish, read, watch and repair topics of NSQ.

gnsq help connection shows how each command finds its servers.

Exit status: 0 done, or stopped if the command runs until it is stopped; 1 failed, with the reason on stderr; 2 wrong
options or settings; 130 or 143 stopped by Ctrl-C or SIGTERM before the end, or ended at once by a second one.
"""
_COMPLETION_HELP = """Print the script that lets a shell complete commands and options.

\b
bash 4.4 or later, in ~/.bashrc:
    eval "$(gnsq completion bash)"
zsh, in ~/.zshrc after compinit:
    eval "$(gnsq completion zsh)"
fish:
    gnsq completion fish > ~/.config/fish/completions/gnsq.fish
"""


@click.group(cls=Group, help=_HELP, examples=_EXAMPLES, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(VERSION, message="%(prog)s %(version)s")
def command_line() -> None:  # the text of --help is above
    pass


@command_line.command(help=_COMPLETION_HELP)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:  # the text of --help is above
    found = get_completion_class(shell)
    assert found is not None  # click has these three
    script = found(context.find_root().command, {}, "gnsq", "_GNSQ_COMPLETE")
    # The method source() would start bash, to see whether it is old.
    click.echo(script.source_template % script.source_vars(), nl=False)


@command_line.command("help")
@click.argument("words", metavar="[COMMAND...]", nargs=-1)
@click.pass_context
def help_command(context: click.Context, words: tuple[str, ...]) -> None:
    """Show the help of a command, or of connection: what all commands have in common."""
    root = context.find_root()
    if words == ("connection",):
        click.echo(connection_help(root))
    else:
        root.command.main([*words, "--help"], root.info_name)


for _command in (channel, copy, ping, pub, requeue_dead, stats, tail, to_file, topic):
    command_line.add_command(_command)
