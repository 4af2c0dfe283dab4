"""The example of stores.md with a real PostgreSQL: the job is killed again and again, and each event is there once.

POSTGRES_KILLS is the number of kills, 1 unless said otherwise. PostgreSQL's programs are searched on PATH and where
Debian's package postgresql has them.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from integration.queries import kill_group, running_query
from tests.docs.pages import example
from tests.docs.prose import replaced
from tests.kit import refused_port
from tests.spark.helpers import is_empty, publish, wait_for

psycopg = pytest.importorskip("psycopg")

KILLS = int(os.environ.get("POSTGRES_KILLS", "1"))
EVENTS = 1000 * (KILLS + 1)
LIMIT = 150
_INITDB = [shutil.which("initdb"), *sorted(map(str, Path("/usr/lib/postgresql").glob("*/bin/initdb")))]
PROGRAMS = next((Path(path).parent for path in _INITDB if path), None)

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(300 + 60 * KILLS),
    pytest.mark.skipif(PROGRAMS is None, reason="PostgreSQL is not installed: apt-get install postgresql"),
]


@pytest.fixture
def database(monkeypatch):
    """An empty database; the environment says where it is."""
    folder = Path(tempfile.mkdtemp(prefix="gnsq-postgres-"))
    # PostgreSQL does not run as root.
    user = []
    if os.getuid() == 0:
        shutil.chown(folder, "postgres")
        user = ["runuser", "-u", "postgres", "--"]

    def run(name, *arguments):
        command = [*user, str(PROGRAMS / name), *arguments]
        subprocess.run(command, cwd=folder, stdin=subprocess.DEVNULL, timeout=120, check=True)

    port, data = refused_port(), str(folder / "data")
    run("initdb", "--auth=trust", "--username=gnsq", "--no-sync", "--encoding=UTF8", "--pgdata", data)
    options = f"-h 127.0.0.1 -p {port} -k {folder} -F"
    run("pg_ctl", "start", "--wait", "--pgdata", data, "--log", str(folder / "log"), "--options", options)
    for name, value in {"HOST": "127.0.0.1", "PORT": str(port), "USER": "gnsq", "DATABASE": "postgres"}.items():
        monkeypatch.setenv(f"PG{name}", value)
    try:
        with psycopg.connect(autocommit=True) as connection:
            yield connection
    finally:
        run("pg_ctl", "stop", "--mode=immediate", "--pgdata", data)
        shutil.rmtree(folder)


def test_kills_leave_each_event_in_postgres_once(database, fakensqd, tmp_path, monkeypatch):
    database.execute(example("pipeline/stores.md", "Postgres: a key for each row", language="sql"))
    (tmp_path / "postgres.py").write_text(example("pipeline/stores.md", "Postgres: a key for each row"))
    settings = example("pipeline/stores.md", "Postgres: a key for each row", language="toml")
    settings = replaced(settings, {"127.0.0.1:4150": fakensqd.tcp_address, "127.0.0.1:4151": fakensqd.http_address})
    # What a killed receiver had in flight comes back soon.
    (tmp_path / "job.toml").write_text(f"max_rows_per_batch = 100\n{settings}\n[nsq]\nmsgTimeout = 2\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.chdir(tmp_path)
    command = [sys.executable, "-m", "gnsq.spark.pipeline", "--config", "job.toml"]
    publish(fakensqd, "clicks", [b'{"user": "u%d", "page": "/", "ms": %d}' % (n, n) for n in range(EVENTS)])

    def rows():
        return database.execute("SELECT count(*) FROM clicks").fetchone()[0]

    for number in range(1, KILLS + 1):
        with running_query(command, tmp_path / f"job{number}.log") as process:
            wait_for(lambda process=process, due=250 * number: process.poll() is not None or rows() >= due, LIMIT)
            assert process.poll() is None, "it has ended by itself"
            kill_group(process)
    with running_query([*command, "--once"], tmp_path / "last.log") as process:
        assert process.wait(LIMIT) == 0

    assert is_empty(fakensqd, "clicks", "clicks")
    found = database.execute('SELECT "user", ms FROM clicks').fetchall()
    print(f"killed {KILLS} times: {len(found)} rows, {len(set(found))} events of {EVENTS}")
    assert sorted(found) == sorted((f"u{n}", n) for n in range(EVENTS))
