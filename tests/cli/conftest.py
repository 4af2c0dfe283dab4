"""No test of the command gnsq reads the settings of the user."""

import gzip
import os

import pytest
import zstandard


def content(path):
    """Return what a file, or a .part file, has; decompressed."""
    data, name = path.read_bytes(), path.name.removesuffix(".part")
    if name.endswith(".gz"):
        return gzip.decompress(data)
    if name.endswith(".zst"):
        return zstandard.ZstdDecompressor().stream_reader(data, read_across_frames=True).read()
    return data


@pytest.fixture(autouse=True)
def config_folder(tmp_path_factory, monkeypatch):
    """The folder of the default file gnsq.toml. No test reads the user's file or variables."""
    for name in [name for name in os.environ if name.startswith("GNSQ_")]:
        monkeypatch.delenv(name)
    folder = tmp_path_factory.mktemp("config")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(folder))
    return folder
