"""Result of one finished run, with everything needed to repeat it. Written once per run, read by the leaderboard."""

import math
import re
import types
import typing
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from seqarena.common.attention import AttentionConfig, attention_name
from seqarena.common.errors import BadDataError, WrongUseError, machine_error, printable
from seqarena.common.files import paths_below, read_strict_json, write_json
from seqarena.common.runs.config import from_json, hints_of
from seqarena.common.runs.roles import CONFIG_VERSION
from seqarena.common.runs.run import LAYERS, MODEL, OTHER_ATTENTIONS, RowParts, row_name
from seqarena.common.seal import SEAL, seal

FORMAT = 3
"""Version of the file's format, not of a task."""
ADDED: dict[int, dict[str, Any]] = {1: {"sources": {}, "segments": []}, 2: {"config_version": 1}}
"""Format -> fields that files of this format lack, with the values that replace them."""
RESULT, TRIAL = "result.json", "trial.json"
"""Names of the files of a tested run, and of one that was only validated."""
ROUNDING = 1e-6
"""Tolerance between a score and the mean of its examples' scores."""
LARGEST = 1e100
"""Upper bound of all scores, times and rates. Sums and squares of such numbers are finite."""
COUNTS = ("task_version", "layers", "seed", "chosen_step", "steps", "parameters", "training_seconds",
          "tokens_per_second", "peak_memory_bytes")  # fmt: skip
"""Fields that cannot be negative."""


