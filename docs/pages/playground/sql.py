"""Run a statement of DuckDB on the tables, by the names of their directories."""

import sys
from pathlib import Path

import duckdb
from deltalake import DeltaTable

for directory in Path("/work/lake").iterdir():
    duckdb.register(directory.name, DeltaTable(directory).to_pyarrow_dataset())
print(duckdb.sql(sys.argv[1]))
