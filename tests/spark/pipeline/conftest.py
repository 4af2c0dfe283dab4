import pytest

from tests.spark.pipeline.jobs import job


@pytest.fixture
def settings(fakensqd, tmp_path):
    """A job on the emulator, with the table clicks."""
    return job(tmp_path, nsqd_tcp_addresses=(fakensqd.tcp_address,), nsqd_http_addresses=(fakensqd.http_address,))
