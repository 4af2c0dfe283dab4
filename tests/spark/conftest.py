"""What tests of gnsq.spark share: a hub on a thread, a spool, and one Spark session for all that need a JVM."""

import gc
import importlib.util
import socket

import pytest
from pyarrow import fs

from gnsq.hubthread import HubThread
from gnsq.spark.spool import Spool
from tests.spark.s3server import s3_server


@pytest.fixture(autouse=True, scope="session")
def short_lived_java():
    """Spark of tests ends in seconds: without Java's second compiler those that start it take a fifth less."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        yield


@pytest.fixture(autouse=True)
def search_for_cycles_as_before():
    """Whatever a test's source has changed for a process that it takes for its own."""
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)


@pytest.fixture
def hub():
    with HubThread("test") as hub:
        yield hub


@pytest.fixture
def spool(tmp_path):
    return Spool(str(tmp_path / "spool"))


@pytest.fixture(scope="session")
def spark(tmp_path_factory):
    from gnsq.spark.pipeline.session import open_session

    log = tmp_path_factory.mktemp("spark") / "spark.log"
    with open_session("tests", master="local[2]", log=log) as spark:
        yield spark


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
def silent_address():
    """What takes connections and answers nothing, as a host that hangs."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield "{}:{}".format(*server.getsockname())


SECRET = "open sesame"


@pytest.fixture
def secured_nsqd(fakensqd_certificates, tmp_path):
    """An nsqd that wants TLS with a client's certificate and AUTH; and the options, by Python's names, that suit it."""
    from fakensqd import FakeAuthServer, FakeNsqd, Grant
    from fakensqd.thread import Threaded

    (tmp_path / "secret").write_text(SECRET + "\n")
    server, client = fakensqd_certificates.server(), fakensqd_certificates.client()
    options = {
        "tls": True,
        "tls_ca_file": fakensqd_certificates.ca,
        "tls_cert_file": client.certificate,
        "tls_key_file": client.key,
        "auth_secret_file": str(tmp_path / "secret"),
    }
    with Threaded(FakeAuthServer({SECRET: [Grant()]})) as auth:
        nsqd = FakeNsqd(
            tls_cert=server.certificate,
            tls_key=server.key,
            tls_root_ca_file=fakensqd_certificates.ca,
            tls_client_auth_policy="require-verify",
            tls_required="tcp-https",
            auth_http_addresses=auth.http_address,
        )
        with Threaded(nsqd) as running:
            yield running, {**options, "nsqd_tcp_addresses": (running.tcp_address,)}
