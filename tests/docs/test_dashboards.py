"""The dashboards and alert rules ask for metrics that exist, and alert when they should."""

import itertools
import json
import re
import shutil

import pytest
import yaml

from tests.docs.pages import ROOT, hooks
from tests.kit import run

pytest.importorskip("pyspark")

FOLDER = ROOT / "docs/pages/observability"
DASHBOARDS = ("consumers", "producers", "pipeline")
_METRIC = re.compile(r"\bgnsq_\w+")
_SUFFIXES = {"counter": ("_total",), "gauge": ("",), "histogram": ("_bucket", "_sum", "_count")}
METRICS = {
    f"gnsq_{family.name}{suffix}": family.labels
    for side in ("consumer", "producer", "nsq", "pipeline", "receiver")
    for family in hooks.families(side)
    for suffix in _SUFFIXES[family.kind]
}
promtool = pytest.mark.skipif(shutil.which("promtool") is None, reason="Prometheus' promtool is not installed")


def dashboard(name):
    return json.loads((FOLDER / f"{name}.json").read_text())


def rules():
    groups = yaml.safe_load((FOLDER / "alerts.yml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def expressions():
    for name in DASHBOARDS:
        document = dashboard(name)
        for panel in document["panels"]:
            yield from (target["expr"] for target in panel["targets"])
        yield from (variable["definition"] for variable in document["templating"]["list"] if "definition" in variable)
    yield from (rule["expr"] for rule in rules())


def test_expressions_name_metrics_that_exist():
    used = {metric for expression in expressions() for metric in _METRIC.findall(expression)}

    assert used - METRICS.keys() == set()


def test_legends_and_texts_name_labels_that_the_expressions_keep():
    for panel in itertools.chain.from_iterable(dashboard(name)["panels"] for name in DASHBOARDS):
        for target in panel["targets"]:
            kept = set(re.findall(r"\w+", "".join(re.findall(r"by \((.*?)\)", target["expr"]))))
            assert set(re.findall(r"{{(\w+)}}", target["legendFormat"])) <= kept, panel["title"]
    for rule in rules():
        texts = " ".join(rule["annotations"].values())
        names = set(re.findall(r"\$labels\.(\w+)", texts))
        grouped = re.search(r"sum by \((.*?)\)", rule["expr"])
        own = set().union(*(METRICS[metric] for metric in _METRIC.findall(rule["expr"])), {"job", "instance"})
        assert names <= (set(re.findall(r"\w+", grouped[1])) if grouped else own), rule["alert"]


@pytest.mark.parametrize("name", DASHBOARDS)
def test_panels_are_described_and_do_not_overlap(name):
    document = dashboard(name)
    cells = [
        (x, y)
        for panel in document["panels"]
        for position in [panel["gridPos"]]
        for x in range(position["x"], position["x"] + position["w"])
        for y in range(position["y"], position["y"] + position["h"])
    ]

    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) == 23
    assert all(panel["description"].endswith(".") and panel["title"] for panel in document["panels"])
    assert len({panel["id"] for panel in document["panels"]}) == len(document["panels"])


def test_alerts_say_what_to_do_and_how_urgent_they_are():
    assert len({rule["alert"] for rule in rules()}) == len(rules())
    for rule in rules():
        assert rule["labels"]["severity"] in ("critical", "warning")
        assert rule["annotations"].keys() == {"summary", "description"}


@promtool
@pytest.mark.subprocess
@pytest.mark.parametrize(
    "command",
    [["check", "rules", FOLDER / "alerts.yml"], ["test", "rules", ROOT / "tests/docs/alerts_test.yml"]],
    ids=["rules are valid", "rules alert when they should"],
)
def test_promtool(command):
    done = run("promtool", *map(str, command))

    assert done.returncode == 0, done.stdout + done.stderr
