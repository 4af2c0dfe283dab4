"""The plugin of ``make test``, in test runs of its own."""

import pytest

pytest_plugins = ["pytester"]


@pytest.mark.parametrize(("name", "status"), [("nsqd.dat", 1), (".hypothesis", 0)])
def test_file_that_the_tests_leave_fails_the_run(pytester, name, status):
    pytester.makepyfile(f"def test_writer(): open({name!r}, 'w').close()")

    result = pytester.runpytest_inprocess("-p", "tests.suite")

    assert result.ret == status
    assert ("have left files in" in result.stdout.str()) is bool(status)


@pytest.mark.subprocess
def test_one_worker_alone_runs_the_files_that_need_the_common_jvm(pytester, monkeypatch, pytestconfig):
    monkeypatch.setenv("PYTHONPATH", str(pytestconfig.rootpath))
    pytester.makeini("[pytest]\nmarkers = spark")
    pytester.mkdir("ran")
    body = "import os, pathlib\ndef test(): pathlib.Path('ran', {!r} + os.environ['PYTEST_XDIST_WORKER']).touch()"
    pytester.makeconftest("import pytest\n@pytest.fixture\ndef spark(): pass")
    spark = f"import pytest\npytestmark = pytest.mark.spark\n{body.format('spark ')}".replace("test()", "test(spark)")
    pytester.makepyfile(test_other=body.format("other "), **{f"test_spark_{number}": spark for number in range(4)})

    result = pytester.runpytest_subprocess("-p", "tests.suite", "-n", "2")

    result.assert_outcomes(passed=5)
    ran = sorted(path.name for path in pytester.path.joinpath("ran").iterdir())
    assert ran in (["other gw0", "spark gw1"], ["other gw1", "spark gw0"])
