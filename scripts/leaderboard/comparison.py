"""The rows of a leaderboard: mean and standard deviation of each, and paired tests against the baseline."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from seqarena.common.errors import short_list
from seqarena.common.runs.results import Result
from seqarena.common.runs.run import LAYERS, OTHER_ATTENTIONS, VERSION, RowParts, row_name
from seqarena.scripts.leaderboard.paired import FEWEST_SEEDS, MORE_SEEDS, holm, noise_of, paired_comparison
from seqarena.scripts.leaderboard.protocol import Group
from seqarena.scripts.leaderboard.remarks import is_earlier, without_version
from seqarena.scripts.leaderboard.rows import Row

ByRow = Mapping[RowParts, Sequence[Result]]
Scores = list[Sequence[float]]
"""Per seed, the scores of all test examples."""


def rows_of(group: Group, baseline: str, secondary: Sequence[str]) -> tuple[list[Row], ByRow]:
    """Returns the rows of a group, the baseline first, each compared with its baseline, and the results of each row.

    ``baseline``: name of an attention. ``secondary``: the task's metrics other than its main one.
    """
    by_row: dict[RowParts, list[Result]] = defaultdict(list)
    for result in group.results:
        by_row[result.row].append(result)
    found = list(dict.fromkeys([*by_row, *(entry["row"] for entry in group.missing)]))
    plain = list(dict.fromkeys(map(without_version, found)))
    found.sort(  # the baseline first; earlier versions follow their row
        key=lambda parts: (
            without_version(parts) != (("attention", baseline),),
            not _is_of(parts, baseline),
            plain.index(without_version(parts)),
            is_earlier(parts),
        )
    )
    rows = [_row(parts, by_row[parts], group.missing, secondary) for parts in found]
    task = group.task
    for row in rows:
        if task.solved_from is not None and by_row[row.parts]:
            scores = [result.score for result in by_row[row.parts] if result.score is not None]
            row.solved = sum(score >= task.solved_from for score in scores)
        versions = _references(row.parts, by_row, baseline)
        reasons = [_obstacle(by_row[row.parts], by_row[each]) for each in versions]
        if "" in reasons:
            against = versions[reasons.index("")]
            row.against = row_name(against)
            mine, theirs = _paired_scores(by_row[row.parts], by_row[against])
            row.comparison = paired_comparison(mine, theirs) if mine else None
            if not mine and row.mean is not None:
                row.not_compared = f"no finished seed in common with {row.against}"
        elif reasons:
            row.not_compared = reasons[0]
        elif row.mean is not None and not _is_of(row.parts, baseline):
            row.not_compared = f"there is no result of {row_name(counterpart(row.parts, baseline))} in this table"
    by_name = {row_name(parts): results for parts, results in by_row.items()}
    for family in (False, True):
        _correct([row for row in rows if is_earlier(row.parts) is family], by_name)
    return rows, by_row


def _row(
    parts: RowParts, results: Sequence[Result], missing: Sequence[dict[str, Any]], secondary: Sequence[str]
) -> Row:
    finished = [result for result in results if result.score is not None]
    row = Row(
        name=row_name(parts),
        parts=parts,
        seeds=sorted(result.seed for result in finished),
        diverged=sorted(result.seed for result in results if result.score is None),
        missing=sorted(entry["seed"] for entry in missing if entry["row"] == parts),
        notes=sorted({note for result in results for note in result.notes}),
    )
    if finished:
        row.mean, row.deviation = _spread([result.score for result in finished if result.score is not None])
        every = {
            metric: [result.metrics[metric] for result in finished if metric in result.metrics] for metric in secondary
        }
        row.secondary = {metric: _spread(values) for metric, values in every.items() if values}
        row.incomplete_metrics = {
            metric: len(values) for metric, values in every.items() if 0 < len(values) < len(finished)
        }
        row.tokens_per_second = float(np.median([result.tokens_per_second for result in finished]))
        row.peak_memory_bytes = max(result.peak_memory_bytes for result in finished)
    if results:
        row.parameters = results[0].parameters
    return row


def _spread(values: Sequence[float]) -> tuple[float, float | None]:
    return float(np.mean(values)), float(np.std(values, ddof=1)) if len(values) > 1 else None


def _references(parts: RowParts, by_row: ByRow, baseline: str) -> list[RowParts]:
    """Returns the versions of the row to compare with, the newest first; empty: there is no such row.

    It is the baseline of the same norm and depth; for that row, of the preset's norm. In it all attentions are the
    baseline, including a decoder's and the one of the pretraining.
    """
    if not by_row.get(parts):
        return []
    versions: dict[RowParts, list[RowParts]] = defaultdict(list)
    for row in sorted((row for row in by_row if by_row[row]), key=lambda row: _finished(by_row[row]), reverse=True):
        versions[without_version(row)].append(row)
    own, same = (("attention", baseline),), counterpart(parts, baseline)
    candidates = [same]
    if without_version(parts) == same:
        candidates = [tuple(part for part in same if part[0] != "norm")]
        if not {"norm", LAYERS} <= {part for part, _ in same}:
            candidates.append(own)  # else it would differ in norm and depth at once
    if without_version(parts) == same and not any(each in versions for each in candidates):
        # No row has the preset's norm: the first baseline of this depth, among those with most seeds.
        layers = by_row[parts][0].layers
        plain = [row for row in by_row if row[0] == own[0] and {part for part, _ in row[1:]} <= {"norm", LAYERS}]
        alike = [row for row in plain if by_row[row] and by_row[row][0].layers == layers]
        most = max((len(by_row[row]) for row in alike), default=0)
        candidates += [row for row in alike if len(by_row[row]) == most][:1]
    return next((versions[each] for each in candidates if each != without_version(parts) and each in versions), [])


def counterpart(parts: RowParts, baseline: str) -> RowParts:
    """Returns the row of the same norm, depth and model in which every attention is the baseline."""
    rest = tuple(part for part in parts if part[0] not in ("attention", VERSION, *OTHER_ATTENTIONS))
    return (("attention", baseline), *rest)


def _finished(results: Sequence[Result]) -> str:
    return max(result.finished_at for result in results)


def _obstacle(results: Sequence[Result], baseline: Sequence[Result]) -> str:
    """Returns why a row and one of the baseline cannot be compared. Empty: they can.

    They were tested on other numbers of examples, or a source of both has changed. Sources that only one of them
    depends on, such as the files of the two variants, may differ.
    """
    mine, theirs, name = results[0].sources, baseline[0].sources, row_name(without_version(baseline[0].row))
    counts = [{len(each.example_scores) for each in some if each.score is not None} for some in (results, baseline)]
    if len(counts[0] | counts[1]) > 1:
        words = [" and ".join(f"{count:,}" for count in sorted(each)) for each in counts]
        return f"it was tested on {words[0]} examples, {name} on {words[1]}"
    if bool(mine) != bool(theirs):
        return f"sources were recorded {f'here but not for {name}' if mine else f'for {name} but not here'}"
    changed = [path for path in sorted(mine.keys() & theirs.keys()) if mine[path] != theirs[path]]
    return f"no {name} was measured by the same version of {short_list(changed)}" if changed else ""


def _is_of(parts: RowParts, baseline: str) -> bool:
    """Returns whether a row's attention is the baseline and it names no other attention."""
    return parts[0] == ("attention", baseline) and not any(part in OTHER_ATTENTIONS for part, _ in parts)


