"""No test of the command gnsq reads the settings of the user."""

import os

import pytest


@pytest.fixture(autouse=True)
def config_folder(tmp_path_factory, monkeypatch):
    """The folder of the default file gnsq.toml. No test reads the user's file or variables."""
    for name in [name for name in os.environ if name.startswith("GNSQ_")]:
        monkeypatch.delenv(name)
    folder = tmp_path_factory.mktemp("config")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(folder))
    return folder
