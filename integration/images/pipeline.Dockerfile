# One image for receivers, the driver and the executors, with PySpark as the Spark. At the repository's root:
#     docker build --file integration/images/pipeline.Dockerfile --tag gnsq-pipeline .
FROM eclipse-temurin:17-jre AS java

FROM python:3.11-slim AS build
COPY . /src
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /built /src
RUN python /src/integration/images/requirements.py cli prometheus spark >/built/requirements.txt

FROM python:3.11-slim
RUN apt-get update && apt-get install --yes --no-install-recommends libnss-wrapper tini && rm -rf /var/lib/apt/lists/*
# Spark does not start for a user without an entry; entrypoint.sh makes one for others. All users may write into /work, and so
# into a new volume there.
RUN useradd --uid 185 --user-group --no-create-home --home-dir /tmp spark && install --directory --mode=1777 /work
COPY --from=java /opt/java/openjdk /opt/java/openjdk
# A gigabyte, which a change of gnsq leaves as it is.
COPY --from=build /built/requirements.txt /built/
# Spark's Python processes import the installed PySpark, which is compiled, and not the one in the file that is removed.
RUN pip install --no-cache-dir --requirement /built/requirements.txt && \
    rm /usr/local/lib/python3.11/site-packages/pyspark/python/lib/pyspark.zip
COPY --from=build /built /built
RUN pip install --no-cache-dir --no-deps /built/*.whl
COPY integration/images/entrypoint.sh integration/images/job.py /opt/gnsq/
# The job's metrics and a receiver's health are at this port, for the health check too.
ENV JAVA_HOME=/opt/java/openjdk \
    SPARK_HOME=/usr/local/lib/python3.11/site-packages/pyspark \
    PYSPARK_PYTHON=/usr/local/bin/python \
    PYTHONUNBUFFERED=1 \
    HOME=/tmp \
    GNSQ_PIPELINE_METRICS_ADDRESS=0.0.0.0:8080 \
    GNSQ_RECEIVER_HEALTH_ADDRESS=0.0.0.0:8080
# Each user that reads and writes the spool must be the same one; see the option spoolMode otherwise.
USER 185:185
WORKDIR /tmp
EXPOSE 8080
# A receiver answers this path; the job answers any path, with its metrics.
HEALTHCHECK --start-period=60s CMD ["python", "-Ic", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8080/live', timeout=10)"]
ENTRYPOINT ["tini", "--", "bash", "/opt/gnsq/entrypoint.sh"]
