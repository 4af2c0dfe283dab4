"""Fixtures of gnsq.spark's tests: a hub on a thread, a spool, and one Spark session for all tests that need a JVM."""

import contextlib
import gc
import importlib.metadata
import importlib.util
import os
import tempfile
import threading
import time

import pytest
from pyarrow import fs
from pyspark.errors import PySparkException

from gnsq.concurrency.hub_thread import HubThread
from gnsq.spark.java import prepare_environment
from gnsq.spark.spool.spool import Spool
from tests.kit import need_open_files
from tests.spark.helpers import OTHER_SETTINGS
from tests.spark.s3proxy import s3_proxy
from tests.spark.s3server import s3_server

# Without the second compiler Java starts a fifth faster, without verification of classes another fifth.
# And without UsePerfData it writes no file into /tmp, whatever TMPDIR is. With one compiler Java has room for 48 MiB of
# code by default, of which two fifths of the tests fill 38. Java compiles no more when it is full.
JAVA_FLAGS = (
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote "
    "-XX:-UsePerfData -XX:ReservedCodeCacheSize=128m"
)


def pytest_configure(config):
    if importlib.metadata.version("pyspark").startswith("4.1."):
        # PySpark 4.1 leaves the sockets open on which it has got the rows of a collect().
        config.addinivalue_line("filterwarnings", "ignore:unclosed <socket:ResourceWarning")


def pytest_runtest_setup(item):
    if item.get_closest_marker("spark"):
        need_open_files(1024)  # Java alone opens 300 files of classes


@pytest.fixture(autouse=True, scope="session")
def short_lived_java(request):
    """Let Java, its launcher and Python start fast: the Spark of a test ends after seconds."""
    if not any(item.get_closest_marker("spark") for item in request.session.items):
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        for variable in ("SPARK_LAUNCHER_OPTS", "SPARK_DAEMON_JAVA_OPTS"):
            patch.setenv(variable, JAVA_FLAGS)
        # A Java that is killed leaves its temporary files.
        patch.setenv("SPARK_SUBMIT_OPTS", f'{JAVA_FLAGS} -Djava.io.tmpdir="{tempfile.gettempdir()}"')
        if "SPARK_HOME" not in os.environ:
            patch.setenv("SPARK_HOME", "")  # the patch removes the variable at the end
            del os.environ["SPARK_HOME"]
            prepare_environment()
        # PySpark would log each error of a plan to a logger that gives a format of its own, JSON, to every handler that
        # pytest adds to it: the log lines that all later tests of this process read.
        patch.setattr(PySparkException, "_log_exception", lambda error: None)
        yield


@pytest.fixture(autouse=True)
def search_for_cycles_as_before():
    """Reset the thresholds that tune_gc() sets, since it expects a process of its own."""
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)


@pytest.fixture
def hub():
    with HubThread("test") as hub:
        yield hub


class Disk:
    """Lets the writing of some files fail, or wait: each file is synced before it gets its name."""

    def __init__(self):
        self.was_reached = threading.Event()
        self._fsync = os.fsync
        self._names = None
        self._error = None
        self._is_repaired = threading.Event()

    def fail(self, names, error):
        """Let the writing of files whose names have a part fail, until repair()."""
        self._names, self._error = names, error

    def hold(self, names):
        """Let the writing of such files wait for repair()."""
        self._names, self._error = names, None

    def repair(self):
        self._names = None
        self._is_repaired.set()

    def fsync(self, descriptor):
        if self._names is not None and self._names in os.readlink(f"/proc/self/fd/{descriptor}"):
            self.was_reached.set()
            if self._error is not None:
                raise self._error
            assert self._is_repaired.wait(60)
        self._fsync(descriptor)


@pytest.fixture
def disk(monkeypatch):
    disk = Disk()
    monkeypatch.setattr(os, "fsync", disk.fsync)
    yield disk
    disk.repair()


