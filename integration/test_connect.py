"""The format nsq in a session of Spark Connect, whose server runs on this machine."""

import json

import pytest

from tests.kit import run_program

pytest.importorskip("grpc", reason="Spark Connect needs grpcio: pip install 'pyspark[connect]'")

pytestmark = [pytest.mark.spark, pytest.mark.subprocess, pytest.mark.timeout(300)]

# A process of its own: pyspark has one kind of session for each process.
PROGRAM = """
import json, os, sys
from pyspark.sql import SparkSession
import gnsq.spark
from fakensqd import FakeNsqd
from gnsq import Producer
from gnsq.errors import NSQException
from gnsq.spark.java import prepare_environment
from gnsq.spark.pipeline import JobSettings, TableSettings, run

folder = sys.argv[1]
os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
prepare_environment()
with FakeNsqd().in_thread() as nsqd:
    with Producer(nsqd.tcp_address) as producer:
        producer.multipublish("clicks", [b"%d" % number for number in range(1000)])
    spark = SparkSession.builder.remote("local[2]").getOrCreate()
    gnsq.spark.register(spark)
    nsqds = {"nsqdTcpAddresses": nsqd.tcp_address}
    source = {**nsqds, "nsqdHttpAddresses": nsqd.http_address, "channel": "archive"}

    messages = spark.readStream.format("nsq").options(topic="clicks", spool=f"{folder}/spool", **source).load()
    writer = messages.writeStream.format("parquet").option("checkpointLocation", f"{folder}/archive")
    assert writer.trigger(availableNow=True).start(f"{folder}/out").awaitTermination(100)
    streamed = spark.read.parquet(f"{folder}/out")

    streamed.select("body").write.format("nsq").mode("append").options(topic="copy", **nsqds).save()
    batch = spark.read.format("nsq").options(topic="copy", **source).load().count()

    writer = spark.readStream.schema(streamed.schema).parquet(f"{folder}/out").select("body").writeStream.format("nsq")
    writer = writer.options(topic="again", **nsqds).option("checkpointLocation", f"{folder}/again")
    assert writer.trigger(availableNow=True).start().awaitTermination(100)

    places = {"output": f"{folder}/o", "work": f"{folder}/w"}
    tables = {"clicks": TableSettings(name="clicks", format="raw")}
    try:
        run(spark, JobSettings(tables=tables, nsqd_tcp_addresses=(nsqd.tcp_address,), **places))
    except NSQException as error:
        refused = str(error)
    found = [streamed.select("body").distinct().count(), batch, nsqd.depth("again")]
    spark.stop()
print(json.dumps([type(spark).__module__, found, refused]))
"""


def test_source_and_sink_work_and_the_job_is_refused(tmp_path):
    done = run_program(PROGRAM, str(tmp_path), flags=(), limit=280)

    assert done.returncode == 0, done.stderr[-3000:]
    module, found, refused = json.loads(done.stdout.splitlines()[-1])
    assert module == "pyspark.sql.connect.session"
    # Read by a stream, written and read by a batch, written by a stream.
    assert found == [1000, 1000, 1000]
    assert refused.startswith("the job needs a classic Spark session, and pyspark.sql.connect.session.SparkSession is ")
