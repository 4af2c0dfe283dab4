"""The emulator responds to random sessions as real servers do."""

import pytest
from hypothesis import core

from integration.fuzz.comparing import differences
from tests.fakensqd.recorded_servers import LOOKUPD, NSQD, real

pytestmark = [pytest.mark.hypothesis, pytest.mark.slow, pytest.mark.timeout(600)]

SESSIONS = {
    NSQD: 800,
    f"{NSQD}-flags": 400,
    f"{NSQD}-tls": 200,
    f"{NSQD}-tlsreq": 100,
    f"{NSQD}-auth": 250,
    LOOKUPD: 250,
}


@pytest.mark.parametrize("name", SESSIONS)
def test_emulator_responds_to_random_sessions_as_the_server(name):
    seed = core.global_force_seed or 1  # make fuzz gives one after the other

    found = differences(name, real, SESSIONS[name], seed)

    assert not found, "\n\n".join([f"seed {seed}", *found])
