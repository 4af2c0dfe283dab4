# One image for receivers, the driver and the executors, with PySpark as the Spark. At the repository's root:
#     docker build --file integration/images/pipeline.Dockerfile --tag gnsq-pipeline .
FROM eclipse-temurin:17-jre AS java

FROM python:3.11-slim
RUN apt-get update && apt-get install --yes --no-install-recommends tini && rm -rf /var/lib/apt/lists/*
COPY --from=java /opt/java/openjdk /opt/java/openjdk
COPY . /src
RUN pip install --no-cache-dir '/src[prometheus,spark]' && rm -rf /src
# Spark's Python processes then import the installed PySpark, which is compiled, and not the one in this file.
RUN rm /usr/local/lib/python3.11/site-packages/pyspark/python/lib/pyspark.zip
COPY integration/images/entrypoint.sh integration/images/job.py /opt/gnsq/
ENV JAVA_HOME=/opt/java/openjdk \
    SPARK_HOME=/usr/local/lib/python3.11/site-packages/pyspark \
    PYSPARK_PYTHON=/usr/local/bin/python \
    PYTHONUNBUFFERED=1
# Each user that reads and writes the spool must be the same one; see the option spoolMode otherwise.
USER 185:185
WORKDIR /tmp
ENTRYPOINT ["tini", "--", "bash", "/opt/gnsq/entrypoint.sh"]
