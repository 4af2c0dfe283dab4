"""Responses of an auth server, and the grants in them, as far as recorded sessions do not have them."""

import json

import pytest

from fakensqd.nsqd.auth import Authorization, Grant, decode_authorization

GRANT = {"topic": "t", "channels": ["c"], "permissions": ["publish"]}


def decoded(**document):
    return decode_authorization(json.dumps(document).encode())


def test_response_of_an_auth_server_is_decoded():
    assert decoded(ttl=5, identity="me", identity_url="u", authorizations=[GRANT], more=1) == Authorization(
        ttl=5.0, identity="me", identity_url="u", grants=(Grant("t", ("c",), ("publish",)),)
    )


def test_null_in_a_grant_is_empty():
    assert decoded(ttl=1, authorizations=[None, {"topic": None, "channels": [None]}]).grants == (
        Grant("", (), ()),
        Grant("", ("",), ()),
    )


def test_ttl_beyond_gos_clock_has_expired_already():
    assert decoded(ttl=10**10).ttl < 0


@pytest.mark.parametrize(
    "document",
    [
        pytest.param({"ttl": 0}, id="ttl 0"),
        pytest.param({"ttl": 1.5}, id="ttl fraction"),
        pytest.param({"ttl": 1, "identity": 1}, id="identity number"),
        pytest.param({"ttl": 1, "authorizations": {}}, id="grants no list"),
        pytest.param({"ttl": 1, "authorizations": ["x"]}, id="grant no object"),
        pytest.param({"ttl": 1, "authorizations": [GRANT | {"channels": ["a", "*"]}]}, id="channel pattern"),
        pytest.param({"ttl": 1, "authorizations": [GRANT | {"channels": "c"}]}, id="channels no list"),
    ],
)
def test_malformed_response_is_refused(document):
    with pytest.raises(ValueError, match=r"."):
        decoded(**document)


@pytest.mark.parametrize(
    ("pattern", "topic"),
    [("", "t"), ("a|b", "b"), ("^a$", "a"), ("(?i)ABC", "abc"), (r"\\?\.", "."), (r"^[\w-]+$", "a-b"), ("a{2}", "aa")],
)
def test_pattern_with_the_same_meaning_in_go_matches(pattern, topic):
    grant = Grant(topic=pattern)
    grant.check()

    assert grant.allows(topic, "")


@pytest.mark.parametrize("pattern", ["(", "a)", "[", "*", "a**", "(?P=n)", "(" * 2000 + ")" * 2000])
def test_pattern_that_does_not_compile_is_refused(pattern):
    with pytest.raises(ValueError, match=r"^pattern "):
        Grant(topic=pattern).check()


def test_one_grant_must_allow_topic_and_channel_together():
    halves = (Grant(topic="^a$", permissions=("publish",)), Grant(topic="^b$", permissions=("subscribe",)))
    authorization = Authorization(ttl=1.0, grants=halves)

    assert authorization.allows("a", "")
    assert authorization.allows("b", "c")
    assert not authorization.allows("a", "c")
