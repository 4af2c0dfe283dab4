"""Faults that are planted into the source."""

import ast

from integration.mutants import ROOT, chosen, faults_of

CODE = """
def f(a, b):
    if a < 1 and b:  # ä
        wake.wait(2)
        close()
"""


def test_each_kind_of_fault_is_found():
    assert {(fault.line, fault.kind, fault.before, fault.after) for fault in faults_of("x.py", CODE)} == {
        (3, "comparison", "a < 1", "(a <= 1)"),
        (3, "and for or", "a < 1 and b", "((a < 1) or (b))"),
        (3, "condition never holds", "a < 1 and b", "False"),
        (4, "wait left out", "wake.wait(2)", "pass"),
        (5, "call left out", "close()", "pass"),
    }


def test_same_seed_plants_the_same_faults_into_valid_code(tmp_path):
    def faults(seed):
        return chosen(20, seed, folders=("gnsq/protocol", "fakensqd/faults"))

    assert faults(1) == faults(1)
    assert faults(1) != faults(2)
    for fault in {*faults(1), *faults(2)}:
        path = tmp_path / fault.path
        path.parent.mkdir(parents=True, exist_ok=True)
        fault.plant(tmp_path)
        ast.parse(path.read_text())
        assert path.read_text() != (ROOT / fault.path).read_text()
