"""The images of integration/images are built, and run as their users run them. Needs a Docker engine."""

import contextlib
import json
import socket
import subprocess
from pathlib import Path

import pytest

from gnsq import Consumer, Producer
from integration.run import has_engine
from tests.docs.pages import example
from tests.kit import wait_until

pytestmark = [
    pytest.mark.real,
    pytest.mark.timeout(1800),  # a build downloads a gigabyte
    pytest.mark.skipif(not has_engine(), reason="there is no Docker engine"),
]

ROOT = Path(__file__).parent.parent
PLAYGROUND = ROOT / "docs/pages/playground"
LIMIT = 300.0
OTHER_USER = ["--read-only", "--user", "1234:1234"]
JOB = """
work = "/work/job"
output = "/work/lake"
nsqd_tcp_addresses = ["nsqd:4150"]
nsqd_http_addresses = ["nsqd:4151"]
[tables.clicks]
schema = "id BIGINT NOT NULL"
[spark]
"spark.master" = "local[1]"
"spark.driver.memory" = "512m"
"""
COUNT = """
from deltalake import DeltaTable
from pyarrow.fs import LocalFileSystem, SubTreeFileSystem
path = "/work/lake/clicks"
print(DeltaTable(path).to_pyarrow_dataset(filesystem=SubTreeFileSystem(path, LocalFileSystem())).count_rows())
"""


def docker(*words):
    done = subprocess.run(["docker", *words], stdout=subprocess.PIPE, text=True, check=True, cwd=ROOT)
    return done.stdout.strip()


@pytest.fixture(scope="module")
def fakensqd_image():
    return docker("build", "--quiet", "--file", "integration/images/fakensqd.Dockerfile", ".")


@pytest.fixture(scope="module")
def pipeline_image():
    return docker("build", "--quiet", "--file", "integration/images/pipeline.Dockerfile", ".")


@pytest.fixture
def job_file(tmp_path):
    (tmp_path / "job.toml").write_text(JOB)
    tmp_path.chmod(0o755)
    return f"{tmp_path}/job.toml:/job.toml:ro"


@pytest.fixture
def network():
    made = docker("network", "create", "gnsq-test-images")
    yield made
    docker("network", "rm", made)


@pytest.fixture
def volume():
    made = docker("volume", "create")
    yield made
    docker("volume", "rm", made)


@contextlib.contextmanager
def running(*words):
    """Run a container; yield its id when it is healthy."""
    made = docker("run", "--detach", "--health-interval=1s", *words)
    try:
        wait_until(
            lambda: state(made).get("Health", {}).get("Status") == "healthy" or not state(made)["Running"], LIMIT
        )
        assert state(made)["Running"], docker("logs", made)
        yield made
    finally:
        docker("rm", "--force", made)


def state(container):
    return json.loads(docker("inspect", "--format", "{{json .State}}", container))


def stop(container, limit="30"):
    """Stop a container as Kubernetes does it; one that does not end in time is killed, and its status is 137."""
    docker("stop", "--time", limit, container)
    assert state(container)["ExitCode"] == 0, docker("logs", container)


def free_port(*offsets):
    """Return a port that is free, and so are those above it by the offsets."""
    while True:
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            first = stack.enter_context(socket.create_server(("127.0.0.1", 0))).getsockname()[1]
            for offset in offsets:
                stack.enter_context(socket.create_server(("127.0.0.1", first + offset)))
            return first


@pytest.mark.parametrize("options", [[], OTHER_USER], ids=["as it is", "another user, read-only"])
def test_cluster_in_a_container_is_reached_from_the_host(fakensqd_image, topic, options):
    port = free_port(1, 10, 11)
    ports = [word for number in (port, port + 11) for word in ("--publish", f"127.0.0.1:{number}:{number}")]
    addresses = ["--broadcast-address=127.0.0.1", f"--base-port={port}"]
    got = []

    with running(*options, *ports, fakensqd_image, "cluster", "--nsqds=1", *addresses) as container:
        with Producer(f"127.0.0.1:{port}") as producer:
            producer.publish(topic, b"x")
        lookupds = [f"127.0.0.1:{port + 11}"]
        with Consumer(
            topic,
            "c",
            lookupd_http_addresses=lookupds,
            lookupd_poll_interval=0.5,
            message_handler=lambda _, message: got.append(message.body),
        ):
            wait_until(lambda: got)
        stop(container)

    assert got == [b"x"]


