"""The public names, loaded when asked for."""

import pytest

import fakensqd


@pytest.mark.parametrize("name", fakensqd.__all__)
def test_public_names(name):
    assert getattr(fakensqd, name).__name__.removeprefix("fakensqd.") == name


def test_dir_lists_them():
    assert set(fakensqd.__all__) < set(dir(fakensqd))


def test_an_unknown_name():
    with pytest.raises(AttributeError, match="module 'fakensqd' has no attribute 'Nothing'"):
        _ = fakensqd.Nothing
