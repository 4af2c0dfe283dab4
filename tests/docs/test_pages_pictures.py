"""The pictures of the documentation: small, readable, and without anything from other hosts."""

import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

PICTURES = sorted((Path(__file__).parents[2] / "docs/pages/pictures").glob("*.svg"))
MAX_BYTES = 8192
MIN_PIXELS = 13

pytestmark = pytest.mark.parametrize("picture", PICTURES, ids=[picture.stem for picture in PICTURES])


def test_picture_is_small_and_has_a_title(picture):
    root = ElementTree.parse(picture).getroot()

    assert picture.stat().st_size < MAX_BYTES
    assert root.find("{http://www.w3.org/2000/svg}title").text == root.get("aria-label")


def test_picture_loads_nothing_and_its_letters_are_large(picture):
    text = picture.read_text()

    assert re.findall(r"(?:https?:)?//[^\"' )]+", text) == ["http://www.w3.org/2000/svg"]
    sizes = [int(size) for size in re.findall(r"(?:font:|font-size:)(\d+)px", text)]
    assert sizes
    assert min(sizes) >= MIN_PIXELS
