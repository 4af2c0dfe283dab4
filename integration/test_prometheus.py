"""A real Prometheus scrapes consumers, producers and nsqds, and evaluates all queries of the dashboards and alerts."""

import itertools
import json
import shutil
import time

import pytest
import requests
from prometheus_client import CollectorRegistry, start_http_server

from gnsq import Consumer, Producer
from gnsq.contrib.prometheus import NsqdCollector, StatsCollector
from tests.docs.test_dashboards import DASHBOARDS, FOLDER, dashboard, rules
from tests.kit import child, refused_port, wait_until

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(shutil.which("prometheus") is None, reason="Prometheus is not installed"),
]

# What is 0 or absent while nothing fails: an expression with one of them may have no result.
MAY_BE_EMPTY = ("gnsq_pipeline_", "gnsq_receiver_")


@pytest.fixture
def metrics(nsqd, topic):
    """Serve the metrics of a consumer and a producer that work, and of nsqd; yields the address."""
    registry = CollectorRegistry()
    server, _ = start_http_server(0, "127.0.0.1", registry)
    consumer = Consumer(topic, "c", nsqd.tcp_address, message_handler=lambda consumer, message: None, max_in_flight=10)
    collector = NsqdCollector(nsqd.http_address)
    with consumer, Producer(nsqd.tcp_address) as producer:
        registry.register(StatsCollector(consumer, producer))
        registry.register(collector)
        yield f"127.0.0.1:{server.server_port}", producer
    collector.close()
    server.shutdown()
    server.server_close()


@pytest.fixture
def prometheus(tmp_path, metrics):
    """A Prometheus that scrapes these metrics twice a second; yields its address."""
    address = f"127.0.0.1:{refused_port()}"
    configuration = {
        "global": {"scrape_interval": "500ms", "evaluation_interval": "1s"},
        "scrape_configs": [{"job_name": "j", "static_configs": [{"targets": [metrics[0]]}]}],
        "rule_files": [str(FOLDER / "alerts.yml")],
    }
    (tmp_path / "prometheus.yml").write_text(json.dumps(configuration))  # JSON is YAML, too
    flags = [f"--config.file={tmp_path}/prometheus.yml", f"--storage.tsdb.path={tmp_path}/data"]
    with child("prometheus", *flags, f"--web.listen-address={address}", "--log.level=error", stderr=None):
        yield address


def query(address, expression):
    found = requests.get(f"http://{address}/api/v1/query", {"query": expression}, timeout=10).json()
    assert found["status"] == "success", f"{expression}: {found}"
    return found["data"]["result"]


def is_scraped(address):
    try:
        is_ready = requests.get(f"http://{address}/-/ready", timeout=10).ok
    except requests.ConnectionError:
        return False
    return is_ready and bool(query(address, "count_over_time(up[1m]) >= 6"))


def test_queries_of_dashboards_and_alerts_have_results(prometheus, metrics, topic):
    _, producer = metrics
    started = time.monotonic()
    while not is_scraped(prometheus):
        producer.publish(topic, b"1")
        wait_until(lambda: time.monotonic() - started < 60)
    variables = {"$job": "j", "$topic": topic, "$channel": ".*", "$query": ".*", "$__rate_interval": "5s"}

    panels = itertools.chain.from_iterable(dashboard(name)["panels"] for name in DASHBOARDS)
    empty = set()
    for expression in (target["expr"] for panel in panels for target in panel["targets"]):
        for name, value in variables.items():
            expression = expression.replace(name, value)
        if not query(prometheus, expression) and not any(name in expression for name in MAY_BE_EMPTY):
            empty.add(expression)

    assert empty == set()
    assert float(query(prometheus, "sum(rate(gnsq_consumer_messages_finished_total[5s]))")[0]["value"][1]) > 0
    groups = requests.get(f"http://{prometheus}/api/v1/rules", timeout=10).json()["data"]["groups"]
    evaluated = {rule["name"]: rule["health"] for group in groups for rule in group["rules"]}
    assert evaluated.keys() == {rule["alert"] for rule in rules()}
    assert set(evaluated.values()) <= {"ok", "unknown"}
    assert query(prometheus, 'ALERTS{severity="critical"}') == []
