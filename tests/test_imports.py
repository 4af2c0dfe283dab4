"""Imports: no circles, allowed folders, and no effects of importing."""

import ast
import functools
import re
from pathlib import Path

import pytest

from tests.kit import run_program

ROOT = Path(__file__).parent.parent
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for root in ("gnsq", "fakensqd")
    for path in sorted((ROOT / root).rglob("*.py"))
}


def imported(path):
    """Return all imports of a file, also under TYPE_CHECKING, in functions, and by import_module("...")."""
    text = path.read_text()
    used = set(re.findall(r'import_module\("([\w.]+)"\)', text))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            used |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            used |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module}
    return used


@functools.cache
def imported_by_module():
    # Not at the import of these tests: each worker would read all files, and one of them runs the tests.
    return {module: imported(path) for module, path in MODULES.items()}


def reachable(graph, start):
    seen, todo = set(), [start]
    while todo:
        for name in graph[todo.pop()] - seen:
            seen.add(name)
            todo.append(name)
    return seen


def test_no_import_circles():
    # A module may import the package that it is in: Python has loaded that before.
    graph = {
        module: {name for name in used if name in MODULES and name != module and not module.startswith(name + ".")}
        for module, used in imported_by_module().items()
    }
    reach = {module: reachable(graph, module) for module in MODULES}
    circles = {tuple(sorted(n for n in reach[m] if m in reach[n])) for m in MODULES if m in reach[m]}

    assert circles == set()


def test_integration_imports_names_that_are_there():
    # Most of these programs run rarely, so that a name that was removed would be found late.
    missing = [
        f"{path.name}: {name}"
        for path in sorted((ROOT / "integration").rglob("*.py"))
        for name in sorted(imported(path))
        if name not in MODULES
        and (module := name.rpartition(".")[0]) in MODULES
        and not re.search(rf"\b{name.rpartition('.')[2]}\b", MODULES[module].read_text())
    ]

    assert missing == []


BASE = {
    *["addresses", "clock", "concurrency", "errors", "localfiles", "options", "protocol", "settings", "stats", "texts"],
    "tracebacks",
}
NSQD = {
    *["backofftimer", "http", "httpclient", "logs", "message", "signals", "states", "tls", "transport"],
    *BASE,
}
CLIENT = {*NSQD, "census", "discovery", "lifecycle", "lookupd", "nsqd"}
# A folder of gnsq: which modules and folders of gnsq its modules may import besides their own.
FOLDERS = {
    "protocol": {"errors", "options", "texts"},
    "concurrency": {"clock", "errors", "texts"},
    "http": {
        *["addresses", "backofftimer", "concurrency", "errors", "options", "protocol", "texts", "tls", "transport"]
    },
    "nsqd": NSQD,
    "consumer": {*CLIENT, "dead_letter", "producer"},
    "producer": CLIENT,
    "contrib": {*CLIENT, "consumer", "dead_letter", "producer"},
    "cli": {*CLIENT, "consumer", "contrib", "dead_letter", "producer", "running"},
    "spark": {
        *["Consumer", "LookupdClient", "Message", "NsqdHTTPClient", "Producer", "PublishResult"],
        *["addresses", "backofftimer", "census", "cli", "concurrency", "consumer", "contrib"],
        *["dead_letter", "errors", "finish_all"],
        *["localfiles", "logs", "options", "producer", "protocol", "running", "settings", "startup", "stats"],
        *["texts", "tls"],
    },
}


@pytest.mark.parametrize("folder", sorted(FOLDERS))
def test_folder_imports_only_the_folders_below_it(folder):
    for module in MODULES:
        if module.split(".")[1:2] == [folder]:
            used = {name.split(".")[1] for name in imported_by_module()[module] if name.startswith("gnsq.")}
            assert used <= FOLDERS[folder] | {folder}, module


def test_every_folder_of_gnsq_has_its_row():
    assert {path.parent.name for path in ROOT.glob("gnsq/*/__init__.py")} == set(FOLDERS)


def test_gnsq_never_imports_fakensqd():
    users = {
        module for module, used in imported_by_module().items() if any(name.startswith("fakensqd") for name in used)
    }

    assert {module for module in users if module.startswith("gnsq")} == set()


def test_emulator_uses_what_client_and_server_share_only():
    for module in MODULES:
        if module.startswith("fakensqd"):
            used = {name.split(".")[1] for name in imported_by_module()[module] if name.startswith("gnsq.")}
            assert used <= {*BASE, "tls", "transport"} - {"addresses", "localfiles", "stats"}, module


def test_pyspark_is_imported_below_spark_only():
    for module, used in imported_by_module().items():
        if not module.startswith("gnsq.spark"):
            assert not {"pyspark", "pyarrow"} & {name.split(".")[0] for name in used}, module


def test_imports_in_strings_are_those_of_the_tables_of_names():
    by_string = {module for module, path in MODULES.items() if "import_module(" in path.read_text()}

    # gnsq.nsqd and the command line load their classes and commands when these are used.
    # gnsq.contrib.sentry loads the user's SDK, and the pipeline's job the functions of the settings setup and sink.
    of_others = {"gnsq.contrib.sentry", "gnsq.spark.pipeline.query"}
    assert by_string == {"gnsq", "gnsq.nsqd", "gnsq.cli.group", "fakensqd", *of_others}


PURE = [
    *[
        f"gnsq.{name}"
        for name in [
            *["addresses", "backofftimer", "errors", "options", "stats", "texts"],
            "consumer.rdy_policy",
            *[
                "dead_letter",
                "http.responses",
                "http.options",
                "producer.publish",
                "producer.routing",
            ],
            *[
                f"spark.{name}"
                for name in ["errors", "offsets", "options", "receiver.buffer", "source.drain", "spool.index"]
            ],
        ]
    ],
    *[name for name in MODULES if name.startswith("gnsq.protocol")],
    *[
        f"fakensqd.{name}"
        for name in [
            *["effects", "golang.encoding_json", "golang.text", "router"],
            *["input_buffer", "message", "options"],
            *[f"faults.{name}" for name in ["actions", "control", "interceptor", "rules", "toxics"]],
            *[f"lookupd.{name}" for name in ["http", "registry", "session"]],
            *[f"nsqd.{name}" for name in ["auth", "broker", "channel", "commands", "http", "identify", "session"]],
            *["daemon.session", "nsqd.stats"],
        ]
    ],
]
IMPURE = {"gevent", "socket", "logging", "time", "threading", "requests", "select"}


@pytest.mark.parametrize("module", PURE)
def test_pure_module_does_no_io_and_reads_no_clock(module):
    used = {name.split(".")[0] for name in imported_by_module()[module]}

    # The host's own name is a fact that IDENTIFY carries.
    assert used & IMPURE <= ({"socket"} if module == "gnsq.protocol.handshake" else set())


def test_nothing_monkey_patches():
    assert [module for module, path in MODULES.items() if "patch_all(" in path.read_text()] == []


def run(code):
    return run_program(code).stdout.split()


@pytest.mark.subprocess
def test_import_loads_nothing_heavy():
    loaded = run("import sys, gnsq; print(*sorted(name for name in sys.modules if '.' not in name))")

    assert not {"pyspark", "pyarrow", "snappy", "requests", "cryptography", "click", "ssl"} & set(loaded)


@pytest.mark.subprocess
def test_import_starts_nothing():
    code = (
        "import threading, gnsq, fakensqd\n"
        "from gevent._hub_local import get_hub_if_exists\n"
        "print(threading.active_count(), get_hub_if_exists())"
    )

    assert run(code) == ["1", "None"]
