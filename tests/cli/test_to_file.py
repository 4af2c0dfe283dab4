"""gnsq to-file: files of messages, FIN after fsync, count, failures of the disk, signals and kills."""

import os
import shutil
import signal

import pytest

from gnsq.cli.rotating_file import recover
from tests.cli.conftest import content
from tests.kit import channel_stats, refused_port, wait_for_program
from tests.kit.commands import background, invoke, servers_of, signalled_when, started
from tests.kit.limits import largest_file

ROTATE_NEVER = ("--rotate-interval", "0")


@pytest.fixture
def to_file(fakensqd, out):
    """Run gnsq to-file in this process, and return its result."""

    def run(*arguments, topics=("t",)):
        return invoke("to-file", *topics, "-d", out, *servers_of(fakensqd), *arguments)

    return run


@pytest.fixture
def out(tmp_path):
    return tmp_path / "out"


def files(directory):
    return sorted(path for path in directory.iterdir() if not path.name.startswith("."))


def lines(directory):
    """Return the lines of all complete files."""
    return [line for path in files(directory) for line in content(path).splitlines()]


def lines_after_recovery(directory):
    """Return the lines of all files, with those of a killed process; recovers a copy."""
    copy = directory.parent / "copy"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(directory, copy)
    recover(copy, [".log"])
    return lines(copy)


def finished(nsqd):
    """Return the bodies of all finished messages."""
    delivered = {entry.message_id: entry.bodies[0] for entry in nsqd.transcript if entry.kind == "message"}
    return {delivered[entry.message_id] for entry in nsqd.transcript if entry.name == "FIN"}


def bodies(count):
    return [b"body %05d" % number for number in range(count)]


# --- files


@pytest.mark.parametrize(("compress", "suffix"), [("none", ".log"), ("gzip", ".log.gz"), ("zstd", ".log.zst")])
def test_bodies_are_written_as_lines_to_files_of_a_largest_size_and_finished(fakensqd, to_file, out, compress, suffix):
    fakensqd.publish("t", *bodies(500))

    result = to_file("-n", "500", "--compress", compress, "--rotate-size", "2K")

    assert result.exit_code == 0, result.output
    assert sorted(lines(out)) == bodies(500)
    assert {path.name.endswith(suffix) for path in files(out)} == {True}
    assert max(path.stat().st_size for path in files(out)) <= 2048
    assert "500 messages written in" in result.output
    assert f"to {len(files(out))} file" in result.output
    assert len(fakensqd.transcript.finished("t", "to-file")) == 500


def test_name_has_topic_channel_host_and_process(fakensqd, to_file, out):
    fakensqd.publish("t", b"1")

    to_file("-n", "1", "--channel", "archive", "--name", "{topic}-{channel}-{pid}")

    assert [path.name for path in files(out)] == [f"t-archive-{os.getpid()}.log"]


def test_file_of_an_idle_topic_is_complete_after_its_interval(fakensqd, to_file, out):
    fakensqd.publish("t", b"1")

    with signalled_when(lambda: out.exists() and files(out)):
        to_file("--rotate-interval", "0.2", "--sync-interval", "0.01")

    assert lines(out) == [b"1"]


def test_count_leaves_the_other_messages_to_the_channel(fakensqd, to_file, out):
    fakensqd.publish("t", *bodies(300))

    to_file("-n", "120", "--max-in-flight", "50")

    assert len(lines(out)) == 120
    assert len(fakensqd.transcript.finished("t")) == 120
    assert len(fakensqd.transcript.requeued("t")) == 0
    assert fakensqd.depth("t", "to-file") == 180


# --- durability


def test_message_is_finished_after_fsync_only(fakensqd, to_file, out, monkeypatch):
    fsync, finished = os.fsync, []

    def count_finished(descriptor):
        finished.append(len(fakensqd.transcript.finished("t")))
        fsync(descriptor)
        finished.append(len(fakensqd.transcript.finished("t")))

    out.mkdir()
    monkeypatch.setattr(os, "fsync", count_finished)
    fakensqd.publish("t", *bodies(5))

    to_file("-n", "5", *ROTATE_NEVER)

    # The fsyncs of the new file and of its directory, then FIN, then that of the directory with the final name.
    assert finished[:4] == [0, 0, 0, 0]
    assert len(fakensqd.transcript.finished("t")) == 5


