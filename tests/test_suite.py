"""The plugin of ``make test``, in test runs of its own."""

import pytest

pytest_plugins = ["pytester"]


@pytest.mark.parametrize(("name", "status"), [("nsqd.dat", 1), (".hypothesis", 0)])
def test_file_that_the_tests_leave_fails_the_run(pytester, name, status):
    pytester.makepyfile(f"def test_writer(): open({name!r}, 'w').close()")

    result = pytester.runpytest_inprocess("-p", "tests.suite")

    assert result.ret == status
    assert ("have left files in" in result.stdout.str()) is bool(status)