def _paired_scores(variant: Sequence[Result], baseline: Sequence[Result]) -> tuple[Scores, Scores]:
    """Returns the scores of both, paired by the seeds that both have; without one, two empty lists."""
    mine = {result.seed: result.example_scores for result in variant if result.score is not None}
    theirs = {result.seed: result.example_scores for result in baseline if result.score is not None}
    common = sorted(set(mine) & set(theirs))
    return [mine[seed] for seed in common], [theirs[seed] for seed in common]


def _correct(rows: Sequence[Row], by_row: Mapping[str, Sequence[Result]]) -> None:
    """Sets Holm's p-values and detectable differences of the rows with three seeds in common with their baseline.

    Diverged runs count towards these seeds. A row that lacks a p-value because of them enters Holm's method with p =
    1. A larger p never reduces the others, so a diverged run cannot improve any other row.
    """
    seeds = {name: {result.seed for result in results} for name, results in by_row.items()}
    counted = [row for row in rows if row.against and len(seeds[row.name] & seeds[row.against]) >= FEWEST_SEEDS]
    p_values = [row.comparison.p_value if row.comparison else None for row in counted]
    for row, own, p_value in zip(
        counted, p_values, holm([1.0 if own is None else own for own in p_values]), strict=True
    ):
        row.p_corrected = None if own is None else p_value
        noise = noise_of(*_paired_scores(by_row[row.name], by_row[row.against])) if own is not None else None
        if noise is not None:
            counts = (noise.seeds, *(each for each in MORE_SEEDS if each > noise.seeds))
            row.detectable = {each: noise.with_seeds(each).detectable(len(counted)) for each in counts}
