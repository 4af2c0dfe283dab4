import pytest

from gnsq.spark.options import ReadOptions


@pytest.fixture
def options(fakensqd, tmp_path):
    """Make options for the emulator, with a spool of the test."""

    def make(**changes):
        return ReadOptions(
            **{
                "topic": "clicks",
                "channel": "archive",
                "nsqd_tcp_addresses": (fakensqd.tcp_address,),
                "nsqd_http_addresses": (fakensqd.http_address,),
                "spool": str(tmp_path / "spool"),
                "num_partitions": 2,
                **changes,
            }
        )

    return make
