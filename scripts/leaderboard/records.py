"""Reads results and planned runs without a result from a folder of runs, and checks them."""

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from seqarena.common.errors import BadDataError, WrongUseError, printable
from seqarena.common.files import paths_below, read_strict_json
from seqarena.common.runs.config import from_json
from seqarena.common.runs.results import TRIAL, Result, read_results, row_parts
from seqarena.common.runs.run import BaseRun, row_name
from seqarena.scripts.leaderboard.protocol import Group, Protocol, protocol_of
from seqarena.scripts.leaderboard.remarks import seeds_in, separate_versions, version
from seqarena.scripts.leaderboard.tunings import with_tuned
from seqarena.scripts.packages import PACKAGES, find_package
from seqarena.scripts.price.record import PriceRecord, read_prices
from seqarena.scripts.sweep.tuning import read_tunings

PLANNED = {"folder": str, "package": str, "task": str, "preset": str, "changed": dict, "run": dict, "row": tuple,
           "seed": int, "config_version": int, "command": str}  # fmt: skip
"""Fields of each run in a sweep's plan, with their types."""


def missing_runs(folder: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """Returns the entries of sweep plans below ``folder`` whose run has no result, and messages on unreadable plans."""
    entries, problems = planned_runs(folder)
    return [entry for place, entry in entries.items() if not _readable(place)], problems


def planned_runs(folder: Path) -> tuple[dict[Path, dict[str, Any]], list[str]]:
    """Returns directory -> entry of all runs in sweep plans below ``folder``, and messages on unreadable plans.

    A plan is ``sweeps/*.json`` in the folder of runs that it is of, at any depth. The folders of the entries are
    relative to ``folder``.
    """
    entries: dict[Path, dict[str, Any]] = {}
    problems = []
    for path in (each for each in paths_below(folder) if each.suffix == ".json" and each.parent.name == "sweeps"):
        runs = path.parent.parent
        try:
            planned = [_entry(each) for each in printable(read_strict_json(path))["runs"]]
            if not all(_is_entry(each) for each in planned):
                raise ValueError("an entry is not a run")
            plan = printable(str(path.relative_to(folder)))
            for each in planned:
                place = runs / each["folder"]
                entries[place] = each | {"folder": printable(str(place.relative_to(folder))), "plan": plan}
        except (OSError, ValueError, KeyError, TypeError) as error:
            problems.append(printable(f"{path}: not a sweep's plan ({error})"))
    return entries, problems


def _entry(values: dict[str, Any]) -> dict[str, Any]:
    found = {"config_version": 1} | {name: values[name] for name in PLANNED if name in values}
    return found | {"row": row_parts(values["row"], "")}


def _is_entry(values: dict[str, Any]) -> bool:
    if not all(isinstance(values[name], kind) for name, kind in PLANNED.items()):
        return False
    path = Path(values["folder"])
    if path.is_absolute() or ".." in path.parts:
        return False
    pairs = all(isinstance(pair, list) and len(pair) == 2 for pair in values["changed"].values())
    return pairs and isinstance(values["run"].get("model"), dict)


def _readable(folder: Path) -> bool:
    try:
        return Result.read(folder) is not None
    except BadDataError:
        return False


def newest(results: Mapping[Path, Result]) -> tuple[dict[Path, Result], dict[Path, Path], list[str]]:
    """Returns one result per (protocol, row, sources, seeds of run and pretraining), the newest.

    Also returns ignored directory -> the directory that is used in its place, and a message for each ignored result.
    """
    chosen: dict[tuple[Any, ...], Path] = {}
    keys: dict[Path, tuple[Any, ...]] = {}
    messages = []
    for folder, result in sorted(results.items(), key=lambda each: each[1].finished_at):
        key = keys[folder] = (protocol_of(result), result.row, version(result), seeds_in(result))
        if key in chosen:
            messages.append(
                printable(
                    f"two results of {result.task} {row_name(result.row)} seed {result.seed}: using the newest, "
                    f"{folder}, and ignoring {chosen[key]}"
                )
            )
        chosen[key] = folder
    kept = set(chosen.values())
    return (
        {folder: result for folder, result in results.items() if folder in kept},
        {folder: chosen[key] for folder, key in keys.items() if folder not in kept},
        messages,
    )


@dataclass(frozen=True, kw_only=True)
class Measurements:
    """Results and planned runs below a folder."""

    results: dict[Path, Result]
    """One per (protocol, row, sources, seed)."""
    tuned: list[Group]
    """Groups of results whose fields were tuned."""
    noted: list[tuple[Path, Result]]
    """The results in these groups, each with its directory, which may occur in several groups."""
    missing: list[dict[str, Any]]
    """Entries of sweep plans whose run has no result."""
    prices: list[PriceRecord]
    """Records of ``seqarena price``, the newest first."""
    problems: list[str]
    """Skipped files, each with the reason."""
    duplicates: list[str]
    """Messages on results that are ignored because a newer one is of the same run."""


def measurements(folder: Path) -> Measurements:
    """Returns all results and planned runs below a folder.

    Raises:
        WrongUseError: the folder does not exist or has no results.
    """
    if not folder.is_dir():
        raise WrongUseError(f"no folder {folder}; run seqarena quickstart for first results, or set --runs")
    results, problems = read_results(folder)
    reasons = {path: reason for path, result in results.items() if (reason := _impossible(result))}
    reasons |= _other_lengths({path: result for path, result in results.items() if path not in reasons})
    problems += [
        printable(f"{path / 'result.json'}: {reason}; the file was edited, delete it to measure again")
        for path, reason in reasons.items()
    ]
    results = {path: result for path, result in results.items() if path not in reasons}
    planned, broken = planned_runs(folder)
    missing = [entry for place, entry in planned.items() if not _readable(place)]
    problems += broken
    if not results and not missing:
        trials = sum(path.name == TRIAL for path in paths_below(folder))
        if trials:
            raise WrongUseError(
                f"no results below {folder} yet, only trials of a sweep with --tune ({trials}); the same command "
                "resumes the sweep"
            )
        skipped = f" ({len(problems)} files were skipped: {problems[0]})" if problems else ""
        raise WrongUseError(f"no results below {folder}{skipped}; run seqarena quickstart for first results")
    kept, twins, duplicates = newest(results)
    prices, damaged = read_prices(folder)
    tunings, more = read_tunings(folder)
    plain, tuned, noted, unfinished = with_tuned(kept, tunings, planned, twins)
    # Ordinary results do not make an earlier version of a tuned one, which is in no table with them.
    return Measurements(
        results=separate_versions(plain), tuned=tuned, noted=noted, missing=missing, prices=prices,
        problems=[*problems, *damaged, *more], duplicates=[*duplicates, *unfinished],
    )  # fmt: skip


def _other_lengths(results: Mapping[Path, Result]) -> dict[Path, str]:
    """Returns the results whose number of test examples is not the usual one of their protocol, with the reason."""
    protocols = {path: protocol_of(result) for path, result in results.items() if result.score is not None}
    counts: dict[Protocol, Counter[int]] = defaultdict(Counter)
    for path, protocol in protocols.items():
        counts[protocol][len(results[path].example_scores)] += 1
    usual = {protocol: max(found, key=lambda length: (found[length], length)) for protocol, found in counts.items()}
    return {
        path: f"scores of {len(results[path].example_scores):,} test examples, but other results on the same data have "
        f"{usual[protocol]:,}"
        for path, protocol in protocols.items()
        if len(results[path].example_scores) != usual[protocol]
    }


def _impossible(result: Result) -> str:
    """Returns why a result is impossible for its task; empty if it is possible."""
    package = find_package(result.package) if result.package in PACKAGES else None
    task = package.tasks.get(result.task) if package else None
    preset = package.presets.get(result.task, {}).get(result.preset) if package else None
    reason = "" if preset is None else _no_run(type(preset.run), result.run)
    if reason or task is None or result.score is None:
        return reason
    if result.task_version == task.version and result.metric != task.metric:
        return f"metric {result.metric!r}, but {result.task} has {task.metric!r}"
    least, most = min(result.example_scores), max(result.example_scores)
    if task.unit == "share" and not 0 <= least <= most <= 1:
        return f"example scores from {least:g} to {most:g}, but {task.metric} is between 0 and 1"
    return ""


def _no_run(kind: type[BaseRun], values: dict[str, Any]) -> str:
    """Returns why the values are not a valid run; empty also for other fields, which another version may have."""
    try:
        from_json(kind, values)
    except ValueError:
        return ""
    except (WrongUseError, TypeError, AttributeError, OverflowError) as error:
        return f"its run is invalid ({error})"
    return ""
