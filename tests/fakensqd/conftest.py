"""What all tests of the emulator have: nothing is left open."""

import pytest

from tests.fakensqd.wire import Client


@pytest.fixture(autouse=True)
def _clients_are_closed():
    yield
    while Client.opened:
        Client.opened.pop().socket.close()
