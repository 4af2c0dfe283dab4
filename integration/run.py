"""``make integration``: find real servers, say which, and run the tests on them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

from integration.servers import given, program

COMPOSED = {
    "NSQD_TCP_ADDRESS": "127.0.0.1:4150",
    "NSQD_HTTP_ADDRESS": "127.0.0.1:4151",
    "NSQLOOKUPD_TCP_ADDRESS": "127.0.0.1:4160",
    "NSQLOOKUPD_HTTP_ADDRESS": "127.0.0.1:4161",
}
ADVICE = """\
integration: no real nsqd and nsqlookupd found. Do one of these:
  - put nsqd and nsqlookupd on PATH, or name them: NSQD=/path/nsqd NSQLOOKUPD=/path/nsqlookupd make integration
  - name servers that run: NSQD_TCP_ADDRESS, NSQD_HTTP_ADDRESS, NSQLOOKUPD_TCP_ADDRESS, NSQLOOKUPD_HTTP_ADDRESS
  - have Docker with the compose plugin, and its engine running"""


def main() -> int:
    if all(given(name) for name in ("nsqd", "nsqlookupd")):
        print("integration: using the servers that the environment names")
        return _tests()
    paths = [program(name) for name in ("nsqd", "nsqlookupd")]
    if all(paths):
        for path in paths:
            version = subprocess.run([str(path), "--version"], capture_output=True, text=True, check=False).stdout
            print(f"integration: using {path}: {version.strip()}")
        return _tests()
    if _compose("version") and _compose("ps"):
        return _composed()
    print(ADVICE, file=sys.stderr)
    return 1


def _tests() -> int:
    command = [sys.executable, "-m", "pytest", "-p", "integration.servers", "integration", "tests/behaviour"]
    return subprocess.run([*command, *sys.argv[1:]], check=False).returncode


def _compose(*words: str) -> bool:
    if shutil.which("docker") is None:
        return False
    return subprocess.run(["docker", "compose", *words], capture_output=True, check=False).returncode == 0


def _composed() -> int:
    print("integration: starting the servers of docker-compose.yml")
    subprocess.run(["docker", "compose", "up", "--detach", "--wait"], check=True)
    os.environ.update(COMPOSED)
    try:
        return _tests()
    finally:
        subprocess.run(["docker", "compose", "down", "--volumes"], check=False)


if __name__ == "__main__":
    sys.exit(main())
