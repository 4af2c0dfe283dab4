import pytest

from tests.spark.pipeline.jobs import addresses, job


@pytest.fixture
def settings(fakensqd, tmp_path):
    """A job on the emulator, with the table clicks."""
    return job(tmp_path, **addresses(fakensqd))