@pytest.mark.fakensqd(msg_timeout=1.0)
def test_messages_are_touched_while_the_disk_is_slow(fakensqd, to_file, out, monkeypatch):
    fsync = os.fsync

    def slow_fsync(descriptor):
        if len(fakensqd.transcript.touched("t")) < 4:
            fakensqd.wait_until(lambda nsqd: len(nsqd.transcript.touched("t")) >= 4)
        fsync(descriptor)

    out.mkdir()
    monkeypatch.setattr(os, "fsync", slow_fsync)
    fakensqd.publish("t", b"1", b"2")

    result = to_file("-n", "2", "--sync-interval", "0.01")

    assert result.exit_code == 0, result.output
    assert len(fakensqd.transcript.finished("t")) == 2
    assert fakensqd.transcript.delivered("t") == [b"1", b"2"]


@pytest.mark.fakensqd(msg_timeout=1.0)
def test_message_is_written_before_its_timeout_even_if_the_interval_is_longer(fakensqd, to_file):
    fakensqd.publish("t", b"1")

    with signalled_when(lambda: len(fakensqd.transcript.finished("t"))):
        to_file("--sync-interval", "60")

    assert fakensqd.transcript.delivered("t") == [b"1"]


# --- failures


def test_full_disk_is_an_error_and_the_messages_are_requeued(fakensqd, to_file, out):
    fakensqd.publish("t", *bodies(10))

    with largest_file(50):
        result = to_file("--sync-interval", "200ms")  # so that all are in one batch

    assert result.exit_code == 1
    assert "File too large. 10 messages were requeued. Free space" in result.output
    assert list(out.iterdir()) == []
    assert len(fakensqd.transcript.finished("t")) == 0
    assert fakensqd.depth("t", "to-file") + fakensqd.in_flight("t", "to-file") == 10
    assert channel_stats(fakensqd, "t", "to-file")["requeue_count"] == 10


def test_file_that_can_not_get_its_name_stays_and_is_recovered(fakensqd, to_file, out, monkeypatch):
    fakensqd.publish("t", b"1", b"2")

    def link(source, target):
        raise OSError(5, "Input/output error", str(source))

    with monkeypatch.context() as patched:
        patched.setattr(os, "link", link)
        failed = to_file("-n", "1")
    again = to_file("-n", "1")

    assert failed.exit_code == 1
    assert "Input/output error. The next start of gnsq to-file completes it" in failed.output
    assert "recovered" in again.output
    assert lines(out) == [b"1", b"2"]


@pytest.mark.parametrize(
    ("target", "name"),
    [
        pytest.param("missing/below", "x", id="the directory can't be made"),
        pytest.param("/proc", "x", id="no files can be made in it"),
        pytest.param(".", "x" * 300, id="the name is too long"),
    ],
)
def test_place_where_no_file_can_be_made_is_an_error_before_a_message_comes(fakensqd, to_file, out, target, name):
    out.symlink_to(target)

    result = to_file("--name", name)

    assert result.exit_code == 1
    assert f"no file can be made in {out}" in result.output
    assert "SUB" not in fakensqd.transcript.commands()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--level", "3"], "level 3 needs a compression"),
        (["--compress", "gzip", "--level", "11"], "level 11 must be 1 to 9"),
        (["--name", "{topic}/%Y"], "gives 't/2"),
        (["--name", ""], "name '' gives '', and the name of a file is due: it has no slash"),
        (["--name", "x", "u"], "--name x needs {topic}, since each topic has files of its own"),
        (["--topic-pattern", "("], "'(' is not a regular expression"),
        (["--delimiter", "ab"], "'ab' is not one byte"),
        (["--delimiter", ",", "--format", "json"], "leave out --delimiter"),
        (["--rotate-size", "10X"], "such as 500000, 100M or 1G, not '10X'"),
        (["--rotate-size", "0"], "must be at least 1 byte"),
    ],
)
def test_wrong_option_is_refused(to_file, out, arguments, text):
    result = to_file(*arguments)

    assert result.exit_code == 2
    assert text in result.output
    assert not out.exists()


# --- signals and kills


def test_signal_completes_the_file_of_messages_that_wait(fakensqd, to_file, out):
    fakensqd.publish("t", *bodies(20))

    # The interval is so long that no message is written before the signal.
    with signalled_when(lambda: fakensqd.in_flight("t", "to-file") == 20):
        result = to_file("--sync-interval", "30")

    assert result.exit_code == 0
    assert "20 messages written" in result.output
    assert sorted(lines(out)) == bodies(20)
    assert len(fakensqd.transcript.finished("t")) == 20


