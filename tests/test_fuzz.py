"""The comparison of real servers with the emulator by random sessions: here both are emulators."""

import pytest

from integration.fuzz.comparing import PROFILES, differences
from tests.fakensqd.recorded_servers import NSQD, emulated

pytestmark = pytest.mark.slow
SEED = 1


@pytest.mark.parametrize("name", PROFILES)
def test_emulator_responds_to_random_sessions_as_itself(name):
    assert differences(name, emulated, 30, SEED) == []


def test_difference_is_shown_by_the_shortest_session():
    def other(name, flags, clock):
        return emulated(name, flags | {"max-msg-size": "8"}, clock)

    found = differences(NSQD, other, 12, SEED)

    lines = [text.split("\n") for text in found if "PUB message too big" in text]
    assert lines
    # What the emulator sent; the steps connect, send twice, receive, ask for statistics; the session as JSON.
    assert "got (0, b'OK')" in lines[0][0]
    assert '"do": "http"' not in lines[0][1]
