"""What is said where the extra is not installed."""

import importlib
import importlib.util

import pytest

from gnsq.spark import pipeline


def test_missing_packages_are_named_with_the_extra(monkeypatch):
    there = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name in ("click", "rich") else there(name))

    with pytest.raises(ImportError, match=r"needs click, rich: pip install 'gnsq\[spark\]'"):
        importlib.reload(pipeline)
