"""Operations, deployment, the manifests for Kubernetes and the image agree with the programs. No cluster runs here."""

import os
import re
import shutil
import zipfile
from pathlib import Path

import click
import pyspark
import pytest
import yaml

from gnsq.spark.pipeline.__main__ import main as job_command
from gnsq.spark.pipeline.settings import load_settings
from gnsq.spark.receiver.program import command as receiver_command
from gnsq.spark.receiver.receiver import CLOSE_TIMEOUT, WRITE_TIMEOUT
from tests.docs.pages import blocks
from tests.kit import run

ROOT = Path(__file__).parent.parent.parent
KUBERNETES = ROOT / "integration" / "kubernetes"
IMAGES = ROOT / "integration" / "images"
FILES = ("common", "receivers", "job", "sparkapplication")
PAGES = sorted((ROOT / "docs/pages/pipeline").glob("*.md"))
TEXT = "".join(page.read_text() for page in PAGES)


def manifests(*files):
    """All documents of some files, by kind and name."""
    found = [document for file in files for document in yaml.safe_load_all((KUBERNETES / f"{file}.yaml").read_text())]
    return {(document["kind"], document["metadata"]["name"]): document for document in found}


ALL = manifests("common", "receivers", "job")
RECEIVERS = ALL["Deployment", "clicks-receivers"]["spec"]["template"]["spec"]
DRIVER = ALL["StatefulSet", "clicks-job"]["spec"]["template"]["spec"]
APPLICATION = manifests("sparkapplication")["SparkApplication", "clicks-job"]["spec"]
OPTIONS = ALL["ConfigMap", "clicks-receivers"]["data"]


