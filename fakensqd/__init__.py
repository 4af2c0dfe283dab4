"""An emulator of nsqd and nsqlookupd 1.3.0 for tests: in process, started and stopped in milliseconds.

The servers are loaded when first asked for, so that the pytest plugin costs a run nothing that does not use it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fakensqd.auth import Grant
    from fakensqd.auth_server import FakeAuthServer
    from fakensqd.certificates import Certificates
    from fakensqd.cluster import FakeCluster
    from fakensqd.lookupd import FakeLookupd
    from fakensqd.server import FakeNsqd

__all__ = ["Certificates", "FakeAuthServer", "FakeCluster", "FakeLookupd", "FakeNsqd", "Grant"]

_MODULES = {
    "Certificates": "certificates",
    "FakeAuthServer": "auth_server",
    "FakeCluster": "cluster",
    "FakeLookupd": "lookupd",
    "FakeNsqd": "server",
    "Grant": "auth",
}


def __getattr__(name: str) -> object:
    """Load a public name. Source: PEP 562."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
