import importlib

import pytest

from tests.kit import run_program


def test_default_source_is_the_nsq_format():
    module = importlib.import_module("gnsq.spark.autoload")

    assert module.DefaultSource.name() == "nsq"


@pytest.mark.subprocess
def test_import_never_raises_and_register_names_the_extra():
    code = (
        "import sys; sys.modules['pyspark'] = None\n"
        "import runpy; found = runpy.run_path(sys.argv[1]); print('DefaultSource' in found)\n"
        "try: from gnsq import spark; spark.register(None)\n"
        "except ImportError as error: print(error)"
    )
    path = importlib.import_module("gnsq.spark.autoload").__file__

    done = run_program(code, path, flags=())

    found, said = done.stdout.splitlines()
    assert found == "False"
    assert said.startswith("gnsq.spark needs pyspark and pyarrow: pip install 'gnsq[spark]' (")
    assert "format nsq is not available" in done.stderr
    assert "Traceback" not in done.stderr
