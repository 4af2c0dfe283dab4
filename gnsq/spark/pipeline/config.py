"""Configuration of the job: one field is one setting, of the command line and of the TOML file alike. Checks only."""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gnsq.protocol.names import assert_valid_channel_name, assert_valid_topic_name

__all__ = ["PipelineConfig", "load_config"]

_BOUNDS = {
    "watermark_delay": (0, None, "s"),
    "max_rows_per_batch": (1, None, "rows"),
    "trigger_interval": (0, None, "s"),
    "max_in_flight": (1, None, "messages"),
    "max_ahead": (0, None, "s"),
}


@dataclass(frozen=True, kw_only=True)
class PipelineConfig:
    """What the job reads, and where it writes.

    Attributes:
        topic: Click events.
        output: Directory for archive/, metrics/ and late/.
        work: Directory for spools, checkpoints and state. One job uses it, always the same.
        publish_addresses: nsqds for metrics and dead letters; default: nsqd_tcp_addresses, else those nsqlookupd knows.
        watermark_delay: Seconds that an event may be behind the latest seen before; later ones go to late/.
        max_ahead: Seconds that an event's time may be ahead of its publishing; others are malformed.
        trigger_interval: Seconds between batches; 0: as soon as there is something.
        spark: Spark's own settings.

    Raises:
        ValueError: If a setting is missing or out of bounds; the text names it.
    """

    topic: str = ""
    output: str = ""
    work: str = ""
    nsqd_tcp_addresses: tuple[str, ...] = ()
    lookupd_http_addresses: tuple[str, ...] = ()
    nsqd_http_addresses: tuple[str, ...] = ()
    publish_addresses: tuple[str, ...] = ()
    archive_channel: str = "archive"
    metrics_channel: str = "metrics"
    metrics_topic: str = ""
    dead_letter_topic: str = ""
    watermark_delay: float = 600.0
    max_ahead: float = 3600.0
    max_rows_per_batch: int = 50_000
    max_in_flight: int = 5000
    trigger_interval: float = 0.0
    spark: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("topic", "output", "work"):
            if not getattr(self, name):
                raise ValueError(f"setting {name} is required")
        for name in ("output", "work"):
            if "://" in getattr(self, name) or getattr(self, name).startswith("file:"):
                raise ValueError(f"setting {name} {getattr(self, name)!r} is a URI: give a local or mounted directory")
        if not self.nsqd_tcp_addresses and not self.lookupd_http_addresses:
            raise ValueError("no address: give nsqd_tcp_addresses or lookupd_http_addresses")
        for name in ("topic", "metrics_topic", "dead_letter_topic"):
            if getattr(self, name):
                _checked(name, assert_valid_topic_name, getattr(self, name))
        for name in ("archive_channel", "metrics_channel"):
            _checked(name, assert_valid_channel_name, getattr(self, name))
        if self.archive_channel == self.metrics_channel:
            raise ValueError(
                f"archive_channel and metrics_channel are both {self.archive_channel!r}: each would get half"
            )
        for name, (low, high, unit) in _BOUNDS.items():
            value = getattr(self, name)
            if value < low or (high is not None and value > high):
                raise ValueError(f"setting {name} {value} must be at least {low} {unit}")

    @property
    def metrics_to(self) -> str:
        """The topic of the counts."""
        return self.metrics_topic or f"{self.topic}-metrics"

    @property
    def dead_letters_to(self) -> str:
        """The topic of malformed bodies."""
        return self.dead_letter_topic or f"{self.topic}-dead"

    def source_options(self, query: str, channel: str) -> dict[str, str]:
        """Build the options of the source for one query."""
        checkpoint = self.checkpoint(query)
        return {
            "topic": self.topic,
            "channel": channel,
            "nsqdTcpAddresses": ",".join(self.nsqd_tcp_addresses),
            "lookupdHttpAddresses": ",".join(self.lookupd_http_addresses),
            "nsqdHttpAddresses": ",".join(self.nsqd_http_addresses),
            "spool": str(Path(self.work, query, "spool").absolute()),
            "spoolOwner": checkpoint,
            "maxRowsPerBatch": str(self.max_rows_per_batch),
            "maxInFlight": str(self.max_in_flight),
        }

    def checkpoint(self, query: str) -> str:
        """Where a query's checkpoint is."""
        return str(Path(self.work, query, "checkpoint").absolute())


def _checked(name: str, check: object, value: str) -> None:
    assert callable(check)  # one of the two name rules
    try:
        check(value)
    except ValueError as error:
        raise ValueError(f"setting {name}: {error}") from error


def load_config(path: str | None, overrides: Mapping[str, object]) -> PipelineConfig:
    """Read a TOML file, if any, and let what was given on the command line win.

    Raises:
        ValueError: If the file can't be read, has an unknown setting, or a setting has the wrong type or value.
    """
    values: dict[str, object] = {}
    if path is not None:
        try:
            values = tomllib.loads(Path(path).read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise ValueError(f"configuration {path}: {error}") from error
    values |= {name: value for name, value in overrides.items() if value not in (None, (), {})}
    fields = {each.name: each for each in dataclasses.fields(PipelineConfig)}
    unknown = sorted(set(values) - set(fields))
    if unknown:
        raise ValueError(f"setting {', '.join(unknown)} is unknown; settings are {', '.join(fields)}")
    # Checked one by one just below, so that what is made of them has the types it says.
    return PipelineConfig(**{name: _typed(name, str(fields[name].type), value) for name, value in values.items()})  # type: ignore[arg-type]


def _typed(name: str, kind: str, value: object) -> object:
    if kind.startswith("tuple"):
        items = [value] if isinstance(value, str) else value
        if isinstance(items, (list, tuple)) and all(isinstance(item, str) for item in items):
            return tuple(items)
        what = "a string or a list of strings"
    elif kind == "str":
        if isinstance(value, str):
            return value
        what = "a string"
    elif kind.startswith("Mapping"):
        if isinstance(value, Mapping):
            return {key: str(item).lower() if isinstance(item, bool) else str(item) for key, item in value.items()}
        what = "a table"
    elif isinstance(value, bool) or not isinstance(value, (int, float)):
        what = "a number"
    elif kind == "int" and not isinstance(value, int):
        what = "a whole number"
    else:
        return value
    raise ValueError(f"setting {name} {value!r} is not {what}")
