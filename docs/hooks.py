"""What mkdocs calls when it builds the pages: generated parts, links to files of the repository, a check of the result.

A comment such as ``<!-- generated: file CHANGELOG.md -->`` in a page is replaced by what a function of GENERATORS
returns for the words after the name. So these parts of the pages are as new as the code.

The address of the repository is in pyproject.toml, and REPOSITORY in a page stands for it. A relative link to a file
outside the pages, which works in a checkout, becomes a link to that file in the repository.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import importlib
import inspect
import json
import logging
import os
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

# A warning of this logger is an error of a strict build.
logger = logging.getLogger("mkdocs.hooks.gnsq")

ROOT = Path(__file__).resolve().parent.parent
PAGES = ROOT / "docs" / "pages"

MARK = re.compile(r"^<!-- generated: (\w+) ?(.*?) -->$", re.MULTILINE)
RELATIVE_LINK = re.compile(r"(\]\()(\.[^)#\s]+)((?:#[^)\s]*)?\))")
# In a file at the root: not an address, and not an anchor of the same page.
ROOT_LINK = re.compile(r"(\]\()([\w.-]+(?:/[^)#\s]*)?)((?:#[^)\s]*)?\))")
# Addresses that a browser would load by itself. Links of <a>, which the reader follows, may lead anywhere.
LOADED = re.compile(r"<(?:script|img|iframe|source|link)\b[^>]*?\b(?:src|href)=[\"']?((?:https?:)?//[^\"'\s>]+)")
LOADED_BY_CSS = re.compile(r"(?:url\(\s*[\"']?|@import\s+[\"'])((?:https?:)?//[^\"')\s]+)")


def repository() -> str:
    """Return the address of the repository."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return str(project["urls"]["Repository"])


def file_text(path: str) -> str:
    """Return a file at the root of the repository, for a page in the top folder: links to pages lead to the pages."""

    def replaced(link: re.Match[str]) -> str:
        target = link[2].removeprefix("docs/pages/")
        return f"{link[1]}{target if target != link[2] else '../../' + target}{link[3]}"

    return ROOT_LINK.sub(replaced, (ROOT / path).read_text())


# --- tables from the code


def _cell(text: str) -> str:
    """Escape what has a meaning in a table of Markdown, but not within backticks."""
    parts = re.split(r"(`+[^`]*`+)", " ".join(text.split()))
    parts[::2] = [re.sub(r"([*\\])", r"\\\1", part).replace("<", "&lt;") for part in parts[::2]]
    return "".join(parts).replace("|", "\\|")


