"""gnsq completion: the scripts of the shells."""

import os
import shlex
import shutil
import subprocess

import pytest

from tests.kit import PYTHON, run
from tests.kit.commands import invoke


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_script_of_each_shell_is_printed(shell):
    result = invoke("completion", shell)

    assert result.exit_code == 0
    assert f"_GNSQ_COMPLETE={shell}_complete" in result.stdout


def test_unknown_shell_is_refused():
    result = invoke("completion", "csh")

    assert result.exit_code == 2
    assert "'csh' is not one of" in result.stderr


@pytest.fixture
def program(tmp_path):
    """The command gnsq, in a directory of its own."""
    file = tmp_path / "gnsq"
    file.write_text(f'#!/bin/sh\nexec {PYTHON} -m gnsq "$@"\n')
    file.chmod(0o755)
    return file


@pytest.mark.subprocess
@pytest.mark.skipif(not shutil.which("bash"), reason="there is no bash on PATH")
def test_bash_completes_with_the_script(program):
    line = ["gnsq", "stats", "--rev"]
    words = f"COMP_WORDS=({' '.join(line)}) COMP_CWORD={len(line) - 1}"
    call = f"_gnsq_completion {shlex.quote(str(program))}\necho ${{COMPREPLY[@]}}"
    script = f"{invoke('completion', 'bash').stdout}{words}\n{call}"

    result = run("bash", "-c", script, env=os.environ, stdin=subprocess.DEVNULL)

    assert result.stdout.split() == ["--reverse"]
    assert result.stderr == ""


@pytest.mark.subprocess
@pytest.mark.skipif(not shutil.which("fish"), reason="there is no fish on PATH")
def test_fish_completes_with_the_script(program):
    script = f"{invoke('completion', 'fish').stdout}\ncomplete -C 'gnsq completion ba'"
    environment = {**os.environ, "PATH": f"{program.parent}:{os.environ['PATH']}", "HOME": str(program.parent)}

    result = run("fish", "--no-config", "-c", script, env=environment, stdin=subprocess.DEVNULL)

    assert result.stdout.split() == ["bash"]
    assert result.stderr == ""


@pytest.mark.subprocess
@pytest.mark.skipif(not shutil.which("zsh"), reason="there is no zsh on PATH")
def test_zsh_completes_with_the_script(program):
    # zsh completes only in its line editor. So this calls the script's function, and prints what it passes to zsh.
    line = ["gnsq", "completion", "ba"]
    script = (
        f"compdef() {{ }}\ncompadd() {{ print -l -- ${{(P)@[-1]}} }}\n{invoke('completion', 'zsh').stdout}\n"
        f"words=({' '.join(line)}) CURRENT={len(line)}\n_gnsq_completion"
    )
    environment = {**os.environ, "PATH": f"{program.parent}:{os.environ['PATH']}"}

    result = run("zsh", "-f", "-c", script, env=environment, stdin=subprocess.DEVNULL)

    assert result.stdout.split() == ["bash"]
    assert result.stderr == ""
