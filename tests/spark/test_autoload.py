import importlib

import pytest

from tests.kit import run_program


def test_default_source_is_the_nsq_format():
    module = importlib.import_module("gnsq.spark.autoload")

    assert module.DefaultSource.name() == "nsq"


@pytest.mark.parametrize("missing", ["pyspark", "pyarrow", "gevent"])
@pytest.mark.subprocess
def test_import_never_raises(missing):
    code = (
        f"import sys; sys.modules[{missing!r}] = None\n"
        "import runpy; found = runpy.run_path(sys.argv[1]); print('DefaultSource' in found)"
    )
    path = importlib.import_module("gnsq.spark.autoload").__file__

    done = run_program(code, path, flags=())

    assert done.stdout == "False\n"
    assert "format nsq is not available" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.subprocess
def test_without_pyspark_the_extra_is_named():
    code = (
        "import sys; sys.modules['pyspark'] = None\n"
        "from gnsq import spark\n"
        "try: spark.register(None)\n"
        "except ImportError as error: print(error)"
    )

    done = run_program(code, flags=())

    assert done.stdout.startswith("gnsq.spark needs pyspark and pyarrow: pip install 'gnsq[spark]' (")