def _table(columns: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Make a table whose cells stand below each other on a telephone, each after the name of its column."""
    columns = list(columns)
    lines = [columns, ["---"] * len(columns)]
    for first, *others in rows:
        cells = [
            cell and f'{_cell(cell)} {{ data-column="{column}" }}'
            for column, cell in zip(columns[1:], others, strict=True)
        ]
        lines.append([_cell(first), *cells])
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return f'<div class="stacked" markdown>\n\n{table}\n\n</div>'


def _named(path: str) -> Any:  # Any: a class or another object
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


def option_rows(options: Any, *, common: bool = False) -> Iterator[tuple[str, str, str, str]]:  # Any: a dataclass
    """List name, default, unit and meaning of the common options of a class, or of the others.

    The options of Spark have names and defaults as users of Spark write them, and those of ConnectOptions are listed
    only for that class. An option without a meaning is listed nowhere.
    """
    from gnsq.spark.options import ConnectOptions, shown, spark_name

    of_spark = issubclass(options, ConnectOptions)
    shared = ConnectOptions.__dataclass_fields__ if of_spark and options is not ConnectOptions else {}
    for field in dataclasses.fields(options):
        if field.name in shared or not field.metadata.get("meaning"):
            continue
        if field.metadata["common"] is not common:
            continue
        name, default = (spark_name(field), shown(field.default)) if of_spark else (field.name, repr(field.default))
        yield name, default, field.metadata["unit"], field.metadata["meaning"]


def options_table(*paths: str) -> str:
    """Make the table of classes of options, such as ``gnsq.options.ConnectionOptions``, without common options."""
    rows = (row for path in paths for row in option_rows(_named(path)))
    cells = ((f"`{name}`", default and f"`{default}`", *rest) for name, default, *rest in rows)
    return _table(("option", "default", "unit", "meaning"), cells)


def common_options_table(*paths: str) -> str:
    """Make the table of the common options of some classes, with the clients that they mean something to."""
    rows = []
    for options in map(_named, paths):
        client = options.__name__.removesuffix("Options")
        for name, default, unit, meaning in option_rows(options, common=True):
            receives = options.__dataclass_fields__[name].metadata["receives"]
            of = "Consumer" if receives else "both" if client == "Connection" else client
            rows.append((f"`{name}`", of, f"`{default}`", unit, meaning))
    return _table(("option", "for", "default", "unit", "meaning"), rows)


def settings_table(path: str) -> str:
    """Make the table of a class whose fields are settings of a TOML file, with defaults as TOML has them."""
    fields = [field for field in dataclasses.fields(_named(path)) if "meaning" in field.metadata]
    rows = (
        (field.name, json.dumps(field.default).removesuffix(".0"), field.metadata["unit"], field.metadata["meaning"])
        for field in fields
    )
    cells = (
        (f"`{name}`", "" if default in ('""', "null", "[]") else f"`{default}`", *rest) for name, default, *rest in rows
    )
    return _table(("setting", "default", "unit", "meaning"), cells)


@dataclasses.dataclass(frozen=True)
class Signal:
    """A signal of a class.

    Attributes:
        owner: Name of the class.
        receiver: Name of the type of its receivers.
        arguments: Names of the keyword arguments of a receiver, each with its type.
        text: When it is sent, and what the arguments are.
    """

    owner: str
    name: str
    receiver: str
    arguments: tuple[tuple[str, str], ...]
    text: str


# Classes whose constructors make signals, with the clients that have these signals.
_SIGNAL_MAKERS = [
    ("gnsq/signals.py", "ClientSignals", ["Consumer", "Producer"]),
    ("gnsq/signals.py", "ConsumerSignals", ["Consumer"]),
    ("gnsq/consumer/consumer.py", "Consumer", ["Consumer"]),
    ("gnsq/nsqd/tcp.py", "NsqdTCPClient", ["NsqdTCPClient"]),
]


def signals() -> Iterator[Signal]:
    """List the signals that constructors make, each with the string after its assignment."""
    for path, class_name, owners in _SIGNAL_MAKERS:
        (maker,) = [n for n in ast.parse((ROOT / path).read_text()).body if getattr(n, "name", "") == class_name]
        (made,) = [node for node in ast.iter_child_nodes(maker) if getattr(node, "name", "") == "__init__"]
        assert isinstance(made, ast.FunctionDef)
        for statement, after in zip(made.body, made.body[1:], strict=False):
            match statement:
                case ast.AnnAssign(
                    target=ast.Attribute(attr=name),
                    annotation=ast.Subscript(value=ast.Name(id="TypedSignal"), slice=ast.Name(id=receiver)),
                ):
                    path = f"gnsq.signals.{receiver}"
                case ast.Assign(targets=[ast.Attribute(attr=name)], value=ast.Call(func=ast.Name(id="HandlerSignal"))):
                    path = "gnsq.consumer.Handler"
                case _:
                    continue
            call = inspect.signature(_named(path).__call__)
            keywords = [parameter for parameter in call.parameters.values() if parameter.kind is parameter.KEYWORD_ONLY]
            arguments = tuple((keyword.name, str(keyword.annotation)) for keyword in keywords)
            assert isinstance(after, ast.Expr), f"{class_name}.{name} has no text"
            for owner in owners:
                yield Signal(owner, name, path, arguments, str(ast.literal_eval(after.value)))


def signals_table() -> str:
    """Make the table of all signals: one row for those of several clients that differ in nothing else."""
    rows: dict[tuple[object, ...], list[Signal]] = {}
    for signal in signals():
        rows.setdefault((signal.name, signal.receiver, signal.text), []).append(signal)
    return _table(
        ("signal", "of", "arguments", "sent when", "type of receivers"),
        (
            (
                f"`{first.name}`",
                ", ".join(signal.owner for signal in same),
                ", ".join(f"`{name}: {kind}`" for name, kind in first.arguments),
                str(text),
                f"`{first.receiver.removeprefix('gnsq.signals.')}`",
            )
            for (_, _, text), same in sorted(rows.items(), key=lambda item: str(item[0]))
            for first in same[:1]
        ),
    )


def errors_of(*modules: str) -> Iterator[type[Exception]]:
    """List the exceptions that modules define, in the order of their definition."""
    for path in modules:
        module = importlib.import_module(path)
        for value in vars(module).values():
            if isinstance(value, type) and issubclass(value, Exception) and value.__module__ == path:
                yield value


def error_texts(error: type[Exception]) -> tuple[str, str]:
    """Return what an error means and what to do, from its docstring.

    Raises:
        ValueError: If the docstring does not say what to do.
    """
    meaning, found, rest = inspect.cleandoc(error.__doc__ or "").partition("\n\nWhat to do: ")
    if not found:
        raise ValueError(f"the docstring of {error.__name__} has no paragraph that begins with What to do")
    advice = rest.partition("\n\n")[0]
    return meaning, advice[0].upper() + advice[1:]


def errors_table(*modules: str) -> str:
    """Make the table of the exceptions of modules that have no code of nsqd."""
    return _table(
        ("error", "what it means", "what to do", "at fault", "is also"),
        (
            (
                f"`{error.__name__}`",
                *error_texts(error),
                getattr(error, "at_fault", ""),
                ", ".join(f"`{base.__name__}`" for base in error.__bases__ if base.__name__ != "NSQException"),
            )
            for error in errors_of(*modules)
            if not error.__name__.startswith("_") and not getattr(error, "code", "").startswith("E_")
        ),
    )


def error_codes_table() -> str:
    """Make the table of nsqd's codes."""
    from gnsq.errors import ERROR_CODES

    return _table(
        ("code", "error", "fatal", "at fault", "what it means", "what to do"),
        (
            (
                f"`{code.decode()}`",
                f"`{error.__name__}`",
                "yes" if error.fatal else "no",
                error.at_fault,
                *error_texts(error),
            )
            for code, error in ERROR_CODES.items()
        ),
    )


# Of Spark: a side, and the module that has its families.
_SPARK_METRICS = {"pipeline": "gnsq.spark.pipeline.exporter", "receiver": "gnsq.spark.receiver.exporter"}


def families(side: str) -> list[Any]:  # Any: its class is private
    """Return the metrics of a side: ``consumer``, ``producer``, ``nsq``, or one of _SPARK_METRICS."""
    from gnsq.contrib.prometheus import _FAMILIES, _NSQD_FAMILIES

    if side in _SPARK_METRICS:
        return [*_named(f"{_SPARK_METRICS[side]}.FAMILIES").values()]
    return [family for family in (*_FAMILIES.values(), *_NSQD_FAMILIES) if family.name.startswith(side)]


def metrics_table(side: str) -> str:
    """Make the table of the metrics of a side, as in families()."""
    return _table(
        ("metric", "kind", "labels", "meaning"),
        (
            (
                f"`gnsq_{family.name}{'_total' if family.kind == 'counter' else ''}`",
                family.kind,
                ", ".join(f"`{label}`" for label in family.labels),
                family.meaning,
            )
            for family in families(side)
        ),
    )


OBSERVABILITY = PAGES / "observability"


def alerts_table() -> str:
    """Make the table of the alert rules."""
    import yaml

    groups = yaml.safe_load((OBSERVABILITY / "alerts.yml").read_text())["groups"]
    return _table(
        ("alert", "severity", "after", "what it means, and what to do"),
        (
            (
                f"`{rule['alert']}`",
                rule["labels"]["severity"],
                rule.get("for", "at once"),
                rule["annotations"]["description"],
            )
            for group in groups
            for rule in group["rules"]
        ),
    )


def panels_table(dashboard: str) -> str:
    """Make the table of the panels of a dashboard, such as ``consumers``."""
    panels = json.loads((OBSERVABILITY / f"{dashboard}.json").read_text())["panels"]
    return _table(
        ("panel", "what it shows"),
        ((panel["title"], panel["description"]) for panel in panels if panel["type"] != "stat"),
    )


def help_text(path: str, *words: str) -> str:
    """Make a block of what a click command prints for ``--help``.

    Args:
        path: Such as ``fakensqd.cli.main.command_line``.
        words: The command as users write it. Words after a single ``:`` are its arguments. Those of ``help`` are the
            whole command line.
    """
    from click.testing import CliRunner

    program, _, arguments = " ".join(words).partition(" : ")
    line = arguments.split() if arguments.startswith("help ") else [*arguments.split(), "--help"]
    result = CliRunner().invoke(_named(path), line, prog_name=program)
    if result.exit_code != 0:
        raise RuntimeError(f"{program} --help ends with status {result.exit_code}: {result.output}")
    return f"```text\n{result.output.rstrip()}\n```"


def commands_text(path: str, *words: str) -> str:
    """Make a section for a click group, and one for each of its commands, and of theirs.

    Args:
        path, words: As for help_text().
    """
    program, _, arguments = " ".join(words).partition(" : ")
    group = functools.reduce(lambda group, name: group.commands[name], arguments.split(), _named(path))
    sections = [f"## {program} {arguments}".rstrip() + f"\n\n{help_text(path, *words)}"]
    for name in sorted(getattr(group, "commands", ())):
        sections.append(commands_text(path, program, ":", *arguments.split(), name))
    return "\n\n".join(sections)


# By the first word of a mark.
GENERATORS: dict[str, Callable[..., str]] = {
    "alerts": alerts_table,
    "commands": commands_text,
    "common_options": common_options_table,
    "error_codes": error_codes_table,
    "errors": errors_table,
    "file": file_text,
    "help": help_text,
    "metrics": metrics_table,
    "options": options_table,
    "panels": panels_table,
    "settings": settings_table,
    "signals": signals_table,
}


def generated(text: str) -> str:
    """Replace each mark in a page.

    Raises:
        KeyError: If there is no such generator.
    """
    return MARK.sub(lambda mark: GENERATORS[mark[1]](*mark[2].split()), text)


def with_repository_links(text: str, page: str) -> str:
    """Let relative links out of the pages lead to the repository.

    Args:
        page: Path of the page below the folder of all pages.
    """
    address = repository()

    def replaced(link: re.Match[str]) -> str:
        target = Path(os.path.normpath(PAGES / Path(page).parent / link[2]))
        if target.is_relative_to(PAGES):
            return link[0]
        if not target.exists():
            logger.warning("%s: there is no file %s", page, link[2])
        return f"{link[1]}{address}/blob/main/{target.relative_to(ROOT).as_posix()}{link[3]}"

    return RELATIVE_LINK.sub(replaced, text).replace("REPOSITORY", address)


def foreign_addresses(text: str, *, css: bool = False) -> list[str]:
    """List the addresses of other hosts that a browser would load for a page or a style sheet."""
    return [address for address in (LOADED_BY_CSS if css else LOADED).findall(text) if urlsplit(address).netloc]


# --- called by mkdocs


def on_config(config: Any) -> Any:  # Any: of mkdocs
    """Link each page to the repository."""
    config.repo_url = repository()
    config.repo_name = "/".join(urlsplit(config.repo_url).path.split("/")[1:3])
    return config


def on_page_markdown(markdown: str, /, *, page: Any, **context: Any) -> str:  # Any: of mkdocs
    """Complete the text of a page."""
    return with_repository_links(generated(markdown), page.file.src_uri)


def on_post_build(*, config: Any) -> None:
    """Warn if a built page would load anything from another host."""
    site = Path(config.site_dir)
    for path in [*site.rglob("*.html"), *site.rglob("*.css")]:
        for address in foreign_addresses(path.read_text(), css=path.suffix == ".css"):
            logger.warning("%s loads %s", path.relative_to(site), address)
