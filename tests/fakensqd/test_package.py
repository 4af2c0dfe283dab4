"""The public names of fakensqd and fakensqd.faults, loaded at their first use."""

import pytest

import fakensqd
from fakensqd import faults


@pytest.mark.parametrize("name", fakensqd.__all__)
def test_public_name_is_loaded_at_its_first_use(name):
    assert getattr(fakensqd, name).__name__.removeprefix("fakensqd.") == name


@pytest.mark.parametrize("name", faults.__all__)
def test_public_name_of_faults_is_the_one_of_its_module(name):
    found = getattr(faults, name)

    assert (found.__name__, found.__module__) == (name, f"fakensqd.faults.{faults._MODULES[name]}")


@pytest.mark.parametrize("module", [fakensqd, faults], ids=["fakensqd", "fakensqd.faults"])
def test_dir_lists_the_public_names_alone(module):
    assert dir(module) == sorted(module.__all__)


@pytest.mark.parametrize("module", [fakensqd, faults], ids=["fakensqd", "fakensqd.faults"])
def test_unknown_name_raises(module):
    with pytest.raises(AttributeError, match=f"module '{module.__name__}' has no attribute 'Nothing'"):
        _ = module.Nothing
