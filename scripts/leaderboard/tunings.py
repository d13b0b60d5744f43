"""Groups results whose fields were tuned (``seqarena sweep --tune``): each row at its own choice, one grid for all."""

import json
import os
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

from seqarena.common.runs.results import Result
from seqarena.common.runs.run import RowParts, row_name
from seqarena.scripts.leaderboard.protocol import GridScores, Group, Protocol, protocol_of
from seqarena.scripts.leaderboard.remarks import separate_versions
from seqarena.scripts.sweep.tuning import Choice, Tuning, in_one_spelling


def with_tuned(
    results: Mapping[Path, Result],
    tunings: Mapping[Path, Tuning],
    planned: Iterable[Path],
    twins: Mapping[Path, Path] = MappingProxyType({}),
) -> tuple[dict[Path, Result], list[Group], list[tuple[Path, Result]], list[str]]:
    """Returns the results of ordinary tables, one group per tuned protocol, the results in these groups, and messages.

    A tuned result, also of an earlier choice, is in an ordinary table only if an ordinary sweep ``planned`` it. There
    the choice of other rows would otherwise decide with which rows it is compared. ``twins``: ignored directory -> the
    directory with a newer result of the same run, which is used in its place. Directories may be reached by links. A
    copy of a directory is known by its name, which has the hashes of the run and of its sources.
    """
    by_real_path = {os.path.realpath(each): each for each in (*results, *twins)}
    used: set[Path] = set()
    found: dict[tuple[Protocol, RowParts], list[_Row]] = defaultdict(list)
    missing: dict[Path, list[str]] = defaultdict(list)
    problems: list[str] = []
    tested: set[str] = set()
    for path, tuning in tunings.items():
        tested |= {Path(each).name for each in tuning.earlier}
        for choice in tuning.choices:
            tested |= {Path(each).name for each in choice.folders}
            named = [by_real_path.get(os.path.realpath(path.parent.parent / each)) for each in choice.folders]
            folders = [twins.get(each, each) for each in named if each is not None]
            absent = len(named) - len(folders)
            if absent:
                missing[path].append(f"{row_name(choice.row)} {absent} of {len(named)}")
            other = [each for each in folders if results[each].row != choice.row]
            problems += [f"{path}: {each} has another row than {row_name(choice.row)}" for each in other]
            some: dict[Protocol, dict[Path, Result]] = defaultdict(dict)
            for each in folders:
                if each not in other:
                    used.add(each)
                    some[_tuned_protocol(results[each], tuning)][each] = results[each]
            for protocol, those in some.items():
                found[protocol, choice.row].append(_Row(path=path, tuning=tuning, choice=choice, results=those))
    shown = {each.path for some in found.values() for each in some}
    problems += [
        f"{path}: without results: {', '.join(rows)}; the same command resumes the sweep, or copy their runs too"
        for path, rows in missing.items()
        if path not in shown
    ]
    groups: dict[Protocol, Group] = {}
    ordinary = {folder.name for folder in planned}
    ordinary |= {kept.name for ignored, kept in twins.items() if ignored.name in ordinary}
    left = {
        path: each
        for path, each in results.items()
        if path.name in ordinary or (path.name not in tested and path not in used)
    }
    noted: list[tuple[Path, Result]] = []
    trials: dict[Protocol, dict[str, int]] = defaultdict(dict)
    for (protocol, row), choices in found.items():
        *earlier, last = sorted(choices, key=lambda each: each.finished)
        problems += [
            f"two choices of {row_name(row)} on one grid: using the newest, {last.path}, and ignoring {each.path}"
            for each in earlier
            if each.results != last.results  # a record and its copy with more rows, in two folders merged into one
        ]
        group = groups.setdefault(protocol, Group(protocol=protocol))
        for folder, result in separate_versions(last.results).items():
            noted.append((folder, replace(result, notes=[*result.notes, _note(last.choice, last.tuning)])))
            group.results.append(noted[-1][1])
        group.tuned[row_name(row)] = _grid(last.choice, last.tuning)
        trials[protocol][row_name(row)] = max(len(scores) for _, scores in last.choice.scores)
        if missing[last.path]:
            remark = f"runs without a result: {', '.join(missing[last.path])}; the same command resumes the sweep"
            group.remarks[:] = dict.fromkeys([*group.remarks, remark])
    for protocol, counts in trials.items():
        if len(set(counts.values())) > 1:
            listed = ", ".join(f"{name} {count}" for name, count in counts.items())
            groups[protocol].remarks.append(f"chosen by different numbers of validation seeds: {listed}")
    return left, list(groups.values()), noted, problems


@dataclass(frozen=True, kw_only=True)
class _Row:
    """The choice of one row in one record, with its results."""

    path: Path
    tuning: Tuning
    choice: Choice
    results: Mapping[Path, Result]

    @property
    def finished(self) -> str:
        """Time of the choice; of one that did not record it, that of the newest result."""
        return self.choice.chosen_at or max(each.finished_at for each in self.results.values())


def _tuned_protocol(result: Result, tuning: Tuning) -> Protocol:
    """Returns the protocol of a result with the grids in place of the values of tuned fields."""
    plain = protocol_of(result)
    package, settings = json.loads(plain.settings)
    seeds = f" with seed{'s' * (len(tuning.seeds) > 1)} {' '.join(map(str, tuning.seeds))}" if tuning.seeds else ""
    grids = {path: ["tuned", in_one_spelling(values), tuning.seeds] for path, values in tuning.fields.items()}
    return replace(
        plain,
        settings=json.dumps([package, settings | grids], sort_keys=True),
        tuned="; ".join(
            f"{path} tuned over {' '.join(values)}{seeds} on the validation set"
            for path, values in tuning.fields.items()
        ),
        changed={path: values for path, values in plain.changed.items() if path not in tuning.fields},
    )


def _note(choice: Choice, tuning: Tuning) -> str:
    values = " ".join(f"{path} {value}" for path, value in zip(tuning.fields, choice.point, strict=True))
    return values + (", at the edge" if choice.edge else "")


def _grid(choice: Choice, tuning: Tuning) -> GridScores:
    """Returns the validation scores of a row: mean over seeds at each point of the grid."""
    points = ", ".join(" ".join(values) for values, _ in choice.scores)
    scores = ["diverged" if not seeds else f"{sum(seeds) / len(seeds):.4f}" for _, seeds in choice.scores]
    metric = tuning.metric.replace("_", " ")
    return GridScores(points=f"validation {metric} at {', '.join(tuning.fields)} {points}", scores=", ".join(scores))


def grid_notes(tuned: Mapping[str, GridScores], rows: Sequence[str]) -> list[str]:
    """Returns the validation scores of the rows, one note for all rows with the same points."""
    found: dict[str, list[str]] = defaultdict(list)
    for name in rows:
        if name in tuned:
            found[tuned[name].points].append(f"{name} {tuned[name].scores}")
    notes = [f"{points}: {'; '.join(some)}" for points, some in found.items()]
    return (
        [*notes, "at the edge: the smallest or largest value of the grid; a better one may lie beyond"] if notes else []
    )
