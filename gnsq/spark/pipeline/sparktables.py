"""Tables that the cluster's own Delta or Iceberg writes, through Spark, in a directory or in a catalog.

The tasks of a batch write its rows as Parquet files into a directory of the job (staged files). commit() lets Spark
append them to the table. So a batch is computed once, although it has rows for several tables, and no row passes the
driver. finish() deletes the staged files.

Each append is one commit of the table, which has the batch in its information, and its checkpoint in the table's
property gnsq.owner:

    Delta      the commit's userMetadata has the batch, for the checks. txnAppId and txnVersion have it, too: Delta
               itself leaves out an append whose version is not higher than the last one. It says nothing of that, so
               commit() looks for its own commit in the table's history afterwards.
    Iceberg    the properties of the snapshot have the batch. Snapshots expire. If none of the checkpoint is left, and
               others that were made after the batch was planned have expired, has() raises instead of guessing.

--status starts no Spark, so commit() notes in the job's work directory what it has done. The job does not maintain
these tables.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import functools
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # py4j has no types

from gnsq.spark.errors import JobFailed, root_cause
from gnsq.spark.pipeline.batches import (
    EPOCH,
    OWNER,
    BatchIdentity,
    CommittedBatch,
    TableStatus,
    check_owner,
    epoch_of,
    is_committed,
    missing_columns,
    missing_table,
)
from gnsq.spark.pipeline.datafiles import DataFile, Partition, TableTarget, store_error
from gnsq.spark.pipeline.topics import catalog_name
from gnsq.spark.spool.storage import open_store
from gnsq.spark.uris import redact_uri

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["SparkTable", "catalog_table", "may_have_expired", "path_table"]

# Names of a batch's facts in the information of a commit.
_FACTS = {name: f"gnsq.{name}" for name in ("owner", "batch", "offsets", "settings", "entered")}
# Properties of a table: its name in the job; and, with a former checkpoint's id appended, the last number of events
# that were entered.
_NAME, _ENTERED = "gnsq.name", "gnsq.entered."
# Numbers of the newest commits in which the last one of a checkpoint is looked for. Then all are read.
_HISTORY = (10, 1000)
# Seconds by which the clocks of the checkpoint's store and of the table's writers may differ.
_CLOCKS = 60.0
# Least bytes of staged files for each task that appends them: a task may write a file for each partition of the table.
_TASK_BYTES = 2 * 2**20
# Bytes of rows, about, that a task reads from a staged file at a time.
_READ_BYTES = 16 * 2**20
# Conditions of Spark's errors: there is no table in a directory.
_MISSING = {"DELTA_MISSING_DELTA_TABLE", "DELTA_TABLE_NOT_FOUND", "PATH_NOT_FOUND"}
# Words in Spark's errors that say that a library or a setting is missing.
_NO_LIBRARY = re.compile(r"ClassNotFound|[Cc]annot find catalog plugin|DATA_SOURCE_NOT_FOUND|find data source")
_NO_CATALOG = re.compile(
    r"CATALOG_NOT_FOUND|REQUIRES_SINGLE_PART_NAMESPACE|DELTA_CONFIGURE_SPARK_SESSION|UNSUPPORTED_DATASOURCE_FOR_DIRECT"
)
_NO_SCHEMA = re.compile(r"SCHEMA_NOT_FOUND|NoSuchNamespace|Namespace does not exist")
_PACKAGES = {"delta": "io.delta:delta-spark_{}_2.13", "iceberg": "org.apache.iceberg:iceberg-spark-runtime-{}_2.13"}
# Types that Iceberg does not have -> the types of its columns for them.
_ICEBERG_TYPES = {"tinyint": "int", "smallint": "int"}
_TRANSFORMS = {"day": "days", "hour": "hours"}


def catalog_table(catalog: str, path: str) -> str:
    """Name a table in Spark SQL: in the schema ``catalog``, such as main.clicks, by a path such as metrics/counts."""
    return ".".join(map(_quoted, [*catalog.split("."), catalog_name(path)]))


def path_table(location: str) -> str:
    """Name a Delta table in Spark SQL by its location. A path is local or mounted, whatever Spark's file system is."""
    return f"delta.{_quoted(location if ':/' in location else f'file://{Path(location).absolute()}')}"


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


