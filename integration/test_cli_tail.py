"""gnsq tail, pub and copy with real nsqds, and beside the programs of NSQ."""

import shutil
import signal

import pytest

from gnsq import Consumer, NsqdHTTPClient, Producer
from integration.servers import needs_programs, running
from tests.kit import bodies, run, wait_for_program, wait_until
from tests.kit.commands import create_channel, gnsq, started
from tests.spark.helpers import is_empty

BODIES = [b"1", b'{"a": 2}', b"\xff\x00 three", b"four\ttabs", "größer".encode()] * 20

pytestmark = [
    pytest.mark.real,
    pytest.mark.subprocess,
    needs_programs,
]


def publish(nsqd, topic, *messages):
    with Producer(nsqd.tcp_address) as producer:
        producer.multipublish(topic, messages)


def test_nsqd_that_keeps_nothing_in_memory_loses_no_dead_letter_to_a_look():
    letters = [b"%d" % number for number in range(50)]
    with running("nsqd", "--mem-queue-size=0") as nsqd:
        publish(nsqd, "dead", *letters)

        refused = gnsq(nsqd, "tail", "dead", "-n", "1")
        create_channel(nsqd, "dead", "review")
        look = gnsq(nsqd, "tail", "dead", "--channel", "review", "--peek", "-n", "20")
        rest = gnsq(nsqd, "tail", "dead", "--channel", "review", "-n", "50")

    assert (refused.exit_code, refused.stdout) == (2, "")
    assert len(look.stdout.split()) == 20
    assert sorted(rest.stdout_bytes.split()) == sorted(letters)


@pytest.mark.skipif(not shutil.which("nsq_tail"), reason="needs nsq_tail")
def test_tail_writes_the_bytes_that_nsq_tail_writes(nsqd, topic):
    for channel in ("ours", "theirs"):
        create_channel(nsqd, topic, channel)
    publish(nsqd, topic, *BODIES)
    theirs = ["nsq_tail", f"--topic={topic}", "--channel=theirs", f"--nsqd-tcp-address={nsqd.tcp_address}"]

    ours = gnsq(nsqd, "tail", topic, "--channel", "ours", "-n", len(BODIES))
    their = run(*theirs, "-n", str(len(BODIES)), text=False)

    assert (ours.exit_code, their.returncode) == (0, 0)
    assert sorted(ours.stdout_bytes.split(b"\n")) == sorted(their.stdout.split(b"\n")) == sorted([*BODIES, b""])
    assert is_empty(nsqd, topic, "ours")


@pytest.mark.skipif(not shutil.which("to_nsq"), reason="needs to_nsq")
def test_pub_publishes_what_to_nsq_publishes(nsqd, topic, tmp_path):
    data = b"\n".join(BODIES) + b"\n"
    (tmp_path / "lines").write_bytes(data)
    theirs = ["to_nsq", f"-topic={topic}-theirs", f"-nsqd-tcp-address={nsqd.tcp_address}"]

    assert gnsq(nsqd, "pub", f"{topic}-ours", tmp_path / "lines").exit_code == 0
    run(*theirs, given=data, text=False).check_returncode()

    assert sorted(bodies(nsqd, f"{topic}-ours")) == sorted(bodies(nsqd, f"{topic}-theirs")) == sorted(BODIES)


def test_copy_that_is_killed_while_the_target_restarts_loses_nothing(topic):
    messages = {b"%d" % number for number in range(50_000)}
    with running("nsqd") as source, running("nsqd") as target:
        publish(source, topic, *messages)
        words = ("copy", topic, "--to-nsqd", target.tcp_address)

        def copied():
            found = NsqdHTTPClient.from_url(target.http_address).stats(topic)["topics"] or [{"message_count": 0}]
            return found[0]["message_count"]

        with started(source, *words, "--timeout", "2") as process:
            wait_for_program(process, lambda: copied() > 1000)
            target.stop()
            target.start()
            wait_for_program(process, copied)
            process.send_signal(signal.SIGTERM)
            assert process.wait() == 0, process.stderr.read()
        # nsqd may deliver requeued messages of a new channel 5 s late.
        result = gnsq(source, *words, "--idle", "7")

        assert result.exit_code == 0, result.stderr
        found = set()
        options = {"max_in_flight": 1000, "message_handler": lambda consumer, message: found.add(message.body)}
        with Consumer(topic, "check", target.tcp_address, **options):
            wait_until(lambda: found >= messages)
        assert found == messages
