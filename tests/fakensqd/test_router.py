"""Routes, error bodies, redirects: a Router without a socket."""

import pytest

from fakensqd.router import HttpError, Request, Route, Router
from tests.kit.wire import call, environ

JSON = {"content-type": "application/json; charset=utf-8"}
NSQ = {"x-nsq-content-type": "nsq; version=1.0"}


def test_exception_of_a_handler_is_recorded_and_answered_by_500():
    def fail(request):
        raise RuntimeError("broken")

    errors = []
    router = Router({"/broken": {"GET": Route(fail)}}, errors.append)

    assert call(router, "GET", "/broken") == (500, JSON | NSQ, b'{"message":"INTERNAL_ERROR"}')
    assert [str(error) for error in errors] == ["broken"]


def test_body_is_read_up_to_a_limit():
    request = Request(environ("POST", "/", body=b"hello"))

    assert (request.content_length, request.read(3)) == (5, b"hel")
    assert Request(environ("GET", "/")).content_length == 0


class Torn:
    """The body of a client that breaks off."""

    def read(self, limit):
        raise OSError("unexpected end of file")


def test_body_of_a_client_that_disconnects_is_an_error():
    request = Request(environ("POST", "/") | {"wsgi.input": Torn()})

    with pytest.raises(HttpError, match="INTERNAL_ERROR"):
        request.read(10)
