"""The page of findings quotes tables: every interval and p-value on it stands in a table of committed results."""

import re
from pathlib import Path

from tests.tables import printed

DOCS = Path(__file__).parents[1] / "docs"
INTERVAL = re.compile(r"[-+]\d+\.\d+ \[[-+]\d+\.\d+, [-+]\d+\.\d+\]")
TABLES = "".join(
    block
    for path in [DOCS.parent / "README.md", *sorted(DOCS.glob("*.md"))]
    for block in re.findall(r"<!-- seqarena leaderboard .*?<!-- end of the table -->", path.read_text(), re.DOTALL)
)


"""Printed from the committed results, which another test checks."""


def test_every_interval_is_one_of_a_table() -> None:
    quoted = INTERVAL.findall((DOCS / "findings.md").read_text())
    assert len(quoted) > 15
    tables = TABLES + printed("leaderboard", "--runs results/quick/qa")  # docs/qa.md has this table without intervals
    absent = [each for each in quoted if each not in tables]
    assert absent == []


def test_a_p_value_stands_in_the_row_of_its_interval() -> None:
    quoted = re.findall(rf"({INTERVAL.pattern})[^;|]*?p = (0\.\d+)", (DOCS / "findings.md").read_text())
    assert len(quoted) >= 4
    for interval, p in quoted:
        (row, *_) = [line for line in TABLES.splitlines() if interval in line]
        assert f"| {p} |" in row, (interval, p)