def test_signal_ends_the_command_while_no_nsqd_responds(to_file, out):
    with signalled_when(out.exists):
        result = to_file("--nsqd", f"127.0.0.1:{refused_port()}")

    assert result.exit_code == 0
    assert "0 messages written" in result.output


# nsqd delivers the messages of a killed process again after their timeout.
@pytest.mark.fakensqd(msg_timeout=0.5)
@pytest.mark.subprocess
@pytest.mark.parametrize("compress", ["none", "gzip", "zstd"])
def test_kill_loses_no_message(fakensqd, out, compress):
    words = ("to-file", "t", "-d", out, "--compress", compress)
    words += ("--sync-interval", "0.005", "--rotate-size", "1K", "--max-in-flight", "20")
    published = []

    def publish_more():
        published.extend(b"%d" % number for number in range(len(published), len(published) + 50))
        fakensqd.publish("t", *published[-50:])

    def is_writing():
        # However fast it is, there is more to do.
        if fakensqd.depth("t", "to-file") < 50:
            publish_more()
        return len(fakensqd.transcript.finished("t")) >= 30

    publish_more()
    with started(fakensqd, *words) as killed:
        wait_for_program(killed, is_writing)
        killed.kill()
        killed.wait()
    assert len(finished(fakensqd)) >= 30
    assert finished(fakensqd) <= set(lines_after_recovery(out))
    # So the last one has begun when all is done.
    publish_more()
    with started(fakensqd, *words) as last:
        wait_for_program(last, lambda: fakensqd.depth("t", "to-file") + fakensqd.in_flight("t", "to-file") == 0)
        last.send_signal(signal.SIGTERM)

        assert last.wait() == 0

    assert set(lines(out)) == set(published)
    assert [path for path in out.iterdir() if path.name.startswith(".")] == []


# --- several topics, filters, delimiters, and back again


def test_each_topic_has_files_of_its_own(fakensqd, to_file, out):
    fakensqd.publish("a", b"1", b"2")
    fakensqd.publish("b", b"3")

    result = to_file("-n", "3", "--name", "{topic}-%H", topics=("a", "b"))

    assert result.exit_code == 0, result.output
    assert {path.name.partition("-")[0]: path.read_bytes() for path in files(out)} == {"a": b"1\n2\n", "b": b"3\n"}
    assert "to 2 files in" in result.output


def test_pattern_finds_topics_that_are_created_later(fakensqd, to_file, out):
    fakensqd.publish("order-a", b"1")
    fakensqd.publish("clicks", b"2")

    def publish_later():
        fakensqd.wait_until(lambda nsqd: nsqd.transcript.delivered("order-a"))
        fakensqd.publish("order-b", b"3")

    with background(publish_later):
        result = to_file("--topic-pattern", "^order", "--topic-refresh", "0.1", "-n", "2", topics=())

    assert result.exit_code == 0, result.output
    assert {path.name.partition(".")[0]: path.read_bytes() for path in files(out)} == {
        "order-a": b"1\n",
        "order-b": b"3\n",
    }


def test_pattern_without_a_topic_waits_and_ends_at_idle(fakensqd, to_file):
    result = to_file("--topic-pattern", "x", "--idle", "0.2", topics=())

    assert result.exit_code == 0
    assert "there are no topics that match x yet; asking again every 15 s" in result.output
    assert fakensqd.broker.topics == {}


BODIES = [b"1", "grün\n\u2028".encode(), b"\xff\x00", b'{"body": "x"}', bytes(range(256)), b"\xed\xa0\x80"]


@pytest.mark.parametrize(
    ("options", "given", "suffix"),
    [(["--format", "json"], BODIES, ".jsonl"), (["--delimiter", r"\0"], [b"1\n2", b"3\n"], ".log")],
    ids=["json", "delimiter"],
)
def test_pub_takes_back_what_was_written_byte_for_byte(fakensqd, to_file, out, options, given, suffix):
    fakensqd.publish("t", *given)
    to_file(*options, "-n", len(given))

    (path,) = files(out)
    result = invoke("pub", "back", path, *options, *servers_of(fakensqd))

    assert result.exit_code == 0, result.output
    assert path.suffix == suffix
    assert fakensqd.messages("back") == given
