"""Wrong options, as users of Spark see them: our text, and no traceback of a Python process."""

import pytest
from pyspark.errors import PySparkException, StreamingQueryException

GOOD = {"topic": "clicks", "channel": "archive", "nsqdTcpAddresses": "127.0.0.1:1"}


@pytest.mark.spark
def test_load_and_save_tell_a_wrong_option(spark):
    def load():
        spark.readStream.format("nsq").options(**GOOD, topik="x").load()

    def save():
        rows = spark.createDataFrame([("x",)], ["body"]).write.format("nsq").mode("append")
        rows.options(topic="x", nsqdTcpAddresses="a:1", publishTimeout="0").save()

    for call, text in (
        (load, "option 'topik' is unknown to the format nsq; did you mean t"),
        (save, "option publishTimeout 0 must be within"),
    ):
        with pytest.raises(PySparkException) as failure:
            call()

        assert f"ValueError: {text}" in str(failure.value)
        assert "Traceback" not in str(failure.value)


@pytest.mark.spark
def test_start_of_a_query_tells_what_load_can_not_know(spark, tmp_path):
    reader = spark.readStream.format("nsq").options(**GOOD)

    query = reader.load().writeStream.format("noop").option("checkpointLocation", str(tmp_path)).start()
    with pytest.raises(StreamingQueryException) as failure:
        query.awaitTermination()

    assert "ValueError: option spool is required" in str(failure.value)
    assert "UnboundLocalError" not in str(failure.value)