def parsed(command, arguments, environment):
    """What click makes of arguments; refuses unknown ones."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        return command.make_context("x", arguments, **getattr(command, "context_settings", {})).params


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "job.toml"
    path.write_text(ALL["ConfigMap", "clicks-job"]["data"]["job.toml"])
    arguments = [each for each in DRIVER["containers"][0]["args"][1:] if not each.startswith("--config=")]
    values = parsed(job_command, [f"--config={path}", *arguments], {})
    return load_settings(str(path), {"spark": values["spark"]})


def test_receivers_write_what_the_job_reads_and_probes_ask_their_health_address(config):
    [container] = RECEIVERS["containers"]
    assert container["args"][:3] == ["python", "-m", "gnsq.spark.receiver"]
    values = parsed(receiver_command, container["args"][3:], OPTIONS)

    [source] = [query.source for query in config.queries if query.name == container["name"]]
    names = ("topic", "channel", "spool")
    assert [values[name] for name in names] == [source[name] for name in names]
    assert set(values["lookupd_http_addresses"]) == set(config.lookupd_http_addresses)
    assert values["max_spool_bytes"] == int(source["maxSpoolBytes"])
    assert config.receivers == "external"
    port = int(values["health_address"].rpartition(":")[2])
    live, ready = (container[f"{name}Probe"]["httpGet"] for name in ("liveness", "readiness"))
    assert (live, ready) == ({"path": "/live", "port": port}, {"path": "/ready", "port": port})


[WORKER] = [block.code for block in blocks("guides/kubernetes.md") if "kind: Deployment" in block.code]


@pytest.mark.parametrize("document", [*ALL.values(), yaml.safe_load(WORKER)], ids=lambda document: document["kind"])
def test_manifest_fits_the_schema_of_kubernetes(document):
    kubernetes_validate = pytest.importorskip("kubernetes_validate")

    kubernetes_validate.validate(document, kubernetes_validate.latest_version(), strict=True)


def test_spark_application_fits_the_schema_of_the_operator():
    models = pytest.importorskip("kubeflow_spark_api.models")
    [document] = manifests("sparkapplication").values()

    # It leaves out what it does not know.
    assert models.SparkV1beta2SparkApplication.from_dict(document).to_dict() == document


def test_receivers_may_end_in_order_and_have_variables_of_the_program():
    assert RECEIVERS["terminationGracePeriodSeconds"] > CLOSE_TIMEOUT + 1 + WRITE_TIMEOUT
    assert "ends within 20 s" in (KUBERNETES / "receivers.yaml").read_text()
    assert set(OPTIONS) <= {parameter.envvar for parameter in receiver_command.params}
    assert all(all(manifests(file)) for file in FILES)


def test_files_and_volumes_of_pods_exist():
    secrets = {f"/etc/nsq/{name}" for name in ALL["Secret", "nsq"]["stringData"]}
    used = {value for value in OPTIONS.values() if value.startswith("/")}
    used |= set(re.findall(r'"(/etc/nsq/[^"]*)"', ALL["ConfigMap", "clicks-job"]["data"]["job.toml"]))

    assert used == secrets
    for pod in (RECEIVERS, DRIVER):
        volumes = {volume["name"] for volume in pod["volumes"]}
        for container in pod["containers"]:
            assert {mount["name"] for mount in container["volumeMounts"]} <= volumes
        for volume in pod["volumes"]:
            [(kind, names)] = [each for each in volume.items() if each[0] != "name"]
            name = next(value for key, value in names.items() if key in ("name", "claimName", "secretName"))
            title = {"configMap": "ConfigMap", "secret": "Secret", "persistentVolumeClaim": "PersistentVolumeClaim"}
            assert (title[kind], name) in ALL


def test_operator_gives_the_job_the_same_files():
    assert APPLICATION["arguments"] == ["--config=/etc/job/job.toml"]
    driver = APPLICATION["driver"]
    assert ("ConfigMap", driver["configMaps"][0]["name"]) in ALL
    assert driver["configMaps"][0]["path"] == "/etc/job"
    assert ("ServiceAccount", driver["serviceAccount"]) in ALL
    assert driver["secrets"] == [{"name": "nsq", "path": "/etc/nsq", "secretType": "Generic"}]
    for pod in (driver, APPLICATION["executor"]):
        assert pod["volumeMounts"] == [{"name": "work", "mountPath": "/work"}]


# --- the image


def test_files_of_the_image_exist():
    dockerfile = (IMAGES / "pipeline.Dockerfile").read_text()

    for line in re.findall(r"^COPY (integration/.*) /opt/gnsq/$", dockerfile, re.MULTILINE):
        assert all((ROOT / name).exists() for name in line.split())
    assert APPLICATION["mainApplicationFile"] == "local:///opt/gnsq/job.py"
    assert "/opt/gnsq/entrypoint.sh" in dockerfile


@pytest.fixture
def entrypoint(tmp_path):
    if not shutil.which("bash"):
        pytest.skip("there is no bash on PATH, which the image has")
    """Run the entry point, with programs that print their arguments in place of Java and spark-submit."""
    for name in ("bin/java", "bin/spark-submit"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text('#!/bin/sh\nprintf "%s\\n" "$0" "$@"\n')
        (tmp_path / name).chmod(0o755)

    def run_entrypoint(*arguments, **environment):
        homes = {"SPARK_HOME": str(tmp_path), "JAVA_HOME": str(tmp_path)}
        command = ["bash", str(IMAGES / "entrypoint.sh"), *arguments]
        environment = {"PATH": os.environ["PATH"], **homes, **environment}
        done = run(*command, env=environment)
        done.check_returncode()
        return done.stdout.replace(str(tmp_path), "HOME").splitlines()

    return run_entrypoint


@pytest.mark.subprocess
def test_entry_point_runs_the_driver_or_any_command(entrypoint):
    assert entrypoint("echo", "a b") == ["a b"]
    assert entrypoint("driver", "--class", "X", SPARK_DRIVER_BIND_ADDRESS="10.0.0.1") == [
        *["HOME/bin/spark-submit", "--deploy-mode", "client", "--conf", "spark.driver.bindAddress=10.0.0.1"],
        *["--class", "X"],
    ]


@pytest.mark.subprocess
def test_entry_point_runs_an_executor(entrypoint):
    given = {
        "SPARK_JAVA_OPT_0": "-Da=b c",
        "SPARK_EXECUTOR_MEMORY": "2g",
        "SPARK_CONF_DIR": "/opt/spark/conf",
        "SPARK_DRIVER_URL": "spark://driver",
        "SPARK_EXECUTOR_ID": "1",
        "SPARK_EXECUTOR_CORES": "2",
        "SPARK_APPLICATION_ID": "app",
        "SPARK_EXECUTOR_POD_IP": "10.0.0.2",
        "SPARK_RESOURCE_PROFILE_ID": "0",
        "SPARK_EXECUTOR_POD_NAME": "pod",
    }

    java, *options = entrypoint("executor", **given)

    assert java == "HOME/bin/java"
    assert options[:4] == ["-Da=b c", "-Xms2g", "-Xmx2g", "-cp"]
    assert options[4].startswith("/opt/spark/conf::HOME/jars/*:")
    name = options[5].replace(".", "/") + ".class"
    [jar] = (Path(pyspark.__file__).parent / "jars").glob("spark-kubernetes_*.jar")
    assert name in zipfile.ZipFile(jar).namelist()
    assert dict(zip(options[6::2], options[7::2], strict=True)) == {
        "--driver-url": "spark://driver",
        "--executor-id": "1",
        "--cores": "2",
        "--app-id": "app",
        "--hostname": "10.0.0.2",
        "--resourceProfileId": "0",
        "--podName": "pod",
    }


# --- the pages


def flags_of(command):
    return {flag for parameter in command.params for flag in (*parameter.opts, *parameter.secondary_opts)}


def test_flags_in_the_text_are_those_of_the_programs():
    known = flags_of(receiver_command) | flags_of(job_command)
    known |= {"--nsqd", "--help"}  # of gnsq
    known |= {"--master", "--deploy-mode", "--conf", "--archives", "--py-files"}  # of spark-submit
    known |= {"--mem-queue-size"}  # of nsqd
    known |= {"--file", "--read-only", "--stop-timeout", "--tag", "--tmpfs", "--user", "--volume"}  # of docker
    known |= {"--yes", "--prefix"}  # of pip and venv-pack
    known |= {"--descriptor", "--include"}  # parts of those of protoc

    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", TEXT)) <= known


def test_variables_in_the_text_are_those_of_the_programs():
    known = {parameter.envvar for parameter in receiver_command.params if isinstance(parameter, click.Option)}
    known.add("GNSQ_RECEIVER_AUTH_SECRET")

    assert set(re.findall(r"GNSQ_RECEIVER_[A-Z_]+", TEXT)) <= known


def test_files_in_the_text_exist():
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", TEXT)

    assert links
    assert [link for link in links if not (PAGES[0].parent / link).exists()] == []
