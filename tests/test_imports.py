"""Who may import whom, and what is not loaded before it is used."""

import ast
import functools
from pathlib import Path

import pytest

import gnsq
from tests.helpers import run_program

ROOT = Path(__file__).parent.parent

CORE = ["errors", "options", "texts"]
PURE = [*CORE, "protocol"]
THREADS = ["natives", "doors", "crossing", "hubthread"]
SMALL = [
    "addresses",
    "backofftimer",
    "breath",
    "clock",
    "endless",
    *THREADS,
    "rdy",
    "repeats",
    "states",
    "stats",
    "tls",
]
BELOW = [*PURE, *SMALL, "message", "signals", "transport", "layers"]
CLIENT = [*BELOW, "http", "httpclient", "nsqd", "lookupd"]

# Module (or package): what of gnsq it may import. Source: the house plan, "Who may import whom".
GNSQ = {
    "errors": [],
    "options": ["errors", "texts"],
    "protocol": PURE,
    "message": PURE,
    "addresses": PURE,
    "backofftimer": PURE,
    "rdy": PURE,
    "clock": [],
    "endless": ["clock"],
    "doors": [],
    "localfiles": [],
    "natives": [],
    "crossing": ["doors", "natives"],
    "hubthread": ["crossing", "doors", "natives"],
    "repeats": ["texts"],
    "signals": ["errors", "message"],
    "states": [],
    "stats": [],
    "transport": [*PURE, "addresses", "clock"],
    "texts": [],
    "tls": [],
    "breath": [],
    "layers": [*PURE, "breath", "tls", "transport"],
    # Of nsqd its module forks.
    "http": ["doors", "errors", "nsqd", "tls"],
    "httpclient": [*PURE, "addresses", "http", "natives", "tls"],
    "nsqd": CLIENT,
    "lookupd": CLIENT,
    "discovery": CLIENT,
    "util": [*CLIENT, "discovery"],
    "pool": CLIENT,
    "consumer": [*CLIENT, "pool", "discovery", "signals", "hubthread"],
    "producer": [*CLIENT, "pool", "discovery", "signals", "hubthread"],
    "contrib": [*CLIENT, "localfiles", "consumer", "producer", "stats"],
    "deprecated": [*CLIENT, "consumer"],
    "reader": ["deprecated"],
}
PURE_MODULES = [
    "gnsq/errors.py",
    "gnsq/options.py",
    "gnsq/protocol/*.py",
    "gnsq/addresses.py",
    "gnsq/backofftimer.py",
    "gnsq/contrib/envelope.py",
    "gnsq/nsqd/proven.py",
    "gnsq/producer/httpoutcomes.py",
    "gnsq/producer/outcomes.py",
    "gnsq/producer/stalls.py",
    "gnsq/producer/strategies.py",
    "gnsq/http/responses.py",
    "gnsq/http/validation.py",
    "gnsq/rdy.py",
    "gnsq/stats.py",
    "gnsq/texts.py",
    *[
        f"gnsq/spark/{name}.py"
        for name in ["collector", "drain", "failures", "gauge", "locations", "offsets", "options", "rowkey", "topics"]
    ],
    *[f"gnsq/spark/pipeline/{name}.py" for name in ["counts", "hours", "report", "schema"]],
    *[
        f"fakensqd/{name}.py"
        for name in [
            *["auth", "broker", "channel", "disk", "effects", "flags", "goflags", "gojson", "gotext", "http_api"],
            *["identify", "ids", "commands", "config", "http_head", "latency", "message_queue", "output"],
            *["lookupd_http", "lookupd_session", "nsqd_http", "opening", "options", "reader"],
            *["registry", "session", "stats", "faults/chain", "faults/toxics", "old_http", "scan"],
            *["line", "publishing", "tap", "transcript"],
            *[f"faults/{name}" for name in ["action", "actions", "jsonform", "match", "passage", "scenario", "watch"]],
        ]
    ],
]
IMPURE = {"gevent", "socket", "logging", "time", "threading", "requests", "select"}
# The host's own name is a fact that IDENTIFY carries.
ALLOWED = {("gnsq/options.py", "socket")}


@functools.cache
def imported(path):
    """Absolute names of all that a file imports outside of TYPE_CHECKING blocks."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module}
    return names


def files(pattern):
    return sorted(ROOT.glob(pattern))


@pytest.mark.parametrize("module", sorted(GNSQ))
def test_gnsq_modules_import_only_what_lies_below_them(module):
    paths = files(f"gnsq/{module}.py") + files(f"gnsq/{module}/**/*.py")
    assert paths
    for path in paths:
        used = {name.split(".")[1] for name in imported(path) if name.startswith("gnsq.")}
        assert used <= {module, *GNSQ[module]}, path


def test_every_module_of_gnsq_has_its_row():
    found = {path.stem for path in files("gnsq/*.py")} | {path.parent.name for path in files("gnsq/*/__init__.py")}

    assert found - {"__init__", "gnsq", "spark"} == set(GNSQ)


@pytest.mark.parametrize("path", [path for pattern in PURE_MODULES for path in files(pattern)], ids=str)
def test_pure_modules_touch_no_outside_world(path):
    used = {name.split(".")[0] for name in imported(path)}
    relative = str(path.relative_to(ROOT))

    assert {name for name in used & IMPURE if (relative, name) not in ALLOWED} == set()


def test_gnsq_never_imports_fakensqd():
    for path in files("gnsq/**/*.py"):
        if path.name.startswith("demo"):
            continue
        assert not {name for name in imported(path) if name.split(".")[0] == "fakensqd"}, path


def test_spark_uses_public_names_of_gnsq():
    public = {*gnsq.__all__, "errors", "hubthread", "localfiles", "options", "protocol", "spark", "texts"}
    for path in files("gnsq/spark/**/*.py"):
        used = {name.split(".")[1] for name in imported(path) if name.startswith("gnsq.")}
        assert used <= public, path


def test_pyspark_is_imported_below_spark_only():
    for path in files("gnsq/**/*.py") + files("fakensqd/**/*.py"):
        if ROOT / "gnsq" / "spark" in path.parents:
            continue
        assert not {name for name in imported(path) if name.split(".")[0] in ("pyspark", "pyarrow")}, path


def test_emulator_uses_the_shared_protocol_and_threads_only():
    for path in files("fakensqd/**/*.py"):
        used = {name for name in imported(path) if name.startswith("gnsq.")}
        assert {name.split(".")[1] for name in used} <= {
            *["protocol", "errors", "options", "texts", "clock", "transport", "layers", "hubthread"]
        }, path


def test_nothing_monkey_patches():
    for path in files("gnsq/**/*.py") + files("fakensqd/**/*.py"):
        assert "patch_all(" not in path.read_text(), path


def run(code):
    return run_program(code).stdout.split()


@pytest.mark.subprocess
def test_import_loads_nothing_heavy():
    loaded = run("import sys, gnsq; print(*sorted(name for name in sys.modules if '.' not in name))")

    assert not {"pyspark", "pyarrow", "snappy", "requests", "cryptography", "click", "rich", "ssl"} & set(loaded)


@pytest.mark.subprocess
def test_import_starts_nothing():
    code = (
        "import threading, gnsq, fakensqd\n"
        "from gevent._hub_local import get_hub_if_exists\n"
        "print(threading.active_count(), get_hub_if_exists())"
    )

    assert run(code) == ["1", "None"]
