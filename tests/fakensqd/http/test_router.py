"""Routes, error bodies, redirects: a Router called as WSGI is."""

import pytest

from fakensqd.http.router import HttpError, Request, Route, Router, profiling_routes
from tests.fakensqd.wire import call, environ


def broken(request):
    raise RuntimeError("broken")


def refuse(request):
    raise HttpError(400, "NO")


@pytest.fixture
def errors():
    return []


@pytest.fixture
def router(errors):
    return Router(
        {
            "/ping": {"GET": Route(lambda request: "OK", plain=True)},
            "/json": {"GET": Route(lambda request: {"a": [1]})},
            "/none": {"POST": Route(lambda request: None)},
            "/refuse": {"GET": Route(refuse)},
            "/broken": {"GET": Route(broken)},
            "/config/:": {"GET": Route(lambda request: request.argument), "PUT": Route(lambda request: None)},
        },
        errors.append,
    )


TEXT = {"content-type": "text/plain; charset=utf-8"}
JSON = {"content-type": "application/json; charset=utf-8"}
NSQ = {"x-nsq-content-type": "nsq; version=1.0"}


def test_exception_of_a_handler_is_recorded_and_answered_by_500(router, errors):
    assert call(router, "GET", "/broken") == (500, JSON | NSQ, b'{"message":"INTERNAL_ERROR"}')
    assert [str(error) for error in errors] == ["broken"]


@pytest.mark.parametrize("path", ["/ping/", "//ping", "/PING", "/x/../ping"])
def test_almost_correct_path_is_redirected(router, path):
    status, headers, body = call(router, "GET", path, "a=<&>")

    assert (status, headers["location"]) == (301, "/ping?a=<&>")
    assert body == b'<a href="/ping?a=&lt;&amp;&gt;">Moved Permanently</a>.\n\n'


def test_redirected_post_keeps_its_method(router):
    assert call(router, "POST", "/none/") == (307, {"location": "/none"}, b"")


@pytest.mark.parametrize("query", ["topic=%zz", "topic=%2", "a;b"])
def test_malformed_query_is_refused(query):
    with pytest.raises(HttpError, match="INVALID_REQUEST"):
        Request(environ("GET", "/", query)).required("topic")


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


@pytest.mark.parametrize(
    ("method", "path", "location"),
    [
        ("GET", "/config/a/", "/config/a"),
        ("GET", "/CONFIG/a", "/config/a"),
        ("PUT", "/config/a/", "/config/a"),
        ("GET", "/config/\xe9/", "/config/%E9"),
    ],
)
def test_path_with_an_argument_is_redirected(router, method, path, location):
    status, headers, _ = call(router, method, path)

    assert (status, headers["location"]) == (301 if method == "GET" else 307, location)


def test_request_for_an_asterisk_is_about_all_paths():
    router = Router({"/a": {"GET": Route(refuse)}, "/b": {"POST": Route(refuse)}}, None)

    assert call(router, "OPTIONS", "*") == (200, {}, b"")
    status, headers, _ = call(router, "GET", "*")
    assert (status, headers["allow"]) == (405, "GET, OPTIONS, POST")


def test_profiling_paths_are_answered():
    router = Router(profiling_routes("/debug/pprof/"), None)

    assert call(router, "GET", "/debug/pprof/")[0] == 200
    assert call(router, "POST", "/debug/pprof/symbol")[0] == 200
    assert call(router, "POST", "/debug/pprof/heap")[0] == 405
