"""Tunes fields for each variant: trains a grid of values, chooses on the validation set, and tests the choice only.

Every variant gets the same grid and the same seeds. A trial ends after its training. The runs of the chosen values go
on from there with the test, so the test set is evaluated once per run and never at another value. The seeds of the
trials may be others than those of the tested runs.
"""

import contextlib
import itertools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from decimal import Decimal
from pathlib import Path
from statistics import fmean
from typing import Any

from seqarena.common.errors import BadDataError, WrongUseError, printable
from seqarena.common.files import exclusive, paths_below, read_strict_json, write_json
from seqarena.common.runs.results import Result, fits, row_parts
from seqarena.common.runs.run import RowParts
from seqarena.common.seal import SEAL, seal

FOLDER = "tunings"
"""Name of the folder of records in a folder of runs."""
FORMAT = 1
Values = tuple[str, ...]
"""One value of each tuned field, as typed."""


@dataclass(frozen=True, kw_only=True)
class Grid:
    """The tuned fields and their values."""

    fields: Mapping[str, Values]
    """Path of a field -> its values, as typed."""

    def points(self) -> list[Values]:
        """Returns all combinations of values."""
        return list(itertools.product(*self.fields.values()))

    def arguments(self, point: Values) -> list[str]:
        """Returns a point as arguments of the command line."""
        return [word for path, value in zip(self.fields, point, strict=True) for word in (f"--{path}", value)]

    def in_words(self, point: Sequence[str]) -> str:
        """Returns a point as text; empty without tuned fields."""
        return ", ".join(f"{path} {value}" for path, value in zip(self.fields, point, strict=True))

    def at_edge(self, point: Values) -> list[str]:
        """Returns the fields whose chosen value is the smallest or largest number of its grid of several."""
        found = []
        for (path, values), value in zip(self.fields.items(), point, strict=True):
            numbers = [_number(each) for each in values]
            if len(values) > 1 and None not in numbers and _number(value) in (min(numbers), max(numbers)):  # type: ignore[type-var]
                found.append(path)
        return found


def in_one_spelling(values: Sequence[str]) -> list[str]:
    """Returns values of a field in one order and spelling, so that 1e-3 3e-3 and 0.003 0.001 are the same grid."""
    return [_spelling(each)[-1] for each in sorted(values, key=_spelling)]


def _spelling(value: str) -> tuple[bool, float, str]:
    """Returns the place of a value among others, numbers first, and its only spelling."""
    number = _number(value)
    return (True, 0.0, value.lower()) if number is None else (False, number, _shortest(number))


def _shortest(number: float) -> str:
    """Returns a whole number without a point, and any other as digits with an exponent: 7.5e-4."""
    return str(int(number)) if number.is_integer() else f"{Decimal(repr(number)).normalize():e}"


