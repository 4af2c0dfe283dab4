"""Program: one query from NSQ into Parquet, until its standard input ends, for tests that kill parts of it.

``python -m integration.query FOLDER NSQD_TCP NSQD_HTTP``. Batches are directories
FOLDER/out/batch=ID, which are complete if they have _SUCCESS.
"""

import logging
import os
import sys
import threading
from pathlib import Path

from gnsq.spark import register
from gnsq.spark.pipeline.spark_session import open_session

TOPIC, CHANNEL = "clicks", "archive"
# Tasks may fail, as on a cluster.
SETTINGS = {"spark.master": "local[2,4]", "spark.driver.memory": "512m", "spark.sql.shuffle.partitions": "1"}


def main():
    folder, tcp, http = sys.argv[1:]
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    out = Path(folder) / "out"
    given = {
        "topic": TOPIC,
        "channel": CHANNEL,
        "spool": str(Path(folder) / "spool"),
        "spoolOwner": folder,
        "nsqdTcpAddresses": tcp,
        "nsqdHttpAddresses": http,
    }

    def keep(rows, batch_id):
        rows.select("body").write.mode("overwrite").parquet(f"{out}/batch={batch_id:06d}")

    ended = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
    with open_session("query", settings=SETTINGS) as spark:
        register(spark)
        messages = spark.readStream.format("nsq").options(**given).load()
        query = messages.writeStream.foreachBatch(keep).option("checkpointLocation", f"{folder}/checkpoint")
        query = query.trigger(processingTime="200 milliseconds").start()
        while not ended.wait(0.2):
            if not query.isActive:
                sys.exit("the query has ended; Spark has said why")
        query.stop()


if __name__ == "__main__":
    main()
