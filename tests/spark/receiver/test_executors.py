"""Receivers as tasks: in the shared local[2] session, and on two executors of which one is killed."""

import sys

import pytest
from pyspark import SparkConf

import gnsq.spark
from gnsq.spark import ExecutorReceivers
from gnsq.spark.errors import SpoolError
from gnsq.spark.options import ReadOptions
from gnsq.spark.receiver.executor_task import ReceiverLease
from gnsq.spark.receiver.executors import TooFewSlots
from tests.spark.helpers import bodies_of, channel_stats, is_empty, numbered, publish, wait_for
from tests.spark.queries import Publisher, descendants, kill, named, owner_of, running_query, written

pytestmark = [pytest.mark.spark, pytest.mark.timeout(180)]


@pytest.fixture
def fakensqd_options():
    # Messages that a killed receiver had in flight come again soon.
    return {"msg_timeout": 2.0}


@pytest.fixture
def receivers(spark, fakensqd, tmp_path):
    """Make receivers of one spool; they are stopped at the end."""
    made = []

    def make(receivers="executors:1"):
        options = ReadOptions(
            topic="clicks",
            channel="archive",
            nsqd_tcp_addresses=(fakensqd.tcp_address,),
            spool=str(tmp_path / "spool"),
            receivers=receivers,
        )
        made.append(ExecutorReceivers(spark, options))
        return made[-1]

    yield make
    for each in made:
        each.stop()


def clients(fakensqd):
    stats = channel_stats(fakensqd, "clicks", "archive")
    return stats["clients"] if stats else []


def test_package_knows_no_other_names():
    with pytest.raises(AttributeError, match="Executors"):
        gnsq.spark.Executors  # noqa: B018  # the access is tested


def test_receivers_elsewhere_are_refused(receivers):
    with pytest.raises(ValueError, match="receivers 'external' is none for executors: give executors:N"):
        receivers("external")


def test_too_few_slots_are_refused(receivers):
    with pytest.raises(TooFewSlots, match=r"holds 2 slots until stop\(\), and Spark has 2 .* at least 3 are needed"):
        receivers("executors:2").start()


def test_slots_of_another_querys_receivers_are_not_free(receivers):
    receivers().start()

    with pytest.raises(TooFewSlots, match="and Spark has 1 "):
        receivers().start()


def test_speculation_of_long_tasks_is_refused(receivers, spark, monkeypatch):
    settings = SparkConf(loadDefaults=False).set("spark.speculation", "true")
    settings.set("spark.speculation.task.duration.threshold", "60s")
    monkeypatch.setattr(spark.sparkContext, "getConf", lambda: settings)

    with pytest.raises(ValueError, match="would run every receiver twice"):
        receivers().start()


def test_spool_that_cannot_be_written_is_refused(receivers, tmp_path):
    (tmp_path / "spool").write_text("a file")

    with pytest.raises(SpoolError, match="give a directory that driver and executors share"):
        receivers().start()


def test_receiver_in_a_task_fills_the_spool_and_ends_in_order(receivers, fakensqd, spool):
    receiver = receivers()
    assert "not started" in receiver.check()
    publish(fakensqd, "clicks", numbered(500))

    receiver.start()
    receiver.start()
    wait_for(lambda: receiver.check() == "")
    wait_for(lambda: is_empty(fakensqd, "clicks", "archive"))
    receiver.stop()

    assert sorted(bodies_of(spool)) == numbered(500)
    assert clients(fakensqd) == []
    assert ReceiverLease(spool.location).current() is None
    assert "stopped" in receiver.check()


def test_killed_worker_is_replaced(receivers, fakensqd, spool, caplog):
    """A local master fails a job at its first failed task, so this tests a job that runs again."""
    receiver = receivers()
    receiver.start()
    [client] = wait_for(lambda: clients(fakensqd))

    kill(owner_of(client["remote_address"]))

    wait_for(lambda: "do not run: " in receiver.check())
    wait_for(lambda: receiver.check() == "")
    publish(fakensqd, "clicks", numbered(100))
    wait_for(lambda: sorted(bodies_of(spool)) == numbered(100))
    assert "started again in 1 s" in caplog.text


def test_receivers_of_another_application_take_over_and_hand_back(receivers, fakensqd, spool, caplog):
    receiver = receivers()
    receiver.start()
    wait_for(lambda: clients(fakensqd))
    lease = ReceiverLease(spool.location)

    lease.grant("another")

    wait_for(lambda: not clients(fakensqd))
    wait_for(lambda: "another application has receivers on" in receiver.check())
    lease.revoke("another")
    wait_for(lambda: clients(fakensqd) and receiver.check() == "")


@pytest.mark.timeout(360)
@pytest.mark.subprocess
def test_killed_executor_loses_nothing(fakensqd, tmp_path):
    """Two receivers on two executors; one of those is killed while messages come, and the query goes on."""
    command = [sys.executable, "-m", "tests.spark.query", "local-cluster[2,2,1024]", str(tmp_path)]
    command += ["executors:2", fakensqd.tcp_address, fakensqd.http_address]
    with running_query(command, tmp_path / "query.log") as query:
        # Three JVMs start; on a busy machine that takes its time.
        wait_for(lambda: len(clients(fakensqd)) == 2, limit=150)
        publisher = Publisher(fakensqd.tcp_address, pause=0.05)
        wait_for(lambda: len(written(tmp_path)) > 1000, limit=60)
        [executor, _] = named(query.pid, "CoarseGrainedExecutorBackend")
        kill(*descendants(executor), executor)
        before = len(written(tmp_path))
        wait_for(lambda: len(written(tmp_path)) > before + 2000, limit=60)
        bodies = publisher.stop()
        wait_for(lambda: is_empty(fakensqd, "clicks", "archive") and set(written(tmp_path)) == set(bodies), limit=60)
        query.stdin.close()
        assert query.wait(60) == 0

    print(f"{len(bodies)} published, none lost, {len(written(tmp_path)) - len(bodies)} twice")
    assert clients(fakensqd) == []
