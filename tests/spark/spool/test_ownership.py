import json
import os
import socket
import subprocess
import sys

import pytest

from gnsq.spark.errors import SpoolInUse
from gnsq.spark.spool.ownership import wait_for_end
from gnsq.spark.spool.spool import Spool
from gnsq.spark.spool.storage import open_store
from tests.kit import child


def test_second_owner_is_refused_while_the_first_lives(spool):
    lock = spool.lock("checkpoint-1", "clicks/archive")

    with pytest.raises(SpoolInUse, match=r"in use by another query .*checkpoint-1.* own"):
        spool.lock("checkpoint-1", "clicks/archive", timeout=0.05)

    lock.release()
    spool.lock("checkpoint-1", "clicks/archive").release()


def test_refused_owner_waits_for_one_that_is_ending(spool, hub):
    import gevent

    lock = spool.lock("", "clicks/archive")
    hub.call(lambda: gevent.spawn_later(0.1, lock.release))

    spool.lock("", "clicks/archive", timeout=10).release()


@pytest.mark.parametrize(
    ("claim", "words"),
    [
        pytest.param(("b", "clicks/archive"), r"owner 's3://\*\*\*@bucket/a', not to 'b'", id="owner"),
        pytest.param(("s3://KEY:SECRET@bucket/a", "views/archive"), "source 'clicks/archive', not to", id="source"),
    ],
)
def test_spool_of_another_query_is_refused_though_it_does_not_run(spool, root, claim, words):
    lock = spool.lock("s3://KEY:SECRET@bucket/a", "clicks/archive")
    owner = json.loads((root / "owner.json").read_text())
    assert (owner["owner"], owner["source"], owner["pid"]) == ("s3://***@bucket/a", "clicks/archive", os.getpid())
    lock.release()

    with pytest.raises(SpoolInUse, match=words):
        spool.lock(*claim)
    # The refusal has let go of the lock, which outlives its file.
    lock = spool.lock("s3://KEY:SECRET@bucket/a", "clicks/archive", timeout=0)
    (root / "owner.json").unlink()
    lock.check()
    lock.release()


def test_unreadable_owner_is_written_anew(spool, tmp_path):
    # Nothing is made by a wait.
    assert spool.wait_for_end()
    assert list(tmp_path.iterdir()) == []
    spool.prepare()
    path = tmp_path / "spool" / "owner.json"

    for text in ("", "{", "[]", "[" * 100_000):
        path.write_text(text)
        spool.lock("", "clicks/archive").release()

        assert json.loads(path.read_text())["source"] == "clicks/archive"


@pytest.mark.subprocess
def test_lock_dies_with_its_process(spool, root):
    code = (
        "import sys, os\n"
        "from gnsq.spark.spool.spool import Spool\n"
        "lock = Spool(sys.argv[1]).lock('', 'clicks/archive')\n"
        "print('held', flush=True)\n"
        "sys.stdin.read()\n"
    )
    with child(sys.executable, "-c", code, str(root), stdin=subprocess.PIPE) as process:
        assert process.stdout.readline() == "held\n"
        with pytest.raises(SpoolInUse):
            spool.lock("", "clicks/archive", timeout=0)
        assert not spool.wait_for_end(timeout=0)
        process.kill()

        assert spool.wait_for_end()
    spool.lock("", "clicks/archive").release()


@pytest.mark.subprocess
def test_owner_on_an_object_store_has_ended_with_its_process(location):
    store = open_store(location)
    with child("sleep", "60") as process:
        owner = {"host": socket.gethostname(), "pid": process.pid}
        store.put("owner.json", json.dumps(owner).encode())

        assert not wait_for_end(store, 0)
        process.kill()  # a zombie, until it is waited for
        assert wait_for_end(store, 20)
    # And what is no process here is not waited for.
    for other in (owner, {"host": "elsewhere", "pid": 1}, {"pid": 1}, {}):
        store.put("owner.json", json.dumps(other).encode())
        assert wait_for_end(store, 0)


@pytest.mark.subprocess
def test_last_run_on_an_object_store_wins(location):
    spool = Spool(location)

    first = spool.lock("checkpoint-1", "clicks/archive")
    first.check()
    second = spool.lock("checkpoint-1", "clicks/archive")

    second.check()
    with pytest.raises(SpoolInUse, match=r"taken over by another run of this query \(process \d+ on .*run it once"):
        first.check()
    with pytest.raises(SpoolInUse, match="checkpoint-1"):
        spool.lock("checkpoint-2", "clicks/archive")
