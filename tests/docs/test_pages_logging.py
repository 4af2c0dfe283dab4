"""The table of loggers in the guide has all loggers of the client."""

import re

from tests.docs.pages import FOLDER, ROOT

NAMED = re.compile(r"getLogger\((?:__name__|f?\"(gnsq[\w.{} ]*)\"|name or f\"(gnsq\.[^\"]*)\")\)")


def loggers():
    found = set()
    for path in (ROOT / "gnsq").rglob("*.py"):
        if not {"cli", "spark"} & {*path.parts}:  # programs, which set up their own logs
            module = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
            for literal, formatted in NAMED.findall(path.read_text()):
                found.add(literal or formatted.replace("{topic}.{channel}", "TOPIC.CHANNEL") or module)
    return found


def test_table_has_all_loggers():
    text = (FOLDER / "guides/logging.md").read_text()
    rows = text.split("| logger | lines about |\n|---|---|\n")[1].split("\n\n")[0]

    assert set(re.findall(r"^\| `([\w.]+)`", rows, re.M)) == loggers()
