"""FakeAuthServer: its answers, and the queries that it records."""

import pytest

from fakensqd import FakeAuthServer, Grant
from tests.kit.wire import request


def ask(server, query="secret=s&tls=false&remote_ip=127.0.0.1&common_name=", path="/auth"):
    return request(server.http_address, "GET", f"{path}?{query}")


def test_grants_become_an_answer():
    with FakeAuthServer({"s": [Grant("t", ("c",), ("publish",))]}, ttl=60, identity="me") as server:
        assert ask(server) == {
            "ttl": 60,
            "identity": "me",
            "identity_url": "",
            "authorizations": [{"topic": "t", "channels": ["c"], "permissions": ["publish"]}],
        }


def test_document_and_bytes_are_sent_unchanged_and_an_unknown_secret_is_refused():
    with FakeAuthServer({"s": {"ttl": -1}, "b": b"nope"}) as server:
        assert ask(server) == {"ttl": -1}
        assert ask(server, "secret=b") == "nope"
        assert ask(server, "secret=c") == {"message": "NOT_AUTHORIZED"}
        assert ask(server, path="/other") == {}
        assert len(server.queries) == 3


def test_answer_is_called_for_secrets_that_are_not_in_grants():
    with FakeAuthServer({"s": []}, answer=lambda query: {"asked": dict(query.parameters)}) as server:
        assert ask(server)["authorizations"] == []
        assert ask(server, "secret=%C3%BC&tls=true") == {"asked": {"secret": "\u00fc", "tls": "true"}}


def test_grants_may_be_changed():
    with FakeAuthServer() as server:
        server.set_grants("s", [Grant()])
        assert len(ask(server)["authorizations"]) == 1

        server.set_grants("s", None)
        server.set_grants("s", None)
        assert ask(server) == {"message": "NOT_AUTHORIZED"}


def test_exception_of_answer_is_recorded_and_answered_by_500():
    def fail(query):
        raise RuntimeError("broken")

    with FakeAuthServer(answer=fail) as server:
        assert ask(server) == {}

    assert [str(error) for error in server.errors] == ["broken"]


def test_auth_server_starts_again_on_the_same_port():
    server = FakeAuthServer()
    assert (server.running, server.http_port) == (False, 0)
    server.start()
    address = server.http_address
    server.start()
    assert (server.running, server.http_address) == (True, f"127.0.0.1:{server.http_port}")
    server.stop()
    server.stop()
    assert not server.running
    with pytest.raises(ConnectionRefusedError):
        ask(server)

    with server:
        assert server.http_address == address
        ask(server)
