"""gnsq to-file and nsq_to_file write the same bytes; and a kill of gnsq to-file loses nothing of a real nsqd."""

import gzip
import shutil
import uuid

import pytest
import zstandard

from gnsq import Producer
from integration.servers import needs_programs, running
from tests.kit import channel_stats, child, wait_for_program, wait_until
from tests.kit.commands import create_channel, started

pytestmark = [
    pytest.mark.real,
    needs_programs,
]

NSQ_TO_FILE = shutil.which("nsq_to_file")
# Text, bytes that are not UTF-8, and large ones; without newlines, so that each body is a line.
BODIES = [
    *[b"message %05d" % number for number in range(3000)],
    *[bytes(byte for byte in range(1, 256) if byte != 10) * times for times in (1, 10, 1000)],
]


def content(path):
    data = path.read_bytes()
    if path.suffix == ".gz":
        return gzip.decompress(data)
    if path.suffix == ".zst":
        return zstandard.ZstdDecompressor().stream_reader(data, read_across_frames=True).read()
    return data


def lines(directory):
    """Return the lines of all files, sorted."""
    return sorted(line for path in directory.iterdir() for line in content(path).split(b"\n")[:-1])


def finished(nsqd, topic, channel):
    stats = channel_stats(nsqd, topic, channel)
    return stats["message_count"] - stats["depth"] - stats["in_flight_count"] - stats["deferred_count"]


def clients(nsqd, topic, channel):
    return channel_stats(nsqd, topic, channel)["client_count"]


def to_file(nsqd, topic, directory, *arguments):
    return started(nsqd, "to-file", topic, "-d", directory, *arguments)


def stop(process):
    process.terminate()
    err = process.communicate()[1]
    assert process.returncode == 0, err


@pytest.mark.skipif(NSQ_TO_FILE is None, reason="nsq_to_file is not on PATH")
@pytest.mark.parametrize("compress", ["none", "gzip"])
def test_same_bytes_as_nsq_to_file(nsqd, topic, tmp_path, compress):
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    theirs.mkdir()
    for channel in ("ours", "theirs"):
        create_channel(nsqd, topic, channel)
    with Producer(nsqd.tcp_address) as producer:
        producer.multipublish(topic, BODIES)
    flags = [f"-topic={topic}", "-channel=theirs", f"-nsqd-tcp-address={nsqd.tcp_address}", f"-output-dir={theirs}"]
    flags += ["-max-in-flight=2500", "-sync-interval=100ms", *(["-gzip"] if compress == "gzip" else [])]

    with (
        to_file(nsqd, topic, ours, "--channel", "ours", "--compress", compress) as process,
        child(NSQ_TO_FILE, *flags) as go,
    ):
        wait_for_program(
            process, lambda: finished(nsqd, topic, "ours") == finished(nsqd, topic, "theirs") == len(BODIES)
        )
        stop(process)
        go.terminate()
        go.communicate()

    assert lines(ours) == lines(theirs) == sorted(BODIES)


@pytest.mark.parametrize("compress", ["none", "gzip", "zstd"])
def test_kills_lose_no_message(account, tmp_path, compress, chosen):
    topic, out = f"t-{uuid.uuid4().hex[:12]}", tmp_path / "out"
    arguments = ["--compress", compress, "--sync-interval", "0.01", "--rotate-size", "20K", "--max-in-flight", "100"]
    # nsqd delivers the messages of a killed process again after their timeout.
    with running("nsqd", "--msg-timeout=1s") as nsqd, Producer(nsqd.tcp_address) as producer:
        create_channel(nsqd, topic, "to-file")
        for kill in range(5):
            before = finished(nsqd, topic, "to-file")
            with to_file(nsqd, topic, out, *arguments) as process:
                for number in range(600):
                    account.publish(producer, topic, b"%d-%d" % (kill, number))
                wanted = before + chosen.randrange(500)
                wait_for_program(process, lambda wanted=wanted: finished(nsqd, topic, "to-file") >= wanted)
                process.kill()
                process.wait()
        wait_until(lambda: clients(nsqd, topic, "to-file") == 0)
        with to_file(nsqd, topic, out, *arguments) as process:
            # The killed ones may have finished all before this one has begun.
            wait_for_program(process, lambda: clients(nsqd, topic, "to-file") == 1)
            wait_for_program(process, lambda: finished(nsqd, topic, "to-file") == len(account.confirmed))
            stop(process)

    assert [path for path in out.iterdir() if path.name.startswith(".")] == []
    account.processed.update(lines(out))
