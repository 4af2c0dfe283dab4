"""Print what gnsq with some extras needs, for a layer of an image that a change of gnsq's source leaves as it is."""

import sys
import tomllib
from pathlib import Path

project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
lists = [project["dependencies"], *(project["optional-dependencies"][extra] for extra in sys.argv[1:])]
print(*sorted({line for lines in lists for line in lines}), sep="\n")
