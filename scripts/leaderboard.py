"""Results grouped by protocol and variant: mean, spread, seeds, paired tests, floors, published figures."""

import csv
import dataclasses
import io
import json
import re
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from common.attention import ALIASES
from common.cli import Parser
from common.config import from_json, to_json
from common.errors import BadDataError, look_up
from common.metrics import FEWEST_SEEDS, Comparison, holm, paired_comparison
from common.results import Result
from common.run import OWN_FILES, BaseRun, Preset, settings, task_title
from common.tasks import Task
from scripts import side_by_side
from scripts.cells import cells, footnotes, headings
from scripts.measurements import measurements
from scripts.mixture import MARK, plain_name, remarks
from scripts.packages import PACKAGES, find_package
from scripts.rows import Row, Table
from scripts.tables import RENDERERS, render

PRETRAINING = "model.pretraining"
"""Not a change of a preset's: taken from the checkpoint."""
PARTS = re.compile(r", (?:pretrained with|decoder|cross) [^,\[]+(?:\[[^\]]*\])?")
"""Of a row: other attentions in it than the one of its name."""
FORMULA = tuple("=+-@")
"""Begins a formula in a spreadsheet."""
FORMATS = (*RENDERERS, "csv", "json")
"""The last two hold numbers, the others words."""


@dataclass(frozen=True, kw_only=True)
class Group:
    """The results of one protocol, and the planned runs of it that have none."""

    results: list[Result] = field(default_factory=list)
    missing: list[dict[str, Any]] = field(default_factory=list)
    """Entries of sweep plans."""


def groups(results: Sequence[Result], missing: Sequence[dict[str, Any]]) -> list[Group]:
    """Returns a group for each protocol; results of different protocols never meet."""
    found: dict[str, Group] = {}
    for result in results:
        found.setdefault(result.protocol, Group()).results.append(result)
    waiting: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for entry in missing:
        waiting[settings(entry["package"], entry["run"])].append(entry)
    for group in found.values():
        some = group.results[0]
        there = {(result.row, result.seed) for result in group.results}
        entries = _once(waiting.pop(settings(some.package, some.run), []))
        group.missing.extend(entry for entry in entries if (entry["row"], entry["seed"]) not in there)
    return [*found.values(), *(Group(missing=_once(entries)) for entries in waiting.values())]


