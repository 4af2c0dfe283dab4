"""The public names of fakensqd, loaded at their first use, and of fakensqd.faults."""

import pytest

import fakensqd
from fakensqd import faults


@pytest.mark.parametrize("name", fakensqd.__all__)
def test_public_name_is_loaded_at_its_first_use(name):
    assert getattr(fakensqd, name).__name__.removeprefix("fakensqd.") == name


def test_every_action_is_a_public_name_of_faults():
    assert set(faults.actions.__all__) <= set(faults.__all__)


@pytest.mark.parametrize("module", [fakensqd, faults], ids=["fakensqd", "fakensqd.faults"])
def test_dir_lists_the_public_names_alone(module):
    assert dir(module) == sorted(module.__all__)


@pytest.mark.parametrize("module", [fakensqd, faults], ids=["fakensqd", "fakensqd.faults"])
def test_unknown_name_raises(module):
    with pytest.raises(AttributeError, match=f"module '{module.__name__}' has no attribute 'Nothing'"):
        _ = module.Nothing