@dataclass(frozen=True, kw_only=True)
class Result:
    """Content of a result file. Scores are fractions of 1, times are seconds, memory is bytes."""

    format: int = FORMAT
    package: str
    task: str
    task_version: int
    preset: str
    changed: dict[str, list[Any]]
    """Differences from the preset: field -> [preset's value, this run's]."""
    row: RowParts
    """Row of the leaderboard: the variant, with norm and depth where they are not the preset's."""
    attention: str
    norm: str
    layers: int
    seed: int
    status: Literal["finished", "diverged", "validated"]
    """``validated``: a trial of ``seqarena sweep --tune``, which was not tested and is in no table."""
    message: str = ""
    """Reason why a diverged run stopped."""
    notes: list[str] = field(default_factory=list)
    """Notes that every table prints beside this result, such as ``non-causal``."""
    metric: str
    score: float | None
    """Main metric on the test set, with the chosen checkpoint; none if the run diverged."""
    metrics: dict[str, float] = field(default_factory=dict)
    """All metrics on the test set."""
    example_scores: list[float] = field(default_factory=list)
    """Main metric of each test example, in the order of the data, for paired tests."""
    validation: dict[str, float] = field(default_factory=dict)
    """Metrics of the chosen checkpoint on the validation set."""
    chosen_step: int = 0
    steps: int
    floors: dict[str, float] = field(default_factory=dict)
    """Scores of trivial rules on the same test examples."""
    bounded: dict[str, list[float]] = field(default_factory=dict)
    """u of hnas and learned tau in the tested checkpoint, by layer."""
    data_checksum: str
    parameters: int
    training_seconds: float
    tokens_per_second: float
    peak_memory_bytes: int
    """Peak memory since the data were there. On a CPU that of the process, which may keep a part of what making the
    data took (listops, quick: about 130 MiB more in the run that makes them)."""
    environment: dict[str, Any]
    """Code commit, whether the tree was clean, versions, device, threads, precision, processes, and the implementations
    of attention in the first step."""
    segments: list[dict[str, Any]] = field(default_factory=list)
    """Environments in which the run was trained, in order, each with the number of steps before it."""
    sources: dict[str, str] = field(default_factory=dict)
    """Files that the numbers depend on, with their hashes; empty in results from before they were recorded."""
    run: dict[str, Any]
    """JSON of the whole Run."""
    config_version: int = CONFIG_VERSION
    """Version of the configs in ``run``."""
    command: str
    """Command that repeats the run."""
    finished_at: str
    """Time of the end, in UTC."""

    def write(self, folder: Path, name: str = RESULT) -> None:
        """Writes the file with its seal, atomically. ``name``: ``RESULT`` or ``TRIAL``."""
        values = asdict(self)
        write_json(folder / name, values | {SEAL: seal(values)})

    @staticmethod
    def read(folder: Path, name: str = RESULT) -> "Result | None":
        """Returns the result in a run directory, or None if the run is not finished. ``name``: ``RESULT`` or ``TRIAL``.

        Control characters in its text are replaced, so that a file cannot affect the terminal or the lines of another
        file.

        Raises:
            BadDataError: the file is damaged, foreign or of another format; reports the reason.
        """
        path = folder / name
        try:
            found = read_strict_json(path)
            values = printable(found)
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            machine = machine_error(error, path)
            if machine is not None:
                raise machine from error
            raise BadDataError(f"{path}: not readable as JSON ({error}); delete it to measure again") from error
        known = {each.name for each in fields(Result)}
        number = values.get("format") if isinstance(values, dict) else None
        if number in range(2, FORMAT + 1) and values.pop(SEAL, None) != seal(found):
            raise BadDataError(
                f"{path}: was edited after it was written (its seal is broken); delete it to measure again"
            )
        values = _of_this_format(values)
        if not isinstance(values, dict) or set(values) != known:
            kind = type(values).__name__ if number is None else number
            raise BadDataError(f"{path}: not a seqarena result of format 1 to {FORMAT} (format found: {kind})")
        hints = hints_of(Result)
        wrong = next((name for name in sorted(known) if not fits(hints[name], values[name])), None)
        if wrong is not None:
            expected = hints[wrong].__name__ if isinstance(hints[wrong], type) else hints[wrong]
            raise BadDataError(
                f"{path}: field {wrong} should be {expected}, found {str(values[wrong])[:40]!r}; "
                "delete the file to measure again"
            )
        result = Result(**values)
        if not result.is_whole():
            raise BadDataError(
                f"{path}: its run, changes or environment lack required fields; delete it to measure again"
            )
        contradiction = result.contradiction()
        if result.status == ("finished" if name == TRIAL else "validated"):
            contradiction = f"status is {result.status!r} in a file of this name"
        if contradiction:
            raise BadDataError(f"{path}: {contradiction}; the file was edited, delete it to measure again")
        return result

    @property
    def device(self) -> str:
        """Model of the GPU, or of the processor with the number of threads. Earlier results have ``1 threads``."""
        return re.sub(r"\b1 threads$", "1 thread", self.environment["device"])

    @staticmethod
    def read_finished(folder: Path, *, validate_only: bool) -> tuple[str, "Result | None"]:
        """Returns file name and result of a finished run, or of a finished trial if ``validate_only``.

        The file of a trial comes before that of its test, which can diverge and must not affect a choice. A run without
        a trial is one too, since its validation scores are the same.
        """
        trial = Result.read(folder, TRIAL) if validate_only else None
        return (RESULT, Result.read(folder)) if trial is None else (TRIAL, trial)

    def contradiction(self) -> str:
        """Returns a description of a contradiction between fields; empty without one.

        The attention's name is compared in format 1 only, which has no seal: a later version may use other names.
        """
        mean = math.fsum(self.example_scores) / max(1, len(self.example_scores))
        contradictions = {
            f"{name} is {getattr(self, name)!r}, but {self.run.get(name)!r} in its run": self.run.get(name)
            != getattr(self, name)
            for name in ("task", "preset", "seed")
        } | {
            f"attention is {self.attention!r}, but {self._own_attention()!r} in its run": self.format == 1
            and self.attention != self._own_attention(),
            "a score without examples": self.score is not None and not self.example_scores,
            f"row {row_name(self.row)!r} is not of attention {self.attention!r}": self.row[:1]
            != (("attention", self.attention),),
            f"status is {self.status!r}, but the score {self.score}": (self.status == "finished")
            != (self.score is not None),
            f"the score is {self.score}, but {self.metrics.get(self.metric)} among the metrics": self.score
            != self.metrics.get(self.metric, self.score),
            f"the score is {self.score}, but the mean of its {len(self.example_scores):,} examples {mean}": (
                self.score is not None and not abs(self.score - mean) <= ROUNDING * max(1.0, abs(mean))
            ),
            **{f"{name} is negative ({getattr(self, name)})": getattr(self, name) < 0 for name in COUNTS},
        }
        return next((text for text, is_true in contradictions.items() if is_true), "")

    def _own_attention(self) -> str:
        """Returns the name of the attention in ``run``, or ``attention`` if this version does not know it."""
        try:
            own: AttentionConfig = from_json(AttentionConfig, self.run["model"].get("attention"))  # type: ignore[type-abstract]
            return attention_name(own)
        except (ValueError, TypeError, KeyError, WrongUseError):
            return self.attention

    def is_whole(self) -> bool:
        """Returns whether the plain values contain the entries that tables read."""
        environment = all(isinstance(self.environment.get(name), str) for name in ("device", "precision"))
        nested = isinstance(self.run.get("model"), dict) and all(len(pair) == 2 for pair in self.changed.values())
        return environment and nested and all(len(part) == 2 for part in self.row)


