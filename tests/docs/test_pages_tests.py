"""The tests in the pages, as tests of this module: they use the real fixtures and markers."""

from tests.docs import prose

for page in prose.PAGES:
    for name, function in prose.tests_of(page).items():
        assert name not in globals(), f"{page}: {name} is in another page, too"
        globals()[name] = function
