"""gnsq completion: the scripts of the shells."""

import shlex
import shutil

import pytest

from tests.kit import PYTHON, run
from tests.kit.commands import invoke


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_script_of_each_shell_is_printed(shell):
    result = invoke("completion", shell)

    assert result.exit_code == 0
    assert f"_GNSQ_COMPLETE={shell}_complete" in result.stdout


@pytest.mark.subprocess
@pytest.mark.skipif(not shutil.which("bash"), reason="there is no bash on PATH")
def test_bash_completes_with_the_script(tmp_path):
    program = tmp_path / "gnsq"
    program.write_text(f'#!/bin/sh\nexec {PYTHON} -m gnsq "$@"\n')
    program.chmod(0o755)
    call = f"COMP_WORDS=(gnsq stats --rev) COMP_CWORD=2\n_gnsq_completion {shlex.quote(str(program))}"
    script = f"{invoke('completion', 'bash').stdout}{call}\necho ${{COMPREPLY[@]}}"

    result = run("bash", "-c", script)

    assert result.stdout.split() == ["--reverse"]
    assert result.stderr == ""