@pytest.mark.spark
@pytest.mark.parametrize(
    "options", [[], [*OTHER_USER, "--tmpfs", "/tmp:exec"]], ids=["as it is", "another user, read-only"]
)
def test_job_writes_each_message_into_a_new_volume(fakensqd_image, pipeline_image, network, volume, job_file, options):
    port = free_port()
    own = ["--network", network, *options, "--volume", f"{volume}:/work", "--volume", job_file, pipeline_image]

    with running("--network", network, "--name", "nsqd", "--publish", f"127.0.0.1:{port}:4150", fakensqd_image):
        with Producer(f"127.0.0.1:{port}") as producer:
            producer.multipublish("clicks", [b'{"id": %d}' % number for number in range(1000)])
        with running(*own, "gnsq-pipeline", "--config=/job.toml") as job:
            wait_until(lambda: "1,000 rows" in docker("logs", job) or not state(job)["Running"], LIMIT)
            stop(job)

    assert docker("run", "--rm", "--volume", f"{volume}:/work:ro", pipeline_image, "python", "-c", COUNT) == "1000"


def test_stop_while_spark_starts_ends_the_job_before_docker_kills_it(
    fakensqd_image, pipeline_image, network, volume, job_file
):
    own = ["--network", network, "--volume", f"{volume}:/work", "--volume", job_file, pipeline_image]

    with (
        running("--network", network, "--name", "nsqd", fakensqd_image),
        # Its metrics, and so its health, are there before Spark is.
        running(*own, "gnsq-pipeline", "--config=/job.toml", "--new-topic") as job,
    ):
        stop(job, limit="10")


def test_receiver_is_healthy_and_stops_gracefully(fakensqd_image, pipeline_image, network, volume):
    words = ["--topic=clicks", "--channel=clicks", "--spool=/work/spool", "--nsqd-tcp-address=nsqd:4150"]

    with running("--network", network, "--name", "nsqd", fakensqd_image):
        own = ["--network", network, "--volume", f"{volume}:/work", pipeline_image]
        with running(*own, "python", "-m", "gnsq.spark.receiver", *words) as receiver:
            stop(receiver)


@pytest.mark.spark
def test_playground_is_as_its_page_says_and_loses_nothing():
    def play(commands, folder=PLAYGROUND):
        return subprocess.run(["sh", "-ec", commands], cwd=folder, stdout=subprocess.PIPE, text=True, check=True).stdout

    try:
        play(example("playground/index.md", "Playground", 0, "sh"), ROOT)
        wait_until(lambda: "clicks_dead" in play("docker compose logs pipeline"), LIMIT)
        watched = play(example("playground/index.md", "Watch", 0, "sh"))
        read = play(example("playground/index.md", "Read the tables", 0, "sh"))
        counts = play(example("playground/index.md", "Read the tables", 1, "sh"))
        play(example("playground/index.md", "Stop nsqd", 0, "sh") + "docker compose restart nsqd")
        play("docker compose stop producer")
        wait_until(lambda: " 0 │" in play(example("playground/index.md", "Stop nsqd", 1, "sh")), LIMIT)
        play("docker compose stop")
        statuses = play("docker compose ps --all --format '{{.Service}} {{.ExitCode}}'")
    finally:
        play(example("playground/index.md", "Stop", 0, "sh"))

    assert "clicks   running" in watched
    assert 'ms "slow" is not INT' in read
    assert "/search" in counts
    assert {line.split()[1] for line in statuses.splitlines()} == {"0"}
