import pytest

from tests.spark.pipeline.helpers import config_for


@pytest.fixture
def config(fakensqd, tmp_path):
    """A job on the emulator."""
    return config_for(
        tmp_path, nsqd_tcp_addresses=(fakensqd.tcp_address,), nsqd_http_addresses=(fakensqd.http_address,)
    )
