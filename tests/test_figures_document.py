"""The numbers that docs/figures.md tells of a figure are those that the command found; see docs/measurements."""

import re
from pathlib import Path

import pytest

from seqarena.common.saved_table import read_table

ROOT = Path(__file__).parent.parent
TEXT = re.sub(r"<!-- .*?<!-- end of the table -->", "", (ROOT / "docs" / "figures.md").read_text(), flags=re.DOTALL)
"""The document without tables that are written from records."""
FOUND: dict[str, str] = {}
for path in sorted((ROOT / "docs" / "measurements").glob("figures-*.json")):
    for found, name, _ in read_table(path).rows:
        FOUND[name] = f"{FOUND.get(name, '')} {found}"
SECTIONS = dict(re.findall(r"\(figures/([a-z0-9-]+)\.png\)\n(.*?)(?=\n!\[|\n##|\Z)", TEXT, re.DOTALL))
CHECKED = sorted(FOUND.keys() & SECTIONS.keys() - {"depth"})
"""Figures whose sections are compared. The tables of ``depth`` are written from its trainings."""
NUMBER = re.compile(r"\d+\.\d+(?:e-?\d+)?|\d+e-\d+|\d+(?= %)|(?<=\| )\d+(?= \|)")
"""Numbers with a point or an exponent, per cents, and cells of tables."""
SETTINGS = {
    "p1-heads": {"5", "95"},
    "p1-scales": {"0.02"},
    "p2-collapse": {"1.3", "1.5", "1.7"},
    "p3-start": {"0.02"},
    "p3-steps": {"0.29", "0.4"},
    "p3-removal": {"0.4"},
}
"""Figure -> numbers of its section that are settings, or those of other figures."""


def is_rounded(text: str, value: str) -> bool:
    """Returns whether ``text`` is ``value`` rounded to the digits of ``text``."""
    digits = re.fullmatch(r"\d+(?:\.(\d+))?(?:e(-?\d+))?", text)
    assert digits is not None
    unit = 10.0 ** (int(digits[2] or 0) - len(digits[1] or ""))
    return abs(float(text) - float(value)) <= 0.5001 * unit


@pytest.mark.parametrize("name", CHECKED)
def test_the_numbers_of_a_section_are_those_that_were_found(name: str) -> None:
    values = re.findall(r"\d+(?:\.\d+)?(?:e[-+]?\d+)?", FOUND[name].replace(",", ""))
    told = set(NUMBER.findall(SECTIONS[name])) - SETTINGS.get(name, set())
    assert {each for each in told if not any(is_rounded(each, value) for value in values)} == set()


def test_most_figures_are_checked() -> None:
    """Those that draw files or runs of the user's have no measurements of their own."""
    assert set(SECTIONS) - set(CHECKED) == {"p1-picture", "p2-runs", "depth", "depth-layers"}
