"""docker-compose.yml holds together: what one service says of another, and the tests of all, is so."""

import re
import shutil
from graphlib import TopologicalSorter
from pathlib import Path

import pytest
import yaml

from integration.choice import COMPOSED
from tests.helpers import run

ROOT = Path(__file__).parent.parent
SERVICES = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
# The one whose network all servers share; it publishes their ports.
HOLDER = "nsqlookupd-1"
ONE_SHOT = {"certificates"}
SERVERS = sorted(SERVICES.keys() - ONE_SHOT)


def words(name):
    return SERVICES[name]["command"].split()


def flags(name, flag):
    return [word.partition("=")[2] for word in words(name) if word.startswith(f"--{flag}=")]


def listeners(name):
    """Ports that a service takes."""
    kinds = ("tcp", "http", "https")
    own = [address for kind in kinds for address in flags(name, f"{kind}-address")]
    return {int(address.rpartition(":")[2]) for address in own}


def ports(name):
    """Those, and the port of a command that takes a plain address."""
    return listeners(name) | {port(word) for word in words(name) if re.fullmatch(r"127\.0\.0\.1:\d+", word)}


def port(address):
    return int(address.rpartition(":")[2])


def test_there_is_what_the_tests_need():
    programs = [words(name)[0] for name in SERVICES]

    assert [programs.count(f"/{name}") for name in ("nsqlookupd", "nsqd", "nsqadmin")] == [2, 3, 1]
    assert {port(address) for address in COMPOSED.values()} <= published()


def published():
    """The host's ports, each of which is the same in the container."""
    found = set()
    for mapping in SERVICES[HOLDER]["ports"]:
        host, outer, inner = mapping.split(":")
        assert (host, outer) == ("127.0.0.1", inner)
        found.add(int(outer))
    return found


def test_all_that_servers_listen_on_is_published_once_and_on_loopback_only():
    taken = [number for name in SERVERS for number in listeners(name)]

    assert len(taken) == len(set(taken))
    assert set(taken) == published()
    assert [name for name in SERVICES if "ports" in SERVICES[name]] == [HOLDER]


@pytest.mark.parametrize("name", [name for name in SERVERS if name != HOLDER])
def test_network_is_that_of_the_holder(name):
    assert SERVICES[name]["network_mode"] == f"service:{HOLDER}"


@pytest.mark.parametrize("name", [name for name in SERVERS if words(name)[0] in ("/nsqd", "/nsqlookupd")])
def test_announced_address_is_the_hosts_and_the_announced_ports_are_those_listened_on(name):
    assert flags(name, "broadcast-address") == ["127.0.0.1"]
    assert flags(name, "broadcast-tcp-port") == flags(name, "broadcast-http-port") == []
    assert [address.split(":")[0] for address in flags(name, "tcp-address")] == ["0.0.0.0"]


@pytest.mark.parametrize("name", SERVERS)
def test_health_is_asked_of_a_port_of_its_own(name):
    check = SERVICES[name]["healthcheck"]
    (asked,) = re.findall(r"\b\d{4}\b", " ".join(check["test"]))

    assert check["test"][0] == "CMD"
    assert {"interval", "timeout", "retries"} <= check.keys()
    assert int(asked) in ports(name)


@pytest.mark.parametrize("name", SERVICES)
def test_it_waits_for_what_it_uses(name):
    conditions = {needed: entry["condition"] for needed, entry in SERVICES[name].get("depends_on", {}).items()}
    wanted = dict.fromkeys(used(name) - ONE_SHOT, "service_healthy")
    wanted |= dict.fromkeys(used(name) & ONE_SHOT, "service_completed_successfully")

    assert conditions == wanted


def used(name):
    """The services that a command names by their ports, directories or network."""
    kinds = ("lookupd-tcp-address", "lookupd-http-address", "auth-http-address")
    asked = {port(address) for kind in kinds for address in flags(name, kind)}
    found = {other for other in SERVERS if asked & ports(other)}
    if any("/certificates/" in word for word in words(name)):
        found.add("certificates")
    if SERVICES[name].get("network_mode") == f"service:{HOLDER}":
        found.add(HOLDER)
    return found


def test_nothing_waits_for_itself():
    TopologicalSorter({name: service.get("depends_on", {}) for name, service in SERVICES.items()}).prepare()


@pytest.mark.parametrize("name", SERVICES)
def test_version_is_pinned(name):
    service = SERVICES[name]
    image = service["build"]["dockerfile_inline"].split()[1] if "build" in service else service["image"]

    assert re.fullmatch(r"python:3\.\d+-slim|nsqio/nsq:v\$\{NSQ_VERSION:-1\.3\.0\}", image)


def test_certificates_are_shared_with_the_host_and_only_their_maker_writes_them():
    mounts = {name: service["volumes"] for name, service in SERVICES.items() if "volumes" in service}
    directory = "${CERTIFICATES:-./.certificates}:/certificates"

    assert mounts == {"certificates": [directory], "nsqd-tls": [f"{directory}:ro"]}


def test_no_two_builds_have_one_name():
    names = [service.get("image", name) for name, service in SERVICES.items() if "build" in service]

    assert len(names) == len(set(names)) == 2


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
@pytest.mark.parametrize(
    ("docker", "status", "said"),
    [
        pytest.param("exit 0", 0, "docker-compose.yml: valid, says docker compose\n", id="valid"),
        pytest.param('[ "$2" = version ]', 2, "", id="refused"),
        pytest.param(
            "exit 1", 0, "docker-compose.yml: not checked, there is no docker compose here\n", id="no compose"
        ),
        pytest.param(None, 0, "docker-compose.yml: not checked, there is no docker compose here\n", id="no docker"),
    ],
)
@pytest.mark.subprocess
def test_lint_asks_docker_compose_where_it_is_and_says_what_came_of_it(tmp_path, docker, status, said):
    """With a docker that does as it is told."""
    (tmp_path / "make").symlink_to(shutil.which("make"))
    if docker is not None:
        (tmp_path / "docker").write_text(f"#!/bin/sh\n{docker}\n")
        (tmp_path / "docker").chmod(0o755)

    done = run("make", "composefile", cwd=ROOT, env={"PATH": str(tmp_path)})

    assert (done.returncode, done.stdout) == (status, said)
