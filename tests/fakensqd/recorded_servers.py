"""The servers of recorded sessions, emulated and real: started with the flags of a recording."""

import re
import shutil
import subprocess

import pytest

from fakensqd import FakeLookupd, FakeNsqd
from fakensqd.real import RealLookupd, RealNsqd
from tests.fakensqd.transcripts import load

VERSION = "1.3.0"
NSQD, LOOKUPD = f"nsqd-{VERSION}", f"nsqlookupd-{VERSION}"
NAMES = [NSQD, f"{NSQD}-flags", f"{NSQD}-tls", f"{NSQD}-tlsreq", f"{NSQD}-auth", LOOKUPD]
TRANSCRIPTS = {name: load(name) for name in NAMES}

DURATIONS = {"ms": 0.001, "s": 1.0}


def value(text):
    """Parse the value of a flag: a number, a duration in seconds, a bool, or text."""
    if found := re.fullmatch(r"(\d+)(ms|s)?", text):
        number, unit = found.groups()
        return int(number) * DURATIONS[unit] if unit else int(number)
    return {"true": True, "false": False}.get(text, text)


def flags(name, certificate, auth_server):
    """Return the flags of a recording, with the files and addresses of this test."""
    found = dict(re.findall(r"--([a-z-]+)=(\S+)", TRANSCRIPTS[name].header["flags"]))
    ours = {
        "tls-cert": certificate.certificate,
        "tls-key": certificate.key,
        "auth-http-address": auth_server.http_address,
    }
    return {flag: ours.get(flag, text) for flag, text in found.items()}


def emulated(name, found, clock):
    options = {flag.replace("-", "_"): value(text) for flag, text in found.items()}
    if address := options.pop("auth_http_address", None):
        options["auth_http_addresses"] = (address,)
    return FakeLookupd(**options, clock=clock) if name == LOOKUPD else FakeNsqd(**options, clock=clock)


def real(name, found, clock):
    """Start a program."""
    kind = name.partition("-")[0]
    if shutil.which(kind) is None:
        pytest.skip(f"there is no {kind} on PATH")
    version = subprocess.run([kind, "--version"], capture_output=True, text=True, check=True).stdout.split()[1]
    if version != f"v{VERSION}":
        pytest.skip(f"recorded with {VERSION}, this is {version}")
    make = RealLookupd if name == LOOKUPD else RealNsqd
    return make(flags=[f"--{flag}={text}" for flag, text in found.items()])
