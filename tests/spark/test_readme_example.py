"""The README's Spark example runs."""

import pytest

from gnsq import Producer
from tests.test_readme import example


@pytest.mark.spark
def test_spark_example_writes_what_was_published(spark, fakensqd, tmp_path):
    with Producer(fakensqd.tcp_address) as producer:
        producer.multipublish("clicks", [b'{"page": "/", "user": "ann"}', b'{"page": "/a", "user": "bob"}'])
    names = {}
    exec(example("Spark"), names)

    query = names["start"](spark, fakensqd.tcp_address, fakensqd.http_address, str(tmp_path))
    assert query.awaitTermination(60)

    rows = spark.read.parquet(str(tmp_path / "out")).collect()
    assert sorted((row.click.page, row.click.user) for row in rows) == [("/", "ann"), ("/a", "bob")]