def _number(text: str) -> float | None:
    """Returns a finite number; None for other text."""
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def grid_of(given: Sequence[Sequence[str]]) -> Grid:
    """Returns the grid of ``--tune FIELD VALUE VALUE ...``, given once or several times.

    Raises:
        WrongUseError: fewer than two values, a value or a field given twice, a field of the data or of the evaluation,
            or the precision.
    """
    fields: dict[str, Values] = {}
    for path, *values in given:
        name = path.removeprefix("--").replace("-", "_")
        if name.startswith("data."):
            raise WrongUseError(
                f"--tune {path}: its values have different data, whose validation scores do not compare"
            )
        if name.startswith(("validation.", "final.")) or name == "legacy.drop_tail":
            raise WrongUseError(f"--tune {path}: its values are scored in different ways, which do not compare")
        if name == "train.precision":
            raise WrongUseError(f"--tune {path}: results of two precisions are never in one table; sweep each")
        if len(values) < 2:
            raise WrongUseError(f"--tune {path}: expected at least two values, found {len(values)}")
        if len(set(in_one_spelling(values))) < len(values) or name in fields:
            raise WrongUseError(f"--tune {path}: a value or field is given twice")
        fields[name] = tuple(sorted(values, key=_spelling))  # of equal scores, the first value is chosen in any order
    return Grid(fields=dict(sorted(fields.items())))  # in any order, it is the same grid


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The chosen values of one row of a table, and the scores that led to them."""

    row: RowParts
    point: list[str]
    edge: list[str]
    """Fields whose value is at the edge of the grid."""
    scores: list[list[Any]]
    """[values, validation scores of the seeds] of each point; the scores of a point with a diverged seed are empty."""
    folders: list[str]
    """Directories of the tested runs, relative to the folder of runs."""
    chosen_at: str = ""
    """Time of the choice; empty in records of earlier versions."""


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """Record of the choices of one task."""

    format: int
    package: str
    task: str
    metric: str
    fields: dict[str, list[str]]
    choices: list[Any]
    """``Choice`` of each row; plain values in a file."""
    settings: str
    """Hash of the settings of the runs, with the grid in place of the tuned fields."""
    command: str
    seeds: list[int] = field(default_factory=list)
    """Seeds of the validation scores; empty if they are those of the tested runs."""
    earlier: list[str] = field(default_factory=list)
    """Directories of runs that an earlier choice of this record tested, such as one before an edit of the code."""

    def write(self, runs: Path) -> Path:
        """Writes the record below a folder of runs and returns its path.

        Choices of other rows in records of the same settings and grid are kept, so that variants can be added. The
        name of the file depends on its content, so that two folders of runs can be merged and no record is lost.
        """
        name = f"{self.package}-{self.task}-{self.settings}"
        folder = runs / FOLDER
        folder.mkdir(parents=True, exist_ok=True)
        with exclusive(folder / f".{name}.json.lock"):  # another sweep may add its rows at the same time
            earlier = sorted(folder.glob(f"{name}*.json"))
            found = {}
            for each in earlier:
                with contextlib.suppress(BadDataError):  # the leaderboard names a damaged record
                    found[each] = read_tuning(each)
            path = self._write_with(list(found.values()), folder, name)
            for each in found.keys() - {path}:
                each.unlink()
        return path

    def _write_with(self, earlier: Sequence["Tuning"], folder: Path, name: str) -> Path:
        rows = {choice.row for choice in self.choices}
        known: list[Choice] = []
        tested = list(self.earlier)
        for found in earlier:
            order = [list(found.fields).index(each) for each in self.fields]
            some = [_reordered(choice, order) for choice in found.choices]
            known += [choice for choice in some if choice not in known]
            tested += [*found.earlier, *(run for choice in found.choices for run in choice.folders)]
        # A choice that is made again, as by a sweep that has nothing to do, keeps its time.
        again = {json.dumps(_without_time(choice)): choice for choice in known}
        own = [again.get(json.dumps(_without_time(choice)), choice) for choice in self.choices]
        choices = [*(choice for choice in known if choice.row not in rows), *own]
        chosen = {run for choice in choices for run in choice.folders}
        tested = [run for run in dict.fromkeys(tested) if run not in chosen]
        values = asdict(replace(self, choices=choices, earlier=tested))
        path = folder / f"{name}-{seal(values)[:8]}.json"
        write_json(path, values | {SEAL: seal(values)})
        return path


def _without_time(choice: Choice) -> dict[str, Any]:
    return asdict(replace(choice, chosen_at=""))


def _reordered(choice: Choice, order: Sequence[int]) -> Choice:
    """Returns a choice with the values of its points in another order of the fields."""
    scores = [[[values[index] for index in order], some] for values, some in choice.scores]
    return replace(choice, point=[choice.point[index] for index in order], scores=scores)


def choose(
    grid: Grid, trials: Mapping[Values, Sequence[Result]], *, higher_is_better: bool
) -> tuple[Values, list[list[Any]]]:
    """Returns the point with the best mean validation score, and all scores. Of equal points the first is chosen.

    A point with a diverged seed is chosen only if all have one: the first point, whose test then shows the variant as
    diverged.
    """
    scores: dict[Values, list[float]] = {}
    for point in grid.points():
        results = trials[point]
        diverged = any(each.status == "diverged" for each in results)
        scores[point] = [] if diverged else [each.validation[each.metric] for each in results]
    means = {point: fmean(some) for point, some in scores.items() if some}
    best = max(means, key=lambda point: means[point] if higher_is_better else -means[point], default=grid.points()[0])
    return best, [[list(point), some] for point, some in scores.items()]


def read_tuning(path: Path) -> Tuning:
    """Returns the record in a file.

    Raises:
        BadDataError: the file is damaged, edited or of another format.
    """
    try:
        found = read_strict_json(path)
        values = printable(found)
    except (OSError, ValueError) as error:
        raise BadDataError(f"{path}: not readable as JSON ({error}); run the sweep again, then delete it") from error
    if not isinstance(values, dict) or values.get("format") != FORMAT or values.pop(SEAL, None) != seal(found):
        raise BadDataError(
            f"{path}: not a record of seqarena sweep --tune, or edited; run the sweep again, then delete it"
        )
    try:
        choices = [Choice(**each | {"row": row_parts(each["row"], "")}) for each in values["choices"]]
        tuning = Tuning(**values | {"choices": choices})
    except (TypeError, KeyError) as error:
        raise BadDataError(f"{path}: not the fields of a record of choices; run the sweep again") from error
    is_whole = all(isinstance(each, str) for each in (tuning.package, tuning.task, tuning.metric, tuning.settings))
    lists = fits(list[int], tuning.seeds) and fits(list[str], tuning.earlier)
    if not is_whole or not lists or not fits(dict[str, list[str]], tuning.fields) or not all(
        fits(list[str], each.folders) and fits(list[str], each.point) for each in choices
    ):  # fmt: skip
        raise BadDataError(f"{path}: not the fields of a record of choices; run the sweep again")
    return tuning


def read_tunings(runs: Path) -> tuple[dict[Path, Tuning], list[str]]:
    """Returns folder of runs -> record, for all records below a folder, and a message for each unreadable file."""
    found, problems = {}, []
    for path in paths_below(runs):
        if path.suffix == ".json" and path.parent.name == FOLDER:
            try:
                found[path] = read_tuning(path)
            except BadDataError as error:
                problems.append(f"{printable(str(error))}; until then its results are in ordinary tables")
    return found, problems
