"""Batches: what identifies a batch, and the checks that a table makes for one. Pure."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass

from gnsq.spark.errors import JobFailed
from gnsq.texts import counted

__all__ = [
    "EPOCH",
    "OWNER",
    "BatchIdentity",
    "CommittedBatch",
    "TableStatus",
    "check_owner",
    "epoch_of",
    "is_committed",
    "missing_columns",
    "missing_table",
]

# Properties of a table: the id of its checkpoint; and, with a checkpoint's id appended, the epoch of that checkpoint.
OWNER, EPOCH = "gnsq.owner", "gnsq.epoch."


@dataclass(frozen=True, slots=True)
class BatchIdentity:
    """Which batch runs.

    Attributes:
        owner: Spark's id of the query.
        number: Spark's id of the batch.
        offsets: Hash of what the checkpoint says about the batch, since a checkpoint that has lost its newest files may
            give the same number to another batch. 0 if unknown.
        settings: Hash of the settings that divide the rows of a batch between tables.
    """

    owner: str
    number: int
    offsets: int
    settings: int

    @property
    def unchecked(self) -> int:
        """The batch before, if the checks at the start could not read it in the checkpoint; else -1."""
        return self.number - 1 if self.offsets == 0 else -1


@dataclass(frozen=True, slots=True)
class CommittedBatch:
    """The last batch of a checkpoint that a table has. The hashes are as in BatchIdentity; None if they are unknown."""

    number: int
    offsets: int | None = None
    settings: int | None = None


@dataclass(frozen=True, slots=True)
class TableStatus:
    """State of a table, as far as it is known.

    Attributes:
        rows, files, size: Of the table's newest version; size in bytes.
        committed_at: When a batch was committed last; None if the newest 120 log entries do not say it.
        maintained_at: When a merge or a vacuum was last written to the log; None likewise.
        entered: Sum of the last number that each checkpoint has given to commit() as entered; None if there is none.
    """

    rows: int
    files: int
    size: int
    committed_at: dt.datetime | None = None
    maintained_at: dt.datetime | None = None
    entered: int | None = None


def check_owner(shown: str, properties: Mapping[str, str], owner: str | None) -> None:
    """Check that a table belongs to a checkpoint.

    Args:
        shown: Name or location of the table.
        owner: Spark's id of the query; None without a checkpoint.

    Raises:
        JobFailed: If the table belongs to no checkpoint, or to another one.
    """
    found = properties.get(OWNER)
    if found is None:
        raise JobFailed(
            f"table {shown} is there, and no job has made it: give another output, or --take-over if this job is to "
            "write into it"
        )
    if found != owner:
        who = "is new, so it" if owner is None else f"is {owner}, so it"
        raise JobFailed(
            f"table {shown} belongs to the checkpoint {found or 'of another job'}; this job's checkpoint {who} does "
            "not fit: bring that checkpoint back, give another output, or --take-over if the job that wrote there is "
            "gone and this one goes on"
        )


def epoch_of(properties: Mapping[str, str], owner: str | None) -> int:
    """Return the epoch of a checkpoint; for a checkpoint that is new to the table, the next one."""
    epochs = [int(value) for name, value in properties.items() if name.startswith(EPOCH)]
    return int(properties.get(f"{EPOCH}{owner}", max(epochs, default=0) + (owner is not None)))


def is_committed(shown: str, batch: BatchIdentity, last: CommittedBatch | None) -> bool:
    """Return True if a table has a batch already.

    Args:
        last: The last batch of the same checkpoint that the table has; None if it has none.

    Raises:
        JobFailed: If that is a later batch, another one with this number, or this batch with other settings.
    """
    if last is None or last.number < batch.number:
        return False
    is_other = bool(last.offsets and batch.offsets and last.offsets != batch.offsets)
    if last.number > batch.number or is_other:
        raise JobFailed(
            f"table {shown} has batch {last.number} of this checkpoint, and {'another ' if is_other else ''}batch "
            f"{batch.number} runs: the checkpoint is older than the table. Start with a new one, and with --take-over"
        )
    if last.settings not in (None, batch.settings):
        raise JobFailed(
            f"table {shown} has batch {last.number}, which was begun with other settings (fields, required_fields, "
            "time_field, max_ahead, or keys of [[metrics]]) and is not done: start the job with the settings of "
            "before and --once, then with the new ones"
        )
    return True


def missing_table(shown: str, committed: int) -> JobFailed:
    """Make the error for a checkpoint with batches whose table is gone."""
    batches = counted(committed + 1, "batch", "batches")
    return JobFailed(
        f"table {shown} is missing, and its checkpoint has {batches}: mount the disk that has the table, bring it back "
        "from a copy, or --take-over if the job is to go on with a new one"
    )


def missing_columns(shown: str, found: Mapping[str, str], wanted: Mapping[str, str]) -> list[str]:
    """Return the columns that a table lacks.

    Args:
        found: Columns of the table: name -> type.
        wanted: Columns by the settings.

    Raises:
        JobFailed: If a column has another type, or its name differs in case only.
    """
    names = {name.lower(): name for name in found}
    missing = []
    for name, kind in wanted.items():
        if name not in found:
            if name.lower() in names:
                raise JobFailed(
                    f"table {shown} has column {names[name.lower()]}, and the field is {name} now: give it the name of "
                    "before, since case makes no difference"
                )
            missing.append(name)
        elif found[name] != kind:
            other = "the setting raw as it was" if name == "body" else "the field another name"
            raise JobFailed(
                f"table {shown} has column {name} of type {found[name]}, and its type is {kind} now: leave it, give "
                f"{other}, or give another output"
            )
    return missing
