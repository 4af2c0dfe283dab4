"""What spark-submit runs: the job, with the arguments of gnsq-pipeline."""

from gnsq.spark.pipeline.__main__ import main

main()
