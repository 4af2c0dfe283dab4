"""The classes of the client that ``make bench`` replaces by those that measure: a connection must use the new ones."""

import subprocess
import sys
from pathlib import Path

import pytest

from fakensqd import FakeNsqd
from integration.bench import fill
from integration.bench_layers import body

ROOT = Path(__file__).parent.parent


@pytest.mark.subprocess
@pytest.mark.parametrize("layer", ["tls", "snappy"])
def test_time_inside_of_the_codec_of_a_layer_is_measured(layer, fakensqd_certificates):
    files = fakensqd_certificates.server()
    with FakeNsqd(threaded=True, tls_cert=files.certificate, tls_key=files.key) as nsqd:
        fill(nsqd.tcp_address, nsqd.http_address, "t", 1000, body)
        command = [sys.executable, "-m", "integration.bench_layers", layer, nsqd.tcp_address, "t", "1000"]
        command.append(str(fakensqd_certificates.ca))
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=30)

    assert done.returncode == 0, done.stderr
    whole, inside = map(float, done.stdout.split())
    assert 0 < inside < whole
