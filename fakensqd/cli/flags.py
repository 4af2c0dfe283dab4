"""The flags of nsqd and nsqlookupd 1.3.0: one row each, with the option that it sets.

Pure. Source: nsqd --help, nsqlookupd --help; apps/nsqd/options.go, nsqd/options.go NewOptions.
"""

from __future__ import annotations

import dataclasses
import hashlib
import zlib
from collections.abc import Mapping
from typing import Any

from fakensqd.golang.flags import Flag, Value
from fakensqd.options import LookupdOptions, NsqdOptions
from gnsq.options import Options

__all__ = [
    "LOOKUPD_FLAGS",
    "NSQD_FLAGS",
    "check_start",
    "default_node_id",
    "faults_flags",
    "options_of",
    "ignored_flags",
]

# What the program itself uses.
_COMMON = [
    Flag("version", "bool", meaning="print the version and exit"),
    Flag("config", "string", meaning="TOML file to read options from; a flag overrides it"),
    Flag("verbose", "bool"),
]
_USED = frozenset({"version", "config", "log-level", "log-prefix"})


def _option(
    name: str,
    kind: str,
    field: str = "",
    default: Value | None = None,
    config: str = "",
    *,
    options: type[Options] = NsqdOptions,
) -> Flag:
    """Make the row of a flag that sets an option, of the same name unless another is given."""
    field = field or name.replace("-", "_")
    of_option = next(item for item in dataclasses.fields(options) if item.name == field)
    of_options: Any = of_option.default  # Any: options are of all types
    return Flag(name, kind, field, of_options if default is None else default, of_option.metadata["meaning"], config)


NSQD_FLAGS = (
    *_COMMON,
    _option("log-level", "log-level"),
    Flag("log-prefix", "string", default="[nsqd] ", meaning="begins each line of the log"),
    _option("tcp-address", "string", default="0.0.0.0:4150"),
    _option("http-address", "string", default="0.0.0.0:4151"),
    _option("https-address", "string", default="0.0.0.0:4152"),
    # The default is the host's name.
    _option("broadcast-address", "string", default=""),
    _option("broadcast-tcp-port", "int"),
    _option("broadcast-http-port", "int"),
    _option("lookupd-tcp-address", "list", "lookupd_tcp_addresses", config="nsqlookupd_tcp_addresses"),
    _option("auth-http-address", "list", "auth_http_addresses", config="auth_http_addresses"),
    _option("http-client-connect-timeout", "duration"),
    _option("http-client-request-timeout", "duration"),
    Flag(
        *("data-path", "string", "data_path", "."),
        meaning="existing directory where topics, channels and messages outlive this nsqd",
    ),
    _option("mem-queue-size", "int"),
    # The default is made of the host's name.
    _option("node-id", "int", config="id"),
    _option("max-msg-size", "int"),
    _option("max-body-size", "int"),
    _option("msg-timeout", "duration"),
    _option("max-msg-timeout", "duration"),
    _option("max-req-timeout", "duration"),
    _option("max-rdy-count", "int"),
    _option("max-heartbeat-interval", "duration"),
    _option("max-output-buffer-size", "int"),
    _option("max-output-buffer-timeout", "duration"),
    _option("min-output-buffer-timeout", "duration"),
    _option("output-buffer-timeout", "duration"),
    _option(
        "e2e-processing-latency-percentile",
        "floats",
        "e2e_processing_latency_percentiles",
        config="e2e_processing_latency_percentiles",
    ),
    _option("e2e-processing-latency-window-time", "duration"),
    _option("max-channel-consumers", "int"),
    _option("tls-cert", "string"),
    _option("tls-key", "string"),
    _option("tls-root-ca-file", "string"),
    _option("tls-client-auth-policy", "string"),
    _option("tls-required", "tls-required"),
    _option("tls-min-version", "tls-min-version"),
    _option("snappy", "bool"),
    _option("deflate", "bool"),
    _option("max-deflate-level", "int"),
    Flag("worker-id", "bool"),
    Flag("max-bytes-per-file", "int"),
    Flag("sync-every", "int"),
    Flag("sync-timeout", "duration"),
    Flag("queue-scan-selection-count", "int"),
    Flag("queue-scan-worker-pool-max", "int"),
    Flag("statsd-address", "string"),
    Flag("statsd-interval", "duration"),
    Flag("statsd-prefix", "string"),
    Flag("statsd-mem-stats", "bool"),
    Flag("statsd-udp-packet-size", "int"),
    Flag("statsd-exclude-ephemeral", "bool"),
)

