#!/usr/bin/env bash
# Runs a command as it is. But Spark on Kubernetes gives the word driver or executor, and the rest in variables: then this
# runs the driver by spark-submit, or the executor.
set -euo pipefail

# Java finds the user's name in the entry of passwd only, and Spark does not start without. A user that the image does not
# know gets an entry.
if ! getent passwd "$(id -u)" >/dev/null; then
    NSS_WRAPPER_PASSWD=$(mktemp)
    echo "spark:x:$(id -u):$(id -g)::/tmp:/bin/false" >"$NSS_WRAPPER_PASSWD"
    export LD_PRELOAD=libnss_wrapper.so NSS_WRAPPER_PASSWD NSS_WRAPPER_GROUP=/etc/group
fi

case "${1:-}" in
driver)
    shift
    exec "$SPARK_HOME/bin/spark-submit" --deploy-mode client \
        --conf "spark.driver.bindAddress=$SPARK_DRIVER_BIND_ADDRESS" "$@"
    ;;
executor)
    java_options=()
    for variable in "${!SPARK_JAVA_OPT_@}"; do
        java_options+=("${!variable}")
    done
    exec "$JAVA_HOME/bin/java" ${java_options[@]+"${java_options[@]}"} \
        "-Xms$SPARK_EXECUTOR_MEMORY" "-Xmx$SPARK_EXECUTOR_MEMORY" \
        -cp "${SPARK_CONF_DIR:-$SPARK_HOME/conf}:${SPARK_CLASSPATH:-}:$SPARK_HOME/jars/*:$PWD" \
        org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \
        --driver-url "$SPARK_DRIVER_URL" \
        --executor-id "$SPARK_EXECUTOR_ID" \
        --cores "$SPARK_EXECUTOR_CORES" \
        --app-id "$SPARK_APPLICATION_ID" \
        --hostname "$SPARK_EXECUTOR_POD_IP" \
        --resourceProfileId "$SPARK_RESOURCE_PROFILE_ID" \
        --podName "$SPARK_EXECUTOR_POD_NAME"
    ;;
*)
    exec "$@"
    ;;
esac