def _once(entries: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns one entry for each row and seed: what only looks on, such as diagnostics, makes another directory."""
    return list({(entry["row"], entry["seed"]): entry for entry in entries}.values())


def tables(results: Sequence[Result], missing: Sequence[dict[str, Any]], baseline: str) -> list[Table]:
    """Returns a table for each protocol."""
    return [table_of(group, baseline) for group in groups(results, missing)]


def table_of(held: Group, baseline: str) -> Table:
    """Returns the table of a group: a row a variant, each compared with the baseline."""
    group, absent = held.results, held.missing
    some = group[0] if group else None
    package, name = (some.package, some.task) if some else (absent[0]["package"], absent[0]["task"])
    preset, changed = (some.preset, some.changed) if some else (absent[0]["preset"], absent[0]["changed"])
    known = find_package(package) if package in PACKAGES else None
    task = known.tasks.get(name) if known else None
    presets = known.presets.get(name, {}) if known else {}
    by_row: dict[str, list[Result]] = defaultdict(list)
    for result in group:
        by_row[result.row].append(result)
    names = list(dict.fromkeys([*by_row, *(entry["row"] for entry in absent)]))
    plain = [name.split(MARK)[0] for name in names]
    names.sort(  # the baseline first, each row's earlier versions behind it
        key=lambda name: (name.split(MARK)[0] != baseline, not _is_plain(name.split(MARK)[0], baseline),
                          plain.index(name.split(MARK)[0]), MARK in name)
    )  # fmt: skip
    rows = [
        _row(
            name, by_row[name], [entry["seed"] for entry in absent if entry["row"] == name], task.beside if task else ()
        )
        for name in names
    ]
    for row in rows:
        against = _reference(row.name, by_row, baseline)
        row.against = against or ""
        row.comparison = None if against is None else _compare(by_row[row.name], by_row[against])
    _correct(rows, by_row)
    other_data = False
    title = f"{package} {name}, preset {preset}" if task is None else task_title(task, preset, changed)
    if some is not None and task is not None and some.task_version != task.version:
        title += f" [these results: version {some.task_version}]"
    if some is not None and (other_data := _other_data(task, some)):
        title += f" [other data than the preset's: sha256 {some.data_checksum[:12]}]"
    return Table(
        title=title,
        package=package,
        task=name,
        preset=preset,
        pretraining=str((some.run if some else absent[0]["run"])["model"].get("pretraining", "")),
        metric=some.metric if some else task.metric if task else "score",
        unit=task.unit if task else "share",
        higher_is_better=task is None or task.higher_is_better,
        measured=_measured(some, presets),
        baseline=baseline,
        rows=rows,
        floors=some.floors if some else {},
        chance=task.chance if task else None,
        published=list(task.published) if task else [],
        published_beside={metric: list(task.published_beside.get(metric, ())) for metric in task.beside}
        if task
        else {},
        comparable=task is not None
        and preset in presets
        and presets[preset].comparable
        and not (set(changed) - {PRETRAINING})
        and (some is None or _as_the_preset(some, presets[preset].run))
        and not other_data,
        devices=sorted({result.environment["device"] for result in group}),
        remarks=[
            *remarks(by_row, {row.name: row.against for row in rows if row.against}),
            *_plans(absent),
        ],
    )


def _plans(missing: Sequence[dict[str, Any]]) -> list[str]:
    plans = sorted({str(entry["plan"]) for entry in missing if "plan" in entry})
    return [f"missing runs were planned in {', '.join(plans)}; delete a plan that was given up"] if plans else []


def _measured(result: Result | None, presets: Mapping[str, Preset[BaseRun]]) -> str:
    """Returns what a result's run says of how its scores came about; nothing, if it is of another version."""
    if result is None or result.preset not in presets:
        return ""
    try:
        return from_json(type(presets[result.preset].run), result.run).measured
    except ValueError:
        return ""


def _as_the_preset(result: Result, meant: BaseRun) -> bool:
    """Returns whether a result has the checkpoint of its preset, and the preset's data, not files of somebody's own."""
    values = to_json(meant)
    return all(_at(result.run, path) == _at(values, path) for path in OWN_FILES)


def _at(values: Any, path: str) -> Any:
    for name in path.split("."):
        values = values.get(name, {}) if isinstance(values, dict) else None
    return values


def _other_data(task: Task | None, result: Result) -> bool:
    """Returns whether files of the user's own held other data than the preset means, though no field says so."""
    meant = None if task is None else task.checksums.get(result.preset)
    said = any(path.startswith("data.") for path in result.changed)
    return meant not in (None, result.data_checksum) and not said


def _row(name: str, results: Sequence[Result], missing: list[int], beside: Sequence[str]) -> Row:
    finished = [result for result in results if result.score is not None]
    scores = [result.score for result in finished if result.score is not None]
    row = Row(
        name=name,
        seeds=sorted(result.seed for result in finished),
        diverged=sorted(result.seed for result in results if result.score is None),
        missing=sorted(missing),
        notes=sorted({note for result in results for note in result.notes}),
    )
    if finished:
        row.mean, row.deviation = _spread(scores)
        every = {
            metric: [result.metrics[metric] for result in finished if metric in result.metrics] for metric in beside
        }
        row.beside = {metric: _spread(values) for metric, values in every.items() if values}
        row.tokens_per_second = float(np.median([result.tokens_per_second for result in finished]))
        row.peak_memory_bytes = max(result.peak_memory_bytes for result in finished)
    if results:
        row.parameters = results[0].parameters
    return row


def _spread(values: Sequence[float]) -> tuple[float, float | None]:
    return float(np.mean(values)), float(np.std(values, ddof=1)) if len(values) > 1 else None


def _reference(name: str, by_row: dict[str, list[Result]], baseline: str) -> str | None:
    """Returns the row to compare with: the baseline of the same norm and depth; for that, of the preset's norm.

    The baseline is that attention everywhere: in a decoder's places too, and in what a checkpoint was trained with.
    """
    if name not in by_row or not by_row[name]:
        return None
    some = by_row[name][0]
    rest = PARTS.sub("", plain_name(name).removeprefix(some.attention))
    candidates = [baseline + rest]
    if name == baseline + rest:
        candidates = [baseline + rest.replace(f", {some.norm}", "", 1), baseline]
        # Where no row has the preset's norm: the first baseline of this depth, among those with most seeds.
        alike = [
            row for row, held in by_row.items() if _is_plain(row, baseline) and held and held[0].layers == some.layers
        ]
        most = max((len(by_row[row]) for row in alike), default=0)
        candidates += [row for row in alike if len(by_row[row]) == most][:1]
    return next((each for each in candidates if each != name and by_row.get(each)), None)


def _is_plain(row: str, baseline: str) -> bool:
    """Returns whether a row's attention is the baseline, whose fields in brackets may have commas, and nothing else."""
    return (row == baseline or row.startswith(f"{baseline},")) and not PARTS.search(row)


def _compare(variant: Sequence[Result], baseline: Sequence[Result]) -> Comparison | None:
    """Returns the paired comparison over the seeds that both have, or None without any."""
    mine = {result.seed: result.example_scores for result in variant if result.score is not None}
    theirs = {result.seed: result.example_scores for result in baseline if result.score is not None}
    common = sorted(set(mine) & set(theirs))
    if not common:
        return None
    for seed in common:
        if len(mine[seed]) != len(theirs[seed]):
            raise BadDataError(
                f"{variant[0].row} and {baseline[0].row}, seed {seed}: scores of {len(mine[seed]):,} and "
                f"{len(theirs[seed]):,} test examples of the same data; one of the files was changed"
            )
    return paired_comparison([mine[seed] for seed in common], [theirs[seed] for seed in common])


def _correct(rows: Sequence[Row], by_row: Mapping[str, Sequence[Result]]) -> None:
    """Sets Holm's p-values of the rows with at least three seeds in common with their reference.

    A row that would have them but for runs that diverged has no p and is counted as one of 1: Holm's p-values never
    get smaller when one of them gets larger, so a run that diverges makes no other row look better.
    """
    seeds = {name: {result.seed for result in results} for name, results in by_row.items()}
    counted = [row for row in rows if row.against and len(seeds[row.name] & seeds[row.against]) >= FEWEST_SEEDS]
    p_values = [row.comparison.p_value if row.comparison else None for row in counted]
    for row, own, p_value in zip(
        counted, p_values, holm([1.0 if own is None else own for own in p_values]), strict=True
    ):
        row.p_corrected = None if own is None else p_value


def parser() -> Parser:
    """Returns the parser of ``seqarena leaderboard``."""
    made = Parser(prog="seqarena leaderboard", description=__doc__)
    made.add_argument("--runs", type=Path, default=Path("runs"), help="folder of results (default: runs)")
    made.add_argument(
        "--baseline", default="softmax", help="attention that the others are compared with (default: softmax)"
    )
    made.add_argument("--format", default="terminal", choices=[*FORMATS], help="how to print (default: terminal)")
    made.add_argument("--json", action="store_true", help="print one JSON object on the last line")
    made.add_argument("--side-by-side", action="store_true", help="the tasks of a package in the columns of one table")
    return made


def run(arguments: Sequence[str]) -> int:
    """Runs ``seqarena leaderboard`` and returns its exit code."""
    options = parser().parse_args(arguments)
    found = measurements(options.runs)
    for problem in found.problems:
        print(f"skipped {problem}", file=sys.stderr)
    baseline = ALIASES.get(options.baseline, options.baseline)
    if baseline != parser().get_default("baseline"):
        look_up(
            {result.attention: result for result in found.results.values()}, baseline, "attention among these results"
        )
    for message in found.duplicates:
        print(message, file=sys.stderr)
    made = tables(list(found.results.values()), found.missing, baseline)
    if options.json or options.format == "json":
        print(json.dumps({"tables": [dataclasses.asdict(table) for table in made]}, allow_nan=False))
        return 0
    if options.format == "csv":
        print(comma_separated(made), end="")
        return 0
    if options.side_by_side:
        for title, columns, rows, notes in side_by_side.join(made):
            print(render(title, columns, rows, notes, options.format))
        return 0
    for table in made:
        rows = [cells(row, table) for row in table.rows]
        print(render(table.title, headings(table), rows, footnotes(table), options.format))
    return 0


def _no_formula(value: Any) -> Any:
    """Returns a cell that no spreadsheet computes; numbers stay what they are."""
    is_formula = isinstance(value, str) and value.lstrip()[:1] in FORMULA
    return f"'{value}" if is_formula else value


def comma_separated(made: Sequence[Table]) -> str:
    """Returns all tables as CSV, a line a row, plain numbers; fractions are not per cent."""
    file = io.StringIO()
    plain = [each.name for each in dataclasses.fields(Row) if each.name != "comparison"]
    compared = [each.name for each in dataclasses.fields(Comparison) if each.name != "seeds"]
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(["table", *plain, *compared])
    for table in made:
        for row in table.rows:
            values = [getattr(row, name) for name in plain]
            words = [" ".join(map(str, value)) if isinstance(value, list) else value for value in values]
            words = [_no_formula(value) for value in (table.title, *words)]
            writer.writerow([*words, *(getattr(row.comparison, name, None) for name in compared)])
    return file.getvalue()