LOOKUPD_FLAGS = (
    *_COMMON,
    Flag("log-level", "log-level", default="info", meaning="debug, info, warn, error or fatal"),
    Flag("log-prefix", "string", default="[nsqlookupd] ", meaning="begins each line of the log"),
    _option("tcp-address", "string", default="0.0.0.0:4160", options=LookupdOptions),
    _option("http-address", "string", default="0.0.0.0:4161", options=LookupdOptions),
    # The default is the host's name.
    _option("broadcast-address", "string", default="", options=LookupdOptions),
    _option("inactive-producer-timeout", "duration", options=LookupdOptions),
    _option("tombstone-lifetime", "duration", options=LookupdOptions),
)


def faults_flags(program: str) -> tuple[Flag, ...]:
    """Give the flags that the real programs do not have."""
    port = 4153 if program == "nsqd" else 4163
    return (
        Flag("faults-over-http", "bool", "faults_over_http", meaning="let /faults steer rules, toxics and states"),
        Flag(
            *("faults-http-address", "string", "faults_http_address", f"127.0.0.1:{port}"),
            meaning="where /faults answers in every state; given, it implies --faults-over-http",
        ),
    )


def options_of(flags: tuple[Flag, ...], values: Mapping[str, Value], *, hostname: str) -> dict[str, Value]:
    """Turn flags into keyword arguments of FakeNsqd or FakeLookupd, with the defaults of the real programs."""
    options = {
        flag.field: values.get(flag.name, flag.default)
        for flag in flags
        if flag.field and (flag.name in values or flag.default is not None)
    }
    found = {name: value for name, value in options.items() if value is not None}
    if "faults-http-address" in values:
        found.setdefault("faults_over_http", True)
    if "broadcast-address" not in values:
        found["broadcast_address"] = hostname
    if found.get("data_path") == "":
        found["data_path"] = "."
    if "node_id" in found and "node-id" not in values:
        found["node_id"] = default_node_id(hostname)
    return found


def check_start(options: Mapping[str, Any]) -> None:  # Any: options are of all types
    """Check what nsqd does before it starts, in its order and its words. Source: nsqd nsqd.go New.

    Raises:
        ValueError: If it would not start.
    """
    if not 1 <= options["max_deflate_level"] <= 9:
        raise ValueError("--max-deflate-level must be [1,9]")
    if not 0 <= options["node_id"] < 1024:
        raise ValueError("--node-id must be [0,1024)")
    certificate, key, root = (options.get(name, "") for name in ("tls_cert", "tls_key", "tls_root_ca_file"))
    if certificate or key:
        _check_file(certificate, "TLS", "tls: failed to find any PEM data in certificate input")
        _check_file(key, "TLS", "tls: failed to find any PEM data in key input")
    elif options.get("tls_client_auth_policy") or options.get("tls_required", "false") != "false":
        raise ValueError("cannot require TLS client connections without TLS key and cert")
    if root:
        _check_file(root, "TLS" if certificate else "client TLS", "failed to append certificate to pool")


def _check_file(path: str, purpose: str, complaint: str) -> None:
    try:
        with open(path, "rb") as file:
            good = b"-----BEGIN " in file.read()
    except OSError as error:
        good, complaint = False, f"open {path}: {str(error.strerror).lower()}"
    if not good:
        raise ValueError(f"failed to build {purpose} config - {complaint}")


def ignored_flags(flags: tuple[Flag, ...], values: Mapping[str, Value]) -> list[str]:
    """List the flags that are there and do nothing."""
    return [flag.name for flag in flags if flag.name in values and not flag.field and flag.name not in _USED]


def default_node_id(hostname: str) -> int:
    """Make nsqd's number out of its host's name. Source: nsqd options.go NewOptions."""
    return zlib.crc32(hashlib.md5(hostname.encode(), usedforsecurity=False).digest()) % 1024
