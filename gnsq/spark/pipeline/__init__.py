"""The job: click events from NSQ to Parquet and to one-minute counts. ``python -m gnsq.spark.pipeline --help``."""
