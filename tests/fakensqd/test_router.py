"""Routes, error bodies, redirects: a Router without a socket."""

import pytest

from fakensqd.router import HttpError, Request, Route, Router
from tests.kit.wire import call, environ


def test_exception_of_a_handler_is_recorded_and_answered_by_500():
    def fail(request):
        raise RuntimeError("broken")

    errors = []
    headers = {"content-type": "application/json; charset=utf-8", "x-nsq-content-type": "nsq; version=1.0"}
    router = Router({"/broken": {"GET": Route(fail)}}, errors.append)

    assert call(router, "GET", "/broken") == (500, headers, b'{"message":"INTERNAL_ERROR"}')
    assert [str(error) for error in errors] == ["broken"]


class Torn:
    """The body of a client that breaks off."""

    def read(self, limit):
        raise OSError("unexpected end of file")


def test_body_of_a_client_that_disconnects_is_an_error():
    request = Request(environ("POST", "/") | {"wsgi.input": Torn()})

    with pytest.raises(HttpError, match="INTERNAL_ERROR"):
        request.read(10)
