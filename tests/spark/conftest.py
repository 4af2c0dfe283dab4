"""What tests of gnsq.spark share: a hub on a thread, a spool, and one Spark session for all that need a JVM."""

import pytest

from gnsq.hubthread import HubThread
from gnsq.spark.spool import Spool


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
