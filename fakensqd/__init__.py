"""An emulator of nsqd and nsqlookupd 1.3.0 for tests. In the test's process, it starts and stops in milliseconds.

The public names are loaded at their first use: a test run that does not use them does not wait for their import.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fakensqd import faults
    from fakensqd.auth_server import FakeAuthServer
    from fakensqd.certificates import Certificates
    from fakensqd.cluster import FakeCluster
    from fakensqd.faults.relay import Relay
    from fakensqd.faults.rules import Scenario, on
    from fakensqd.lookupd.server import FakeLookupd
    from fakensqd.nsqd.auth import Grant
    from fakensqd.nsqd.server import FakeNsqd
    from fakensqd.transcript import Transcript, UnknownChannel

__all__ = [
    "Certificates",
    "FakeAuthServer",
    "FakeCluster",
    "FakeLookupd",
    "FakeNsqd",
    "Grant",
    "Relay",
    "Scenario",
    "Transcript",
    "UnknownChannel",
    "faults",
    "on",
]

_MODULES = {
    "Certificates": "certificates",
    "FakeAuthServer": "auth_server",
    "FakeCluster": "cluster",
    "FakeLookupd": "lookupd.server",
    "FakeNsqd": "nsqd.server",
    "Grant": "nsqd.auth",
    "Relay": "faults.relay",
    "Scenario": "faults.rules",
    "Transcript": "transcript",
    "UnknownChannel": "transcript",
    "on": "faults.rules",
}


def __dir__() -> list[str]:
    """List the public names, also those that are not loaded yet."""
    return sorted(__all__)


def __getattr__(name: str) -> object:
    """Load a public name. Source: PEP 562."""
    from importlib import import_module

    if name == "faults":
        return import_module(f"{__name__}.faults")
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