class SparkTable:
    """One table. It is a BatchTable.

    Args:
        name: Such as archive, for error texts and descriptions of files.
        location: The table's name in Spark SQL, quoted.
        schema: Columns of the rows, all nullable, timestamps in UTC.
        partition: How the rows are divided; None: not at all.
        form: delta or iceberg.
        staged: Path or URI of a directory for staged files, which tasks and the driver can write and read.
        note: Path or URI of the directory for the note that status() reads.
        spark: None: only status() and exists() work.
    """

    def __init__(
        self,
        name: str,
        location: str,
        schema: Any,  # Any: pyarrow has no types
        partition: Partition | None,
        *,
        form: str,
        staged: str,
        note: str,
        spark: SparkSession | None,
    ) -> None:
        self.name = name
        self.location = location
        self._shown = redact_uri(location.replace("`", "").removeprefix("delta."))
        self._schema = schema
        self._partition = partition
        self._form = form
        self._staged = staged
        self._note = note
        self._spark = spark
        # The last batch of this checkpoint that the table has, after has() has looked for it; and its last number of
        # entered events.
        self._is_read = False
        self._last: CommittedBatch | None = None
        self._entered: int | None = None

    def target(self, batch_id: int) -> TableTarget:
        """Build the TableTarget, by which the tasks of a batch write staged files: in no partitions."""
        return TableTarget(self.name, self._staged, self._schema, None, batch_id)

    def claim(self, owner: str | None, *, take_over: bool, committed: int = -1, batch_id: int | None = None) -> int:
        """Create the table if it is missing. Check that it fits the settings and belongs to this checkpoint.

        Args, result and errors are those of BatchTable. batch_id is not used: staged files are not the table's.
        """
        with self._errors():
            open_store(self._staged).make_directory("")
        if not self._is_there():
            if committed >= 0 and not take_over:
                raise missing_table(self._shown, committed)
            if owner is None:
                return 0
            self._create(owner)
            return 1
        properties = self._properties()
        epoch = epoch_of(properties, owner)
        if not take_over:
            check_owner(self._shown, properties, owner)
        former, named = properties.get(OWNER), properties.get(_NAME, self.name)
        if former == owner and named != self.name:
            raise JobFailed(
                f"table {self._shown} has the rows of {named}, and those of {self.name} would go there, too, since a "
                "catalog takes letters, digits and _ only: run a job with another catalog for one of them"
            )
        self._check_partition()
        with self._errors():
            schema = self._session.table(self.location).schema
        found = {field.name: field.dataType.simpleString() for field in schema}
        columns = self._columns()
        missing = missing_columns(self._shown, found, columns)
        if owner is not None:
            if missing:
                added = ", ".join(f"{_quoted(name)} {columns[name]}" for name in missing)
                self._sql(f"ALTER TABLE {self.location} ADD COLUMNS ({added})")
            if former != owner:
                changed = {OWNER: owner, f"{EPOCH}{owner}": str(epoch), _NAME: self.name}
                if former is not None and (entered := _number(self._newest(former), "entered")) is not None:
                    changed[f"{_ENTERED}{former}"] = str(entered)
                self._sql(f"ALTER TABLE {self.location} SET TBLPROPERTIES ({_assigned(changed)})")
        return epoch

    def is_owned(self, owner: str) -> bool:
        """Return True if the table, which exists, belongs to a checkpoint."""
        return self._properties().get(OWNER) == owner

    def has(self, batch: BatchIdentity) -> bool:
        """Return True if the table has a batch already.

        Raises:
            JobFailed: As BatchTable.has(); of Iceberg also if too many snapshots have expired to know it.
        """
        check_owner(self._shown, self._properties(), batch.owner)
        if not self._is_read:
            self._read_last(batch)
        return is_committed(self._shown, batch, self._last)

    def commit(self, batch: BatchIdentity, files: Iterable[DataFile], entered: int | None = None) -> bool:
        """Append the rows of a batch's files to the table, all or none.

        Args, result and errors are those of BatchTable.
        """
        own = [file for file in files if file.table == self.name]
        if (not own and entered is None) or self.has(batch):
            return False
        if entered is not None:
            self._entered = entered
        facts = {"owner": batch.owner, "batch": batch.number, "offsets": batch.offsets, "settings": batch.settings}
        if self._entered is not None:
            facts["entered"] = self._entered
        information = {_FACTS[name]: str(value) for name, value in facts.items()}
        with self._errors():
            writer = self._rows(own).writeTo(self.location)
            for name, value in self._options(information).items():
                writer = writer.option(name, value)
            writer.append()
        self._read_last(batch)
        if self._last is None or self._last.number != batch.number:
            raise JobFailed(
                f"table {self._shown} has not taken batch {batch.number} of this checkpoint: by its log it has this "
                "batch or a later one, which its history does not show any more. Start with a new checkpoint, and with "
                "--take-over"
            )
        self._write_note(batch.owner)
        return True

    def finish(self) -> None:
        """Delete all staged files of the table."""
        with self._errors():
            store = open_store(self._staged)
            store.remove(*(path for path, _ in store.list()))

    def exists(self) -> bool:
        """Return True if the job has noted a commit."""
        with self._errors():
            return open_store(self._note).exists(self._note_name)

    def status(self) -> TableStatus:
        """Read what the job has noted at its last commit: when that was, and how many events were entered."""
        with self._errors(), open_store(self._note).open(self._note_name) as file:
            fields = json.loads(file.read())
        return TableStatus(None, None, None, dt.datetime.fromisoformat(fields["committed_at"]), None, fields["entered"])

    # --- the table

    @property
    def _session(self) -> SparkSession:
        assert self._spark is not None  # status() and exists() do not call this
        return self._spark

    def _sql(self, statement: str) -> DataFrame:
        with self._errors():
            return self._session.sql(statement)

    def _is_there(self) -> bool:
        from pyspark.errors import PySparkException  # slow to load, and --status does not need it

        with self._errors():
            if not self.location.startswith("delta."):
                # PySpark would print the error of DESCRIBE TABLE.
                if self._session.catalog.tableExists(self.location):
                    return True
                # See whether the catalog and the schema are there.
                self._session.sql(f"DESCRIBE NAMESPACE {self.location.rpartition('.')[0]}")
                return False
            try:
                self._session.sql(f"DESCRIBE TABLE {self.location}")
            except PySparkException as error:
                if error.getCondition() not in _MISSING:
                    raise
                return False
        return True

    def _properties(self) -> dict[str, str]:
        if self._form == "iceberg":
            # The catalog may keep a table in memory and not see what others do.
            self._sql(f"REFRESH TABLE {self.location}")
        return {row["key"]: row["value"] for row in self._sql(f"SHOW TBLPROPERTIES {self.location}").collect()}

    def _columns(self) -> dict[str, str]:
        """Return the columns that the table must have: name -> Spark SQL type."""
        from pyspark.sql.pandas.types import from_arrow_schema  # loads pyspark, as above

        kinds = {field.name: field.dataType.simpleString() for field in from_arrow_schema(self._schema)}
        if self._form == "iceberg":
            return {name: _ICEBERG_TYPES.get(kind, kind) for name, kind in kinds.items()}
        if self._partition is not None and not self._partition.is_field:
            kinds[self._partition.column] = "date" if self._partition.column == "day" else "string"
        return kinds

    def _partitioned(self) -> list[str]:
        """Return what the table must be partitioned by, as DESCRIBE TABLE shows it."""
        if self._partition is None:
            return []
        if self._form == "iceberg" and not self._partition.is_field:
            return [f"{_TRANSFORMS[self._partition.column]}({self._partition.source})"]
        return [self._partition.column]

    def _create(self, owner: str) -> None:
        columns = ", ".join(f"{_quoted(name)} {kind}" for name, kind in self._columns().items())
        by = f" PARTITIONED BY ({', '.join(self._partitioned())})" if self._partition is not None else ""
        properties = _assigned({OWNER: owner, f"{EPOCH}{owner}": "1", _NAME: self.name})
        self._sql(f"CREATE TABLE {self.location} ({columns}) USING {self._form}{by} TBLPROPERTIES ({properties})")

    def _check_partition(self) -> None:
        found: list[str] = []
        is_partition = False
        for row in self._sql(f"DESCRIBE TABLE {self.location}").collect():
            name = row["col_name"]
            if name.startswith("#") or not name:
                is_partition = name.startswith("# Partition") or (is_partition and name == "# col_name")
            elif is_partition and name != "Not partitioned":
                found.append(row["data_type"] if name.startswith("Part ") else name)
        if found != self._partitioned():
            raise JobFailed(
                f"table {self._shown} is partitioned by {', '.join(found) or 'none'}, and the setting partition_by is "
                f"{', '.join(self._partitioned()) or 'none'} now: leave it as it was, or give another output"
            )

    # --- batches

    def _read_last(self, batch: BatchIdentity) -> None:
        found = self._newest(batch.owner)
        if found is None and self._form == "iceberg":
            self._check_expired(batch)
        self._last = None
        if found is not None:
            number, *hashes = (_number(found, name) for name in ("batch", "offsets", "settings"))
            assert number is not None  # each commit of the job has it
            self._last = CommittedBatch(number, *hashes)
            self._entered = _number(found, "entered")
        self._is_read = True

    def _newest(self, owner: str) -> Mapping[str, str] | None:
        """Return the information of the newest commit of a checkpoint; None if there is none."""
        if self._form == "iceberg":
            from pyspark.sql import functions as F  # loads pyspark, as above

            snapshots = self._sql(f"SELECT committed_at, summary AS facts FROM {self.location}.snapshots")
            found = snapshots.where(F.col("facts").getItem(_FACTS["owner"]) == owner).orderBy(F.desc("committed_at"))
            with self._errors():
                row = found.first()
            return row["facts"] if row is not None else None
        for limit in (*_HISTORY, None):
            last = "" if limit is None else f" LIMIT {limit}"
            history = self._sql(f"DESCRIBE HISTORY {self.location}{last}").select("version", "userMetadata")
            with self._errors():
                rows = history.collect()
            for row in sorted(rows, key=lambda row: -row["version"]):
                facts = _decoded(row["userMetadata"])
                if facts.get(_FACTS["owner"]) == owner:
                    return facts
            if limit is not None and len(rows) < limit:
                break
        return None

    def _check_expired(self, batch: BatchIdentity) -> None:
        """Check that no snapshot has expired that was made after a batch was planned."""
        oldest = self._sql(
            "SELECT parent_id, unix_micros(committed_at) / 1e6 AS made_at "
            f"FROM {self.location}.snapshots ORDER BY committed_at LIMIT 1"
        )
        with self._errors():
            row = oldest.first()
        if row is not None and may_have_expired(row["parent_id"], float(row["made_at"]), batch.planned_at):
            planned = dt.datetime.fromtimestamp(batch.planned_at, dt.UTC)
            raise JobFailed(
                f"table {self._shown}: snapshots made after {planned:%Y-%m-%d %H:%M:%S} UTC, when batch {batch.number} "
                "was planned, have expired, so it is not known whether the table has this batch: start with a new "
                "checkpoint, and with --take-over; the messages in the spool may then be in the table twice"
            )

    def _options(self, information: Mapping[str, str]) -> dict[str, str]:
        if self._form == "iceberg":
            # Without this, a task of Iceberg holds a file open for each partition: 1,000 of them take 1 GiB of heap.
            options = {"fanout-enabled": "false"}
            return options | {f"snapshot-property.{name}": value for name, value in information.items()}
        return {
            "txnAppId": f"gnsq:{information[_FACTS['owner']]}",
            "txnVersion": information[_FACTS["batch"]],
            "userMetadata": json.dumps(information),
        }

    def _rows(self, files: list[DataFile]) -> DataFrame:
        """Read staged files; the rows have all columns of the table."""
        from pyspark.sql import functions as F  # loads pyspark, as above
        from pyspark.sql.pandas.types import from_arrow_schema

        task = functools.partial(_read, self._staged)
        tasks = min(max(sum(file.size for file in files) // _TASK_BYTES, 1), max(len(files), 1))
        named = self._session.createDataFrame([(file.path,) for file in files], "path string").coalesce(tasks)
        rows = named.mapInArrow(task, from_arrow_schema(self._schema))
        partition = self._partition
        if self._form == "iceberg" or partition is None or partition.is_field:
            return rows
        # As datafiles.Partition.text() does; the session's time zone is UTC.
        time = F.col(partition.source)
        value = F.to_date(time) if partition.column == "day" else F.date_format(time, "yyyy-MM-dd'T'HH")
        return rows.withColumn(partition.column, value)

    # --- the note

    @property
    def _note_name(self) -> str:
        return f"table-{self.name.replace('/', '.')}.json"

    def _write_note(self, owner: str) -> None:
        former = self._properties()
        former.pop(f"{_ENTERED}{owner}", None)
        before = sum(int(value) for name, value in former.items() if name.startswith(_ENTERED))
        entered = None if self._entered is None else self._entered + before
        fields = {"committed_at": dt.datetime.now(dt.UTC).isoformat(), "entered": entered}
        with self._errors():
            open_store(self._note).put(self._note_name, json.dumps(fields).encode())

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        """Translate errors of Spark and of the stores."""
        from pyspark.errors import PySparkException  # loads pyspark, as above

        try:
            yield
        except OSError as error:
            raise store_error(self._staged, error) from error
        except (PySparkException, Py4JError) as error:
            text = str(error)
            raise JobFailed(f"table {self._shown}: {root_cause(text)}: {self._advice(text)}") from error

    def _advice(self, text: str) -> str:
        import pyspark  # loads pyspark, as above

        package = _PACKAGES[self._form].format(".".join(pyspark.__version__.split(".")[:2]))
        if _NO_LIBRARY.search(text):
            return f"give the package {package} in 'spark.jars.packages' of the setting spark"
        if _NO_CATALOG.search(text):
            return "give the catalog's settings, 'spark.sql.catalog.NAME' and those below it, in the setting spark"
        if _NO_SCHEMA.search(text):
            return "make the schema with CREATE SCHEMA, or correct the setting catalog"
        return "mend that, then start the job again: nothing is lost"


def may_have_expired(parent: int | None, made_at: float, planned_at: float) -> bool:
    """Return True if a snapshot that was made after a batch was planned may have expired. Pure.

    Args:
        parent: Id of the snapshot before the oldest one that is left; None if there was none.
        made_at: Unix time of the oldest snapshot that is left.
        planned_at: As in BatchIdentity. If it is 0, nothing can be said, and the result is False.
    """
    return parent is not None and 0 < planned_at < made_at + _CLOCKS


def _assigned(properties: Mapping[str, str]) -> str:
    return ", ".join(f"'{name}' = '{value}'" for name, value in properties.items())


def _number(facts: Mapping[str, str] | None, name: str) -> int | None:
    value = facts.get(_FACTS[name]) if facts is not None else None
    return None if value is None else int(value)


def _decoded(text: str | None) -> dict[str, str]:
    """Decode a commit's userMetadata; {} if there is none, or it is another program's."""
    try:
        found = json.loads(text or "null")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


# --- in tasks


def _read(location: str, batches: Iterator[Any]) -> Iterator[Any]:  # Any: pyarrow has no types
    """Yield the rows of staged files, in record batches of bounded size."""
    try:
        store = open_store(location)
        for path in (path for batch in batches for path in batch.column("path").to_pylist()):
            with store.open(path) as opened, pq.ParquetFile(opened) as parquet:
                metadata = parquet.metadata
                size = sum(metadata.row_group(number).total_byte_size for number in range(metadata.num_row_groups))
                rows = max(_READ_BYTES * metadata.num_rows // max(size, 1), 1)
                yield from parquet.iter_batches(rows, use_threads=False)
    except OSError as error:
        raise store_error(location, error) from error
