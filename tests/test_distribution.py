"""What is published: one version, the files of the wheel and the source archive, links, and pinned actions."""

import re
import sys
import tarfile
import tomllib
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest

import gnsq
from tests.kit import run

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
URLS = PROJECT["project"]["urls"]


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Build the wheel and the source archive; returns their paths."""
    pytest.importorskip("hatchling")
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "--directory", str(folder)]
    run(*command, cwd=ROOT).check_returncode()
    [wheel], [archive] = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return wheel, archive


@pytest.mark.subprocess
def test_wheel_has_both_packages_with_their_types_and_no_tests(built):
    with zipfile.ZipFile(built[0]) as wheel:
        names = wheel.namelist()

    folders = {name.split("/")[0] for name in names}
    assert folders == {"gnsq", "fakensqd", "pyspark_nsq", f"gnsq-{gnsq.__version__}.dist-info"}
    assert {"gnsq/py.typed", "fakensqd/py.typed"} <= set(names)
    sources = {str(path.relative_to(ROOT)) for root in ("gnsq", "fakensqd") for path in (ROOT / root).rglob("*.py")}
    assert {name for name in names if name.endswith(".py") and not name.startswith("pyspark_nsq/")} == sources
    assert [name for name in names if not name.endswith((".py", "py.typed")) and "dist-info" not in name] == []


@pytest.mark.subprocess
def test_source_archive_has_what_a_build_needs_and_no_tests(built):
    with tarfile.open(built[1]) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}

    top = {name.split("/")[0] for name in names}
    assert top == {
        ".gitignore",
        "CHANGELOG.md",
        "LICENSE",
        "PKG-INFO",
        "README.md",
        "fakensqd",
        "gnsq",
        "pyproject.toml",
    }


@pytest.mark.subprocess
def test_description_is_the_readme_with_links_that_lead_to_the_repository(built):
    with zipfile.ZipFile(built[0]) as wheel:
        metadata = message_from_bytes(wheel.read(f"gnsq-{gnsq.__version__}.dist-info/METADATA"))
    description = metadata.get_payload()

    assert metadata["Description-Content-Type"] == "text/markdown"
    targets = re.findall(r"\]\(([^)]+)\)", description)
    relative = re.findall(r"\]\((?!https?:)([^)#]+)\)", (ROOT / "README.md").read_text())
    assert [target for target in targets if not target.startswith(("https://", "http://"))] == []
    linked = {
        re.sub(r"^.*?/(?:blob|raw)/main/", "", target) for target in targets if target.startswith(URLS["Repository"])
    }
    assert set(relative) <= linked


def test_addresses_begin_with_that_of_the_repository():
    texts = [(ROOT / name).read_text() for name in ("pyproject.toml", "README.md")]

    assert all(url.startswith(URLS["Repository"]) for url in URLS.values())
    assert {url for text in texts for url in re.findall(r"https://example\.invalid/\w+/\w+", text)} == {
        URLS["Repository"]
    }


def test_changelog_begins_with_this_version():
    heading = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.M)[1]

    assert gnsq.__version__ in (heading, f"{heading}.dev0")


def test_actions_are_pinned_by_commit_with_their_version():
    texts = [path.read_text() for path in (ROOT / ".github/workflows").glob("*.yml")]
    used = [line for text in texts for line in re.findall(r"uses: +(.*)", text)]

    assert [each for each in used if not re.fullmatch(r"[\w./-]+@[0-9a-f]{40}  # v\d+\.\d+\.\d+", each)] == []
    assert len({each.partition("@")[0] for each in used}) == len(set(used)), "an action at two versions"
