"""Program: write the classes that Spark loads into an archive, from which Java starts in two thirds of the time.

``python -m tests.spark.class_archive FILE``, with the environment of the tests: Java uses an archive only with the same
class path.
"""

import os
import sys
import tempfile
from pathlib import Path

from pyspark import SparkContext
from pyspark.sql import SparkSession
from pyspark.sql import functions as F


def main():
    archive = Path(sys.argv[1])
    unfinished = archive.with_suffix(".new")
    os.environ |= {"SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
    os.environ["SPARK_SUBMIT_OPTS"] += f" -XX:ArchiveClassesAtExit={unfinished}"
    spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    spark.conf.set("spark.sql.shuffle.partitions", "1")
    # Most of what the queries of tests use. A class that is missing is loaded as without an archive.
    spark.conf.set(
        "spark.sql.streaming.stateStore.providerClass",
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    )
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "in").mkdir()
        Path(folder, "in", "events").write_text('{"a": "b"}\n')
        rows = spark.readStream.text(f"{folder}/in").withColumn("at", F.current_timestamp())
        event = F.from_json("value", "a string, c bigint")
        timed = rows.withColumn("event", event).withWatermark("at", "1 second")
        counts = timed.groupBy(F.window("at", "1 second"), "event.a").count()
        query = counts.writeStream.outputMode("update").option("checkpointLocation", f"{folder}/checkpoint")
        query.foreachBatch(collect).trigger(availableNow=True).start().awaitTermination()
    process = SparkContext._gateway.proc
    spark.stop()
    # Java ends, and writes the archive, when its standard input does.
    process.stdin.close()
    if process.wait() == 0:
        unfinished.rename(archive)


def collect(rows, batch_id):
    rows.mapInArrow(lambda batches: batches, rows.schema).collect()


if __name__ == "__main__":
    main()
