"""Groups results whose fields were tuned (``seqarena sweep --tune``): each row at its own choice, one grid for all."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from seqarena.common.runs.results import Result
from seqarena.common.runs.run import row_name
from seqarena.scripts.leaderboard.protocol import Group, Protocol, protocol_of
from seqarena.scripts.leaderboard.remarks import without_version
from seqarena.scripts.sweep.tuning import Choice, Tuning


def with_tuned(
    results: Mapping[Path, Result], tunings: Mapping[Path, Tuning]
) -> tuple[dict[Path, Result], list[Group], dict[Path, Result], list[str]]:
    """Returns the results of ordinary tables, one group per tuned protocol, the results in these groups, and messages.

    Results that differ from their preset in a tuned field are in a tuned group only: in an ordinary table they would be
    alone.
    """
    found: dict[Protocol, Group] = {}
    scores: dict[Protocol, dict[str, str]] = {}
    left: dict[Path, Result] = dict(results)
    problems: list[str] = []
    noted: dict[Path, Result] = {}
    for path, tuning in tunings.items():
        for choice in tuning.choices:
            folders = [path.parent.parent / each for each in choice.folders]
            missing = [each for each in folders if each not in results]
            if missing:
                problems.append(f"{path}: no result of {row_name(choice.row)} in {missing[0]}; the same sweep goes on")
            for folder in folders:
                if folder not in results:
                    continue
                result = results[folder]
                if without_version(result.row) != choice.row:
                    problems.append(f"{path}: {folder} has another row than {row_name(choice.row)}")
                    continue
                protocol = _tuned_protocol(result, tuning)
                group = found.setdefault(protocol, Group(protocol=protocol))
                noted[folder] = replace(result, notes=[*result.notes, _note(choice, tuning)])
                group.results.append(noted[folder])
                scores.setdefault(protocol, {})[row_name(choice.row)] = _grid(choice, tuning)
                if any(name in result.changed for name in tuning.fields):
                    left.pop(folder, None)
    for protocol, group in found.items():
        group.tuned.update(scores[protocol])
    return left, list(found.values()), noted, problems


def _tuned_protocol(result: Result, tuning: Tuning) -> Protocol:
    """Returns the protocol of a result with the grids in place of the values of tuned fields."""
    plain = protocol_of(result)
    package, settings = json.loads(plain.settings)
    grids = {path: f"tuned over {' '.join(values)}" for path, values in tuning.fields.items()}
    return replace(
        plain,
        settings=json.dumps([package, settings | grids], sort_keys=True),
        tuned="; ".join(f"{path} {words} on the validation set" for path, words in grids.items()),
        changed={path: values for path, values in plain.changed.items() if path not in tuning.fields},
    )


def _note(choice: Choice, tuning: Tuning) -> str:
    values = " ".join(f"{path} {value}" for path, value in zip(tuning.fields, choice.point, strict=True))
    return values + (" at the edge of the grid" if choice.edge else "")


def _grid(choice: Choice, tuning: Tuning) -> str:
    """Returns the validation scores of a row: mean over seeds at each point of the grid."""
    points = [
        f"{' '.join(values)}: {'diverged' if not seeds else f'{sum(seeds) / len(seeds):.4f}'}"
        for values, seeds in choice.scores
    ]
    seeds = f" (seed{'s' * (len(choice.seeds) > 1)} {', '.join(map(str, choice.seeds))})" if choice.seeds else ""
    return f"validation {tuning.metric.replace('_', ' ')} by {', '.join(tuning.fields)}{seeds}: {', '.join(points)}"


def grid_notes(tuned: Mapping[str, str], rows: Sequence[str]) -> list[str]:
    """Returns the grid of each row as a note below the table."""
    return [f"{name}: {tuned[name]}" for name in rows if name in tuned]
