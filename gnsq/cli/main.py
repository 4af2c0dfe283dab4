"""The group of all commands; gnsq help; and gnsq completion, which prints the script that lets a shell complete."""

from __future__ import annotations

import click

from gnsq.cli.group import Group, LazyCommands
from gnsq.options import VERSION

__all__ = ["command_line"]

# What each command does, as its own help says it, which is loaded only with it.
_SENTENCES = {
    "channel": "Create, delete, empty, pause and list channels.",
    "completion": "Print the script that lets a shell complete commands and options.",
    "copy": "Publish the messages of the topic SOURCE to the topic TARGET, until Ctrl-C.",
    "help": "Show what all commands have in common: how they find their servers.",
    "ping": "Check the whole way of a message, step by step, and say what is wrong and what to do.",
    "pub": "Publish texts (-m), or each line of FILE or of stdin, as a message.",
    "requeue-dead": "Publish dead letters to the topics that they came from: messages that consumers gave up, in the "
    "topic DEAD_TOPIC.",
    "stats": "Show topics and channels, summed over all nsqds: depth, messages in flight and deferred, rates, clients.",
    "tail": "Print the messages of one or more topics as they come, until Ctrl-C.",
    "to-file": "Write the messages of topics to files, for each topic files of its own.",
    "topic": "Create, delete, empty, pause, list and hide topics.",
}
_PATHS = {
    "channel": "gnsq.cli.admin:channel",
    "copy": "gnsq.cli.copy:copy",
    "ping": "gnsq.cli.ping:ping",
    "pub": "gnsq.cli.pub:pub",
    "requeue-dead": "gnsq.cli.requeue_dead:requeue_dead",
    "stats": "gnsq.cli.stats:stats",
    "tail": "gnsq.cli.tail:tail",
    "to-file": "gnsq.cli.to_file:to_file",
    "topic": "gnsq.cli.admin:topic",
}
_EXAMPLES = """
    gnsq pub orders -m '{"id": 1}' --nsqd 127.0.0.1:4150
    gnsq tail orders --lookupd 127.0.0.1:4161
    gnsq stats --cluster production
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


@click.group(
    cls=Group,
    commands=LazyCommands(_PATHS),
    sentences=_SENTENCES,
    help=_HELP,
    examples=_EXAMPLES,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(VERSION, message="%(prog)s %(version)s")
def command_line() -> None:  # the text of --help is above
    pass


@command_line.command(help=_COMPLETION_HELP)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:  # the text of --help is above
    from click.shell_completion import get_completion_class

    found = get_completion_class(shell)
    assert found is not None  # click has these three
    script = found(context.find_root().command, {}, "gnsq", "_GNSQ_COMPLETE")
    # The method source() would start bash, to see whether it is old.
    click.echo(script.source_template % script.source_vars(), nl=False)


@command_line.command("help")
@click.argument("of", metavar="connection", type=click.Choice(["connection"]))
@click.pass_context
def help_command(context: click.Context, of: str) -> None:
    """Show what all commands have in common: how they find their servers. Of a command: gnsq COMMAND --help."""
    from gnsq.cli.command import connection_help

    click.echo(connection_help(context.find_root()))
