"""Scores any system's headlines against references, by the protocol of published Gigaword results."""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from seqarena.common.data.readers import text_lines
from seqarena.common.errors import BadDataError, WrongUseError
from seqarena.common.parser import Parser
from seqarena.common.runs.metrics import Array
from seqarena.summarization.rouge import METRICS, Interval, drop_unknown, intervals, rows, text_statistics


def parser() -> Parser:
    """Returns the parser of ``seqarena summarization score``."""
    made = Parser(prog="seqarena summarization score", description=__doc__)
    made.add_argument("--hypotheses", type=Path, required=True, help="a system's headlines, one per line")
    made.add_argument("--references", type=Path, required=True, help="references, one per line in the same order")
    made.add_argument("--documents", type=Path, help="texts, one per line, for the fraction of novel words")
    made.add_argument("--baseline", type=Path, help="another system's headlines, for the difference paired by row")
    made.add_argument("--seed", type=int, default=0, help="seed of the bootstrap (default: 0)")
    made.add_argument("--json", action="store_true", help="print one JSON object")
    return made


def run(arguments: Sequence[str]) -> int:
    """Runs ``seqarena summarization score`` and returns its exit code."""
    options = parser().parse_args(arguments)
    if options.seed < 0:
        raise WrongUseError(f"--seed: expected at least 0, found {options.seed}")
    references = lines_of(options.references)
    hypotheses = lines_of(options.hypotheses, (options.references, len(references)))
    documents = (
        None if options.documents is None else lines_of(options.documents, (options.references, len(references)))
    )
    scores = rows(hypotheses, references)
    found = intervals(scores, options.seed)
    without = intervals(rows(drop_unknown(hypotheses), references), options.seed)
    package = intervals(rows(hypotheses, references, "rouge-score"), options.seed)
    others = text_statistics(hypotheses, references, documents)
    differences = {}
    if options.baseline is not None:
        baseline = lines_of(options.baseline, (options.references, len(references)))
        differences = paired_differences(scores, rows(baseline, references))
    if options.json:
        values: dict[str, Any] = {name: asdict(each) for name, each in found.items()}
        values |= {"drop": {name: asdict(each) for name, each in without.items()}}
        values |= {"rouge-score": {name: asdict(each) for name, each in package.items()}}
        values |= {"rows": len(references), **others}
        print(json.dumps(values | ({"difference": differences} if differences else {}), allow_nan=False))
        return 0
    for text in _table(len(references), found, without, package, differences):
        print(text)
    print(", ".join(f"{name.replace('_', ' ')} {value:.4f}" for name, value in others.items()))
    empty = sum(not each.strip() for each in hypotheses)
    if empty:
        print(f"empty hypotheses (score 0): {empty:,}", file=sys.stderr)
    return 0


ROUNDING = 1e-12
"""Differences of F1 between rows that are equal but for rounding: 1 - 2/3 and 2/3 - 1/3."""


def paired_differences(
    scores: Mapping[str, Array], baseline: Mapping[str, Array]
) -> dict[str, dict[str, float | None]]:
    """Returns, by metric, the difference of two systems' means, its 95 % interval (both times 100) and its p-value.

    Uses Student's t over rows. This compares two files; it says nothing about the variation over training seeds.
    """
    from scipy import stats  # noqa: PLC0415  # importing it takes half a second

    found: dict[str, dict[str, float | None]] = {}
    for name in METRICS:
        differences = 100 * (scores[name] - baseline[name])
        found[name] = {"mean": float(differences.mean()), "low": None, "high": None, "p_value": None}
        if np.ptp(differences) > 100 * ROUNDING:
            tested = stats.ttest_1samp(differences, 0)
            low, high = tested.confidence_interval()
            found[name] |= {"low": float(low), "high": float(high), "p_value": float(tested.pvalue)}
    return found


def _table(
    count: int,
    found: Mapping[str, Interval],
    without: Mapping[str, Interval],
    package: Mapping[str, Interval],
    differences: Mapping[str, Mapping[str, float | None]],
) -> list[str]:
    lines = [f"{f'{count:,} rows':<28}{'  '.join(f'{name:<20}' for name in METRICS)}"]
    shown_as = (
        ("unknown words count", found),
        ("unknown words dropped", without),
        ("stems of rouge-score", package),
    )
    for label, some in shown_as:
        lines.append(f"  {label:<26}{'  '.join(f'{some[name]!s:<20}' for name in METRICS)}")
    if differences:
        shown = (
            f"{each['mean']:+.2f}" + ("" if each["low"] is None else f" [{each['low']:+.2f}, {each['high']:+.2f}]")
            for each in differences.values()
        )
        lines.append(f"  {'minus the baseline':<26}{'  '.join(f'{text:<20}' for text in shown)}")
        values = (_level(each["p_value"], each["mean"]) for each in differences.values())
        lines.append(f"  {'p, over these rows only':<26}{'  '.join(f'{text:<20}' for text in values)}")
    return [line.rstrip() for line in lines]


def _level(p_value: float | None, difference: float | None) -> str:
    if p_value is None:
        return "no test" if difference else "equal"
    return f"{p_value:.4f}" if p_value >= 1e-4 else "below 0.0001"


def lines_of(path: Path, expected: tuple[Path, int] | None = None) -> list[str]:
    """Returns a file's lines; ``expected``: another file and its number of lines, which must be equal.

    Raises:
        BadDataError: the file is empty, or has another number of lines; names both numbers.
    """
    found = list(text_lines(path))
    if not found:
        raise BadDataError(f"{path} is empty")
    if expected is not None and len(found) != expected[1]:
        raise BadDataError(
            f"{path} has {len(found):,} lines and {expected[0]} {expected[1]:,}; expected the same number"
        )
    return found
