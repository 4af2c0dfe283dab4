"""What mkdocs calls when it builds the pages: generated parts, links to files of the repository, a check of the result.

A comment such as ``<!-- generated: file CHANGELOG.md -->`` in a page is replaced by what a function of GENERATORS
returns for the words after the name. So these parts of the pages are as new as the code.

The address of the repository is in pyproject.toml, and REPOSITORY in a page stands for it. A relative link to a file
outside the pages, which works in a checkout, becomes a link to that file in the repository.
"""

from __future__ import annotations

import logging
import os
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

# A warning of this logger is an error of a strict build.
logger = logging.getLogger("mkdocs.hooks.gnsq")

ROOT = Path(__file__).resolve().parent.parent
PAGES = ROOT / "docs" / "pages"

MARK = re.compile(r"^<!-- generated: (\w+) ?(.*?) -->$", re.MULTILINE)
RELATIVE_LINK = re.compile(r"(\]\()(\.[^)#\s]+)((?:#[^)\s]*)?\))")
# Addresses that a browser would load by itself. Links of <a>, which the reader follows, may lead anywhere.
LOADED = re.compile(r"<(?:script|img|iframe|source|link)\b[^>]*?\b(?:src|href)=[\"']?((?:https?:)?//[^\"'\s>]+)")
LOADED_BY_CSS = re.compile(r"(?:url\(\s*[\"']?|@import\s+[\"'])((?:https?:)?//[^\"')\s]+)")


def repository() -> str:
    """Return the address of the repository."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return str(project["urls"]["Repository"])


def file_text(path: str) -> str:
    """Return a file of the repository."""
    return (ROOT / path).read_text()


# By the first word of a mark.
GENERATORS: dict[str, Callable[..., str]] = {"file": file_text}


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


def on_page_markdown(markdown: str, /, *, page: Any, **context: Any) -> str:  # Any: of mkdocs
    """Complete the text of a page."""
    return with_repository_links(generated(markdown), page.file.src_uri)


def on_post_build(*, config: Any) -> None:
    """Warn if a built page would load anything from another host."""
    site = Path(config.site_dir)
    for path in [*site.rglob("*.html"), *site.rglob("*.css")]:
        for address in foreign_addresses(path.read_text(), css=path.suffix == ".css"):
            logger.warning("%s loads %s", path.relative_to(site), address)
