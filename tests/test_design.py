"""docs/design.md and changing.md, and the numbered walks at the top of six modules, agree with the code."""

import ast
import functools
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
# A module with a walk, the way of one message: how many files the walk may visit.
WALKS = {
    "gnsq/nsqd/connection.py": 13,
    "gnsq/producer/dispatcher.py": 10,
    "gnsq/cli/receiving.py": 11,
    "fakensqd/nsqd/session.py": 9,
    "gnsq/spark/receiver/receiver.py": 12,
    "gnsq/spark/pipeline/archive.py": 12,
}
# Names in backticks, with the file that they are in: `feed` and `FrameDecoder.next_frame` in protocol/frames.py.
NAMES = re.compile(r"((?:`[\w.]+`(?:, and |, | and | or )?)+)(?:(?<=`) in ([\w/]+\.py))?")


@functools.cache
def steps(module):
    """The numbered steps of the comment that follows a module's docstring, each as one line."""
    text = (ROOT / module).read_text()
    docstring = ast.parse(text).body[0]
    lines = text.splitlines()[docstring.end_lineno :]
    found = []
    open_step = False
    for line in lines:
        if line and not line.startswith("#"):
            break
        words = line.lstrip("#").strip()
        if numbered := re.match(r"(\d+)\. +(.*)", words):
            assert int(numbered[1]) == len(found) + 1, f"{module}: {line}"
            found.append(numbered[2])
        elif words and open_step:
            found[-1] += " " + words
        open_step = bool(words and found)
    return found


def visited(module, step):
    """(file, name) of each name in backticks in a step."""
    package = Path(module).parts[0]
    for names, file in NAMES.findall(step):
        path = f"{package}/{file}" if file else module
        for name in re.findall(r"`([\w.]+)`", names):
            yield path if (ROOT / path).exists() else file, name


@functools.cache
def defined(path):
    """What a file defines: functions, classes, Class.method, and names that are assigned in the module or a class."""

    def names(body, prefix=""):
        for node in body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                yield prefix + node.name
            if isinstance(node, ast.ClassDef):
                yield from names(node.body, f"{node.name}.")
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            yield from (prefix + target.id for target in targets if isinstance(target, ast.Name))

    return set(names(ast.parse((ROOT / path).read_text()).body))


@pytest.mark.parametrize("module", WALKS)
def test_walk_has_steps(module):
    assert len(steps(module)) > 2


@pytest.mark.parametrize("module", WALKS)
def test_each_step_of_a_walk_names_functions_that_exist(module):
    for step in steps(module):
        found = list(visited(module, step))

        assert found, f"{module}: no function in backticks: {step}"
        assert [(path, name) for path, name in found if name not in defined(path)] == []


@pytest.mark.parametrize(("module", "limit"), WALKS.items())
def test_walk_visits_few_files(module, limit):
    files = {path for step in steps(module) for path, _ in visited(module, step)}

    assert module in files
    assert len(files) <= limit


# --- docs/design.md and changing.md

DESIGN = (ROOT / "docs/design.md").read_text()
CHANGES = (ROOT / "docs/changing.md").read_text()


def tree():
    """The files and folders of the indented tree, as paths."""
    found, folders = [], []
    for line in re.findall(r"^    ( *[\w./]+)(?:  .*)?$", DESIGN, re.MULTILINE):
        name = line.strip()
        del folders[(len(line) - len(name)) // 2 :]
        found.append("".join([*folders, name]))
        if name.endswith("/"):
            folders.append(name)
    return found


def test_tree_has_every_folder_and_module():
    modules = [path for package in ("gnsq", "fakensqd") for path in (ROOT / package).rglob("*.py")]
    files = {path.relative_to(ROOT).as_posix() for path in modules if path.name != "__init__.py"}
    folders = {f"{path.parent.relative_to(ROOT).as_posix()}/" for path in modules}

    assert set(tree()) == files | folders
    assert len(tree()) == len(set(tree()))


def test_files_that_the_design_names_exist():
    paths = re.findall(r"`((?:gnsq|fakensqd|tests|integration|docs)/[\w./]*)`", DESIGN + CHANGES)

    assert [path for path in paths if not (ROOT / path).exists()] == []
    assert set(WALKS) <= set(paths)


def test_names_that_a_change_touches_exist():
    found = re.findall(r"((?:`[\w.]+`(?: and its type in |, | and | or )?)+) in `([\w/]+\.py)`", CHANGES)
    names = [(path, name) for words, path in found for name in re.findall(r"`([\w.]+)`", words)]

    assert len(names) > 20
    assert [(path, name) for path, name in names if name not in defined(path)] == []


def test_readme_leads_to_the_design():
    assert "(docs/design.md)" in (ROOT / "README.md").read_text()
