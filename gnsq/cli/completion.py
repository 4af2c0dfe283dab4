"""gnsq completion: prints the script that lets a shell complete gnsq's arguments, also names of topics and channels."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from gnsq.cli.cluster import Command

__all__ = ["completion"]

_HELP = """Print the script that lets a shell complete commands, options, and the names of topics and channels.

The names come from the servers of the connection options on the line, of the environment, or of ~/.config/gnsq.toml. If
none answers within 3 seconds, there are none.

\b
bash 4.4 or later, in ~/.bashrc:
    eval "$(gnsq completion bash)"
zsh, in ~/.zshrc after compinit:
    eval "$(gnsq completion zsh)"
fish:
    gnsq completion fish > ~/.config/fish/completions/gnsq.fish
"""


@click.command(cls=Command, help=_HELP)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:  # the text of --help is above
    found = get_completion_class(shell)
    assert found is not None  # click has these three
    script = found(context.find_root().command, {}, "gnsq", "_GNSQ_COMPLETE")
    # The method source() would start bash, to see whether it is old.
    click.echo(script.source_template % script.source_vars(), nl=False)
