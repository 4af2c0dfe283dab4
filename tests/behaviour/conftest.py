"""The nsqd that these tests talk to: fakensqd, or with ``-p integration.servers`` a real one."""

import uuid

import pytest


@pytest.fixture
def nsqd(request):
    real = request.config.pluginmanager.hasplugin("integration.servers")
    return request.getfixturevalue("real_nsqd" if real else "fakensqd")


@pytest.fixture
def topic():
    """A name that no other test has."""
    return f"t-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def lookupd(request):
    real = request.config.pluginmanager.hasplugin("integration.servers")
    return request.getfixturevalue("real_lookupd" if real else "fakelookupd")
