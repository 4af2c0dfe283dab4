"""``make integration``: find real servers, print them, and run the tests with them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import requests

from integration.choice import ADVICE, Choice, Way, choose
from integration.servers import PROGRAMS

ROOT = Path(__file__).parent.parent


def main() -> int:
    choice = choose(os.environ, shutil.which, has_engine)
    if choice is None:
        print(ADVICE, file=sys.stderr)
        return 1
    if choice.way is Way.COMPOSED:
        return _composed(choice)
    return _tests(choice)


def _tests(choice: Choice) -> int:
    print(f"integration: using {choice.way.value}{', and their programs' if choice.addresses and choice.paths else ''}")
    for line in _versions(choice):
        print(f"integration:   {line}", flush=True)
    # Each worker starts its own servers, if they are programs. Three, since tests wait; a fourth Spark beside three
    # others takes so long to start on two cores that tests end by their limits.
    workers = "3" if choice.paths else "0"
    command = [sys.executable, "-m", "pytest", "-q", "-o", "console_output_style=classic"]
    plugins = ["-p", "tests.suite", "-p", "integration.servers", "-n", workers, *choice.options]
    # Images need no servers, and are built: .ci/run images.
    tests = ["integration", "--ignore=integration/test_images.py", "tests/behaviour"]
    return subprocess.run([*command, *plugins, *tests, *sys.argv[1:]], cwd=ROOT, check=False).returncode


def _versions(choice: Choice) -> list[str]:
    """Return the servers and their versions as lines."""
    lines = []
    for path in choice.paths.values():
        said = subprocess.run([path, "--version"], capture_output=True, text=True, check=False).stdout
        lines.append(f"{path}: {said.strip()}")
    for name, address in choice.addresses.items():
        if name.endswith("_HTTP_ADDRESS") and not name.startswith("NSQADMIN"):
            lines.append(f"{name}={address}: {_version(address)}")
    return lines


def _version(address: str) -> str:
    try:
        return f"v{requests.get(f'http://{address}/info', timeout=5).json()['version']}"
    except (requests.RequestException, ValueError, KeyError) as error:
        return f"has no version ({error})"


def has_engine() -> bool:
    return shutil.which("docker") is not None and all(
        subprocess.run(["docker", *words], capture_output=True, check=False).returncode == 0
        for words in (["compose", "version"], ["version", "--format", "{{.Server.Version}}"])
    )


def _composed(choice: Choice) -> int:
    with tempfile.TemporaryDirectory() as folder:
        # A container makes the certificates, and the user who runs the tests must be able to read them.
        os.environ |= {"CERTIFICATES": folder, "CERTIFICATES_USER": str(os.getuid()), **choice.addresses}
        compose = ["docker", "compose", "--project-directory", str(ROOT)]
        try:
            error = _up(compose)
            if not error:
                return _tests(Choice(choice.way, _copied(compose, Path(folder) / "programs"), choice.addresses))
            subprocess.run([*compose, "logs", "--tail", "30"], check=False)
        finally:
            # The last lines are those of the tests, or why there were none.
            subprocess.run([*compose, "down", "--volumes"], stderr=subprocess.DEVNULL, check=False)
    print(f"integration: docker compose can't start the servers: {error}", file=sys.stderr)
    return 1


def _up(compose: list[str]) -> str:
    """Start the servers; return what compose says last if it fails, else ""."""
    last = ""
    with subprocess.Popen([*compose, "up", "--build", "--detach", "--wait"], stderr=subprocess.PIPE, text=True) as up:
        assert up.stderr is not None
        for line in up.stderr:
            sys.stderr.write(line)
            last = line.strip() or last
    return last if up.returncode else ""


def _copied(compose: list[str], folder: Path) -> dict[str, str]:
    """Copy the programs out of nsqd's container, and put them on PATH for the tests that start servers of their own.

    Return nothing if they do not run here, such as on macOS.
    """
    subprocess.run([*compose, "cp", "nsqd:/usr/local/bin/.", str(folder)], check=True)
    try:
        subprocess.run([folder / PROGRAMS[0], "--version"], capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"integration: the image's programs do not run here ({error}): tests that start servers are skipped")
        return {}
    os.environ["PATH"] = f"{folder}{os.pathsep}{os.environ['PATH']}"
    return {name: str(folder / name) for name in PROGRAMS}


if __name__ == "__main__":
    sys.exit(main())
