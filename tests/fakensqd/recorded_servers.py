"""The servers of recorded sessions, emulated and real: started with the flags of a recording."""

import contextlib
import re
import subprocess

import pytest

from fakensqd import FakeLookupd, FakeNsqd
from gnsq import NsqdHTTPClient
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
    """Start a program; without one, take the nsqd that runs elsewhere for the recording that has no flags."""
    from integration.servers import NO_PROGRAMS, given, program, running

    kind = name.partition("-")[0]
    if path := program(kind):
        version = subprocess.run([path, "--version"], capture_output=True, text=True, check=True).stdout.split()[1]
        made = running(kind, *[f"--{flag}={text}" for flag, text in found.items()])
    elif not found and (server := given(kind)):
        version = f"v{NsqdHTTPClient.from_url(server.http_address).info()['version']}"
        made = contextlib.nullcontext(server)
    else:
        pytest.skip(NO_PROGRAMS)
    if version != f"v{VERSION}":
        pytest.skip(f"recorded with {VERSION}, this is {version}")
    return made