def _of_this_format(values: Any) -> Any:
    """Returns the fields of an earlier format in the present one."""
    if not isinstance(values, dict) or type(values.get("format")) is not int or not 1 <= values["format"] <= FORMAT:
        return None
    lacking = [some for number, some in ADDED.items() if number >= values["format"]]
    if any(some.keys() & values.keys() for some in lacking):
        return None
    for some in lacking:
        values = some | values
    return values | {"row": row_parts(values.get("row"), str(values.get("norm")))}


def row_parts(row: Any, norm: str) -> Any:
    """Returns a file's row as parts. An earlier format has only the row's name, of a run with this ``norm``."""
    if isinstance(row, list):
        return tuple(tuple(part) if isinstance(part, list) else part for part in row)
    if not isinstance(row, str):
        return row
    first, *others = re.findall(r"(?:^|, )((?:[^,\[]|\[[^\]]*\])+)", row) or [row]
    return (("attention", first), *(_part(words, norm) for words in others))


def _part(words: str, norm: str) -> tuple[str, str]:
    other = next((each for each in OTHER_ATTENTIONS if words.startswith(f"{each} ")), None)
    if other is not None:
        return other, words.removeprefix(f"{other} ")
    if words.endswith(" layers"):
        return LAYERS, words.removesuffix(" layers")
    return ("norm" if words == norm else MODEL), words


def fits(hint: Any, value: Any) -> bool:
    """Returns whether a JSON value has the type of a field, including the values inside it."""
    origin = typing.get_origin(hint) or hint
    inner = tuple(each for each in typing.get_args(hint) if each is not ...)
    if origin in (Literal, types.UnionType):
        return value in inner if origin is Literal else any(fits(each, value) for each in inner)
    if origin in (Any, float):
        return origin is Any or (type(value) in (int, float) and abs(value) <= LARGEST)
    if type(value) is not origin:
        return False
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    if inner[-1:] == (float,):  # thousands of scores
        return {type(each) for each in items} <= {int, float} and max(map(abs, items), default=0) <= LARGEST
    return all(fits(inner[-1], each) for each in items)


def read_results(folder: Path) -> tuple[dict[Path, Result], list[str]]:
    """Returns all results below a folder by their directories, in order, and a message for each unreadable file.

    Links to folders are followed; a directory that a run shares with its twin counts once.
    """
    results: dict[Path, Result] = {}
    problems: list[str] = []
    for path in (each for each in paths_below(folder) if each.name == RESULT):
        try:
            result = Result.read(path.parent)
        except BadDataError as error:
            problems.append(printable(str(error)))
        else:
            results |= {path.parent: result} if result else {}
    return results, problems
