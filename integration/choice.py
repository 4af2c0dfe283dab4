"""Decide which real servers the tests use. Pure: starts no program."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from integration.servers import PROGRAMS

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
  - put nsqd and nsqlookupd on PATH
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

    @property
    def options(self) -> list[str]:
        """Options of pytest that name the servers."""
        if self.way is Way.PROGRAMS:
            return ["--nsqd=real"]
        nsqd, lookupd = (",".join(self.addresses[name] for name in pair) for pair in (NEEDED[:2], NEEDED[2:]))
        return [f"--nsqd={nsqd}", f"--nsqlookupd={lookupd}"]


def choose(
    environment: Mapping[str, str], which: Callable[[str], str | None], has_engine: Callable[[], bool]
) -> Choice | None:
    """Choose programs, else given addresses, else Docker; None if there is none of them.

    Args:
        which: Finds a program by its name, as shutil.which() does.
        has_engine: Whether ``docker compose`` and its engine work; called last.
    """
    paths = {name: path for name in PROGRAMS if (path := which(name))}
    if len(paths) == len(PROGRAMS):
        return Choice(Way.PROGRAMS, paths=paths)
    addresses = {name: environment[name] for name in COMPOSED if environment.get(name)}
    if all(name in addresses for name in NEEDED):
        return Choice(Way.GIVEN, addresses=addresses)
    return Choice(Way.COMPOSED, addresses=COMPOSED) if has_engine() else None
