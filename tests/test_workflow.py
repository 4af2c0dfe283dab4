"""The workflow for GitHub, .ci/run and the Makefile name each other's parts rightly."""

import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parent.parent
WORKFLOW = ROOT / ".github" / "workflows" / "ci.yml"
JOBS = yaml.safe_load(WORKFLOW.read_text())["jobs"]
SCRIPT = (ROOT / ".ci" / "run").read_text()
TARGETS = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


@pytest.mark.parametrize("name", JOBS)
def test_job_is_a_part_of_the_script(name):
    runs = [step["run"] for step in JOBS[name]["steps"] if "run" in step]

    assert runs[-1] == f".ci/run {name}"
    assert not any(".ci/run" in run for run in runs[:-1])
    assert re.search(rf"\b{name}( \||\))", SCRIPT)


@pytest.mark.parametrize("name", JOBS)
def test_job_is_bounded_and_its_actions_and_machine_are_pinned(name):
    job = JOBS[name]
    used = [step["uses"] for step in job["steps"] if "uses" in step]

    assert job["timeout-minutes"] <= 45
    assert re.fullmatch(r"ubuntu-\d+\.\d+", job["runs-on"])
    assert all(re.fullmatch(r"actions/[a-z-]+@v\d+", action) for action in used)


def test_matrices_have_what_is_supported():
    matrices = {name: job["strategy"]["matrix"] for name, job in JOBS.items() if "strategy" in job}

    assert matrices == {
        "test": {"python": ["3.11", "3.12", "3.13"]},
        "integration": {"nsq": ["1.3.0", "1.2.1", "1.1.0"]},
        "spark": {"pyspark": ["4.3", "4.2"]},
    }


@pytest.mark.parametrize("name", [name for name in JOBS if "strategy" in JOBS[name]])
def test_each_value_of_a_matrix_is_used(name):
    (key,) = JOBS[name]["strategy"]["matrix"]

    assert f"${{{{ matrix.{key} }}}}" in str(JOBS[name])


def test_programs_of_the_integration_job_are_those_of_the_composed_servers():
    image = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]["nsqd"]["image"]
    *_, before = [step["run"] for step in JOBS["integration"]["steps"] if "run" in step][:-1]

    assert f'docker create "{image.replace(":-1.3.0", "")}"' in before
    assert before.rstrip().endswith('>> "$GITHUB_PATH"')


@pytest.mark.parametrize("variable", ["PYSPARK", "PYTHON", "NSQ_VERSION"])
def test_each_variable_is_read_by_something(variable):
    readers = [SCRIPT, (ROOT / "Makefile").read_text(), (ROOT / "docker-compose.yml").read_text()]

    assert variable in WORKFLOW.read_text()
    assert any(re.search(rf"\$[({{]{variable}\b", text) for text in readers)


def test_targets_that_the_script_makes_exist():
    parts = re.search(r"^\s+([a-z |]+)\) make \"\$1\"", SCRIPT, re.MULTILINE)[1]

    assert {part.strip() for part in parts.split("|")} <= TARGETS


def test_nothing_secret_is_needed():
    text = WORKFLOW.read_text()

    assert "secrets." not in text
    assert yaml.safe_load(text)["permissions"] == {"contents": "read"}
