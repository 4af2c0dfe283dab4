"""Decide which real servers the tests use. Pure: starts no program."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

PROGRAMS = ("nsqd", "nsqlookupd")
# Addresses of docker-compose.yml's servers on the host, by the names of variables for other servers.
COMPOSED = {
    "NSQD_TCP_ADDRESS": "127.0.0.1:4150",
    "NSQD_HTTP_ADDRESS": "127.0.0.1:4151",
    "NSQD_TLS_TCP_ADDRESS": "127.0.0.1:4250",
    "NSQD_TLS_HTTP_ADDRESS": "127.0.0.1:4251",
    "NSQD_AUTH_TCP_ADDRESS": "127.0.0.1:4350",
    "NSQD_AUTH_HTTP_ADDRESS": "127.0.0.1:4351",
    "NSQLOOKUPD_TCP_ADDRESS": "127.0.0.1:4160",
    "NSQLOOKUPD_HTTP_ADDRESS": "127.0.0.1:4161",
    "NSQLOOKUPD2_TCP_ADDRESS": "127.0.0.1:4260",
    "NSQLOOKUPD2_HTTP_ADDRESS": "127.0.0.1:4261",
    "NSQADMIN_HTTP_ADDRESS": "127.0.0.1:4171",
}
NEEDED = ("NSQD_TCP_ADDRESS", "NSQD_HTTP_ADDRESS", "NSQLOOKUPD_TCP_ADDRESS", "NSQLOOKUPD_HTTP_ADDRESS")
ADVICE = f"""\
integration: no real nsqd and nsqlookupd found. Do one of these:
  - put nsqd and nsqlookupd on PATH, or name them: NSQD=/path/nsqd NSQLOOKUPD=/path/nsqlookupd make integration
  - name servers that run: {", ".join(NEEDED)}
  - have Docker with the compose plugin, and its engine running"""


class Way(enum.Enum):
    """Source of the servers."""

    PROGRAMS = "programs"
    GIVEN = "servers that the environment names"
    COMPOSED = "the servers of docker-compose.yml"


@dataclass(frozen=True)
class Choice:
    """The source of the servers.

    Attributes:
        paths: Paths of the programs, by their names.
        addresses: Addresses of running servers, by the names of variables.
    """

    way: Way
    paths: Mapping[str, str] = field(default_factory=dict)
    addresses: Mapping[str, str] = field(default_factory=dict)


def choose(
    environment: Mapping[str, str], which: Callable[[str], str | None], has_engine: Callable[[], bool]
) -> Choice | None:
    """Choose programs, else given addresses, else Docker; None if there is none of them.

    Args:
        which: Finds a program by its name or path, as shutil.which() does.
        has_engine: Whether ``docker compose`` and its engine work; called last.

    Raises:
        LookupError: If NSQD or NSQLOOKUPD names no program.
    """
    paths = {name: path for name in PROGRAMS if (path := program(name, environment, which))}
    if len(paths) == len(PROGRAMS):
        return Choice(Way.PROGRAMS, paths=paths)
    addresses = {name: environment[name] for name in COMPOSED if environment.get(name)}
    if all(name in addresses for name in NEEDED):
        return Choice(Way.GIVEN, addresses=addresses)
    return Choice(Way.COMPOSED, addresses=COMPOSED) if has_engine() else None


def program(name: str, environment: Mapping[str, str], which: Callable[[str], str | None]) -> str | None:
    """Find a program by the variable of its name, else on PATH.

    Raises:
        LookupError: If the variable names no program.
    """
    wanted = environment.get(name.upper())
    found = which(wanted or name)
    if wanted and not found:
        raise LookupError(f"{name.upper()}={wanted} is not a program that can be run: name another, or unset it")
    return found
