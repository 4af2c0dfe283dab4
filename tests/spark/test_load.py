"""Wrong options, as users of Spark see them: our text, and no traceback of a Python process."""

import pytest
from pyspark.errors import AnalysisException, StreamingQueryException

GOOD = {"topic": "clicks", "channel": "archive", "nsqdTcpAddresses": "127.0.0.1:1"}


@pytest.mark.spark
@pytest.mark.parametrize(
    ("kind", "given", "text"),
    [
        pytest.param("read", {"topik": "x"}, "option 'topik' is unknown to the format nsq; did you mean t", id="name"),
        pytest.param("readStream", {"maxInFlight": "0"}, "option maxInFlight 0 must be at least 1 message", id="value"),
        pytest.param("readStream", {"nsqdTcpAddresses": "a:b"}, "option nsqdTcpAddresses: ", id="address"),
    ],
)
def test_load_tells_a_wrong_option(spark, kind, given, text):
    reader = getattr(spark, kind).format("nsq").options(**{**GOOD, **given})

    with pytest.raises(AnalysisException) as failure:
        reader.load()

    assert f"ValueError: {text}" in str(failure.value)
    assert "Traceback" not in str(failure.value)


@pytest.mark.spark
@pytest.mark.parametrize(
    ("given", "schema", "text"),
    [
        pytest.param({}, None, "option spool is required", id="no spool"),
        pytest.param({"topik": "x"}, "body binary", "option 'topik' is unknown", id="name beside a schema"),
    ],
)
def test_start_of_a_query_tells_what_load_can_not_know(spark, tmp_path, given, schema, text):
    reader = spark.readStream.format("nsq").options(**{**GOOD, **given})
    writer = (reader.schema(schema) if schema else reader).load().writeStream.format("noop")

    query = writer.option("checkpointLocation", str(tmp_path)).start()
    with pytest.raises(StreamingQueryException) as failure:
        query.awaitTermination(60)

    assert f"ValueError: {text}" in str(failure.value)
    assert "UnboundLocalError" not in str(failure.value)


@pytest.mark.spark
def test_save_tells_a_wrong_option(spark):
    rows = spark.createDataFrame([("x",)], ["body"])

    with pytest.raises(Exception, match="ValueError: option publishTimeout 0 must be within") as failure:
        rows.write.format("nsq").mode("append").options(topic="x", nsqdTcpAddresses="a:1", publishTimeout="0").save()

    assert "Traceback" not in str(failure.value)
