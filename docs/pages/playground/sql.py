"""Run a statement of DuckDB on the tables, by the names of their directories."""

import sys
from pathlib import Path

import duckdb
from deltalake import DeltaTable
from pyarrow.fs import LocalFileSystem, SubTreeFileSystem

for directory in Path("/work/lake").iterdir():
    files = SubTreeFileSystem(str(directory), LocalFileSystem())
    duckdb.register(
        directory.name, DeltaTable(directory).to_pyarrow_dataset(filesystem=files)
    )
print(duckdb.sql(sys.argv[1]))
