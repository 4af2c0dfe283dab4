"""A whole query over TLS with AUTH: secrets are options, and nothing that Spark shows or keeps has them."""

import json

import pytest

from gnsq import NsqdHTTPClient
from tests.spark.conftest import SECRET
from tests.spark.helpers import numbered


@pytest.mark.spark
def test_secrets_are_in_no_plan_progress_checkpoint_or_error(spark, secured_nsqd, tmp_path):
    nsqd, options = secured_nsqd
    files = {"tlsCa": options["tls_ca"], "tlsCert": options["tls_cert"], "tlsKey": options["tls_key"]}
    secured = {"tls": "true", **files, "authSecret": SECRET, "nsqdTcpAddresses": nsqd.tcp_address}
    source = {
        "topic": "in", "channel": "c", "spool": str(tmp_path / "spool"),
        "nsqdHttpAddresses": nsqd.http_address, "drain": "true",
    }  # fmt: skip
    with NsqdHTTPClient.from_url(nsqd.http_address) as client:
        client.multipublish("in", numbered(10))
    frame = spark.readStream.format("nsq").options(**secured, **source).load().select("body")

    query = (
        frame.writeStream.format("nsq")
        .queryName("secret")
        .options(**secured, topic="out", checkpointLocation=str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    with pytest.raises(Exception, match="row 0 of partition") as failure:
        spark.createDataFrame([("x",)], ["body"]).coalesce(1).write.format("nsq").mode("append").options(
            **{**secured, "nsqdTcpAddresses": "127.0.0.1:1"}, topic="out", publishTimeout="0.1"
        ).save()

    shown = [frame._jdf.queryExecution().toString(), query._jsq.explainInternal(True), str(failure.value)]
    shown.append(json.dumps([dict(progress) for progress in query.recentProgress], default=str))
    kept = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file() and path.name != "secret"]
    assert not [text for text in shown if SECRET in text]
    assert not [data for data in kept if SECRET.encode() in data]
    assert sorted(nsqd.messages("out")) == numbered(10)