@pytest.fixture
def spool(tmp_path):
    return Spool(str(tmp_path / "spool"))


@pytest.fixture
def root(spool, tmp_path):
    """The directory of that spool."""
    spool.prepare()
    return tmp_path / "spool"


@pytest.fixture(scope="session")
def spark(tmp_path_factory):
    from gnsq.spark import register
    from gnsq.spark.pipeline.spark_session import open_session

    folder = tmp_path_factory.mktemp("spark")
    # As a company may have them: jobs must not differ.
    defaults = "".join(f"{name} {value}\n" for name, value in OTHER_SETTINGS.items())
    (folder / "spark-defaults.conf").write_text(defaults)
    # Spark would compile a class for each part of each plan, which runs for some rows: a tenth of Java's time.
    interpreted = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
    # The state of a query is in so many stores, and each batch commits all. Jobs in sessions of their own have two.
    few = {"spark.sql.shuffle.partitions": "1"}
    settings = {"spark.master": "local[2]", "spark.python.daemon.module": "tests.spark.daemon", **interpreted, **few}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARK_CONF_DIR", str(folder))
        patch.setenv("TZ", "Asia/Kathmandu")
        time.tzset()
        with open_session("tests", settings=settings, log=folder / "spark.log") as spark:
            register(spark)
            yield spark


@pytest.fixture(autouse=True)
def active_session(request):
    """Spark looks for the format in the active session, and a test may have left one of its own, without the format."""
    if "spark" in request.fixturenames:
        spark = request.getfixturevalue("spark")
        spark._jvm.SparkSession.setActiveSession(spark._jsparkSession)


@pytest.fixture
def shared_session(spark):
    """open_session() with the session of all tests: at the end it only stops the queries."""

    @contextlib.contextmanager
    def open_shared(name, **options):
        try:
            yield spark
        finally:
            for query in spark.streams.active:
                query.stop()

    return open_shared


@pytest.fixture(scope="session")
def s3():
    """An S3 endpoint with a bucket of the name bucket."""
    if importlib.util.find_spec("moto") is None:
        pytest.skip("moto[server] is not installed")
    with s3_server() as server:
        settings = {"access_key": "KEY", "secret_key": "SECRET", "scheme": "http", "region": "us-east-1"}
        endpoint = f"127.0.0.1:{server.port}"
        fs.S3FileSystem(endpoint_override=endpoint, allow_bucket_creation=True, **settings).create_dir("bucket")
        yield server


@pytest.fixture
def location(s3, tmp_path, monkeypatch):
    """The URI of a spool on S3."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "KEY")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "SECRET")
    return s3.location(f"bucket/{tmp_path.name}/spool")


@pytest.fixture
def proxy(s3):
    """A proxy before that endpoint."""
    with s3_proxy(s3.port) as proxy:
        yield proxy


SECRET = "open sesame"


@pytest.fixture
def secured_nsqd(fakensqd_certificates, tmp_path):
    """An nsqd that requires TLS with a client's certificate and AUTH; and the options for it, by Python's names."""
    from fakensqd import FakeAuthServer, FakeNsqd, Grant

    (tmp_path / "secret").write_text(SECRET + "\n")
    server, client = fakensqd_certificates.server(), fakensqd_certificates.client()
    options = {
        "tls": True,
        "tls_ca": fakensqd_certificates.ca,
        "tls_cert": client.certificate,
        "tls_key": client.key,
        "auth_secret_file": str(tmp_path / "secret"),
    }
    with (
        FakeAuthServer({SECRET: [Grant()]}).in_thread() as auth,
        FakeNsqd(
            tls_cert=server.certificate,
            tls_key=server.key,
            tls_root_ca_file=fakensqd_certificates.ca,
            tls_client_auth_policy="require-verify",
            tls_required="tcp-https",
            auth_http_addresses=auth.http_address,
        ).in_thread() as running,
    ):
        yield running, {**options, "nsqd_tcp_addresses": (running.tcp_address,)}
