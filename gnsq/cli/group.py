"""The group of commands, and the signals of the program: all that gnsq --help needs, which is little."""

from __future__ import annotations

import contextlib
import importlib
import os
from collections import UserDict
from collections.abc import Iterator, Mapping
from typing import Any

import click

from gnsq.running import StopSignals
from gnsq.texts import nearest

__all__ = ["Group", "LazyCommands", "WithExamples", "program"]


@contextlib.contextmanager
def program() -> Iterator[StopSignals]:
    """Receive SIGINT and SIGTERM around a whole command, which gets them as click's context object.

    So a signal that comes before the command begins its work, or after it, does not end the process in another way.
    """
    with StopSignals(before_end=_show_cursor) as stop:
        yield stop


def _show_cursor() -> None:
    """Show the cursor again, which rich hides while it shows progress or a table."""
    if os.isatty(2):
        os.write(2, b"\x1b[?25h")


class WithExamples(click.Command):
    """Its help begins with examples.

    Args:
        examples: Command lines.
        arguments, options: Those of click.Command.
    """

    def __init__(self, *arguments: Any, examples: str = "", **options: Any) -> None:  # Any: click's
        super().__init__(*arguments, **options)
        self.examples = [line.strip() for line in examples.strip().splitlines()]

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the examples, and then the text."""
        if self.examples:
            formatter.write_paragraph()
            with formatter.indentation():
                for line in self.examples:
                    formatter.write(f"{'':{formatter.current_indent}}{line}\n")
        super().format_help_text(ctx, formatter)


class LazyCommands(UserDict[str, click.Command]):
    """Commands by name, each of which is imported when it is looked up: an import takes longer than --help.

    Args:
        paths: Where each is, as ``module:name``.
    """

    def __init__(self, paths: Mapping[str, str]) -> None:
        super().__init__()
        self.data = dict.fromkeys(paths)  # type: ignore[assignment]  # until they are looked up
        self._paths = paths

    def __getitem__(self, name: str) -> click.Command:
        """Return a command."""
        if self.data[name] is None:
            module, _, attribute = self._paths[name].partition(":")
            self.data[name] = getattr(importlib.import_module(module), attribute)
        return self.data[name]


class Group(WithExamples, click.Group):
    """A group whose help has the whole first sentence of each command.

    Args:
        sentences: Those of commands that are not to be imported for the help.
        arguments, options: Those of click.Group.
    """

    def __init__(self, *arguments: Any, sentences: Mapping[str, str] | None = None, **options: Any) -> None:
        # Any: click's
        super().__init__(*arguments, **options)
        self.sentences = sentences or {}

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands, and what each does."""
        with formatter.section("Commands"):
            formatter.write_dl(
                [
                    (name, self.sentences.get(name) or self.commands[name].get_short_help_str(1000))
                    for name in sorted(self.commands)
                ]
            )

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find a command. For an unknown one, say which one has a similar name."""
        if args[0] not in self.commands and not args[0].startswith("-") and not ctx.resilient_parsing:
            ctx.fail(f"there is no command {args[0]!r}{nearest(args[:1], sorted(self.commands), 'commands are')}")
        return super().resolve_command(ctx, args)
