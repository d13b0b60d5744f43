"""One finished measurement with everything needed to repeat it; written once a run, read by the leaderboard."""

import hashlib
import json
import math
import re
import types
import typing
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from seqarena.common.attention import AttentionConfig, attention_name
from seqarena.common.errors import BadDataError, WrongUseError, machine_error, printable
from seqarena.common.files import files_below, read_strict_json, write_json
from seqarena.common.runs.config import from_json
from seqarena.common.runs.roles import CONFIG_VERSION
from seqarena.common.runs.run import LAYERS, MODEL, OTHER_ATTENTIONS, RowParts, row_name

FORMAT = 3
"""Version of the file's format, not of a task."""
ADDED: dict[int, dict[str, Any]] = {1: {"sources": {}, "segments": []}, 2: {"config_version": 1}}
"""Fields that a file of an earlier format lacks, and what stands for them."""
SEAL = "seal"
"""In the file: a hash of all fields, by which an edited file is noticed."""
ROUNDING = 1e-6
"""Between a score and the mean of its examples' scores."""
LARGEST = 1e100
"""No score, time or rate is larger; sums and squares of such numbers are finite."""
COUNTS = ("task_version", "layers", "seed", "chosen_step", "steps", "parameters", "training_seconds",
          "tokens_per_second", "peak_memory_bytes")  # fmt: skip
"""Fields that cannot be negative."""


@dataclass(frozen=True, kw_only=True)
class Result:
    """A result file. Scores are fractions of 1; times are seconds, memory is bytes."""

    format: int = FORMAT
    package: str
    task: str
    task_version: int
    preset: str
    changed: dict[str, list[Any]]
    """Differences from the preset: field -> [preset's value, this run's]."""
    row: RowParts
    """The row of the leaderboard: the variant, with norm and depth where they are not the preset's."""
    attention: str
    norm: str
    layers: int
    seed: int
    status: Literal["finished", "diverged"]
    message: str = ""
    """Why a diverged run stopped."""
    notes: list[str] = field(default_factory=list)
    """Notes that every table prints beside this result, such as ``non-causal``."""
    metric: str
    score: float | None
    """The main metric on the test set, by the checkpoint that was chosen; none if the run diverged."""
    metrics: dict[str, float] = field(default_factory=dict)
    """All metrics on the test set."""
    example_scores: list[float] = field(default_factory=list)
    """The main metric of each test example, in the order of the data, for paired tests."""
    validation: dict[str, float] = field(default_factory=dict)
    """Metrics of the chosen checkpoint on the validation set."""
    chosen_step: int = 0
    steps: int
    floors: dict[str, float] = field(default_factory=dict)
    """Scores of trivial rules on the same test examples."""
    bounded: dict[str, list[float]] = field(default_factory=dict)
    """Final values of u of hnas and of learned tau, by layer."""
    data_checksum: str
    parameters: int
    training_seconds: float
    tokens_per_second: float
    peak_memory_bytes: int
    environment: dict[str, Any]
    """Code commit, whether the tree was clean, versions, device, threads, precision, processes."""
    segments: list[dict[str, Any]] = field(default_factory=list)
    """The environments that the run was trained in, one after the other, each with the step before its first."""
    sources: dict[str, str] = field(default_factory=dict)
    """The files that the numbers depend on, with their hashes; empty: of a time when they were not recorded."""
    run: dict[str, Any]
    """The whole Run."""
    config_version: int = CONFIG_VERSION
    """Version of the configs in it."""
    command: str
    """The command that repeats it."""
    finished_at: str
    """UTC."""

    def write(self, folder: Path) -> None:
        """Writes ``result.json`` with its seal, atomically."""
        values = asdict(self)
        write_json(folder / "result.json", values | {SEAL: _seal(values)})

    @staticmethod
    def read(folder: Path) -> "Result | None":
        """Returns the result in a run directory, or None if the run is not finished.

        Its text is printable: whoever wrote the file decides nothing of a terminal or of another file's lines.

        Raises:
            BadDataError: the file is damaged, foreign or of another format; says which.
        """
        path = folder / "result.json"
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
        if number in range(2, FORMAT + 1) and values.pop(SEAL, None) != _seal(found):
            raise BadDataError(
                f"{path}: was edited after it was written (its seal is broken); delete it to measure again"
            )
        values = _of_this_format(values)
        if not isinstance(values, dict) or set(values) != known:
            kind = type(values).__name__ if number is None else number
            raise BadDataError(f"{path}: not a seqarena result of format 1 to {FORMAT} (format found: {kind})")
        hints = typing.get_type_hints(Result)
        wrong = next((name for name in sorted(known) if not _fits(hints[name], values[name])), None)
        if wrong is not None:
            raise BadDataError(
                f"{path}: {wrong} is {str(values[wrong])[:40]!r}, which that field cannot hold; "
                "delete it to measure again"
            )
        result = Result(**values)
        if not result.is_whole():
            raise BadDataError(
                f"{path}: its run, changes or environment are those of no result; delete it to measure again"
            )
        contradiction = result.contradiction()
        if contradiction:
            raise BadDataError(f"{path}: {contradiction}; the file was edited, delete it to measure again")
        return result

    def contradiction(self) -> str:
        """Returns in what the fields contradict each other; empty: in nothing."""
        mean = math.fsum(self.example_scores) / max(1, len(self.example_scores))
        contradictions = {
            f"{name} is {getattr(self, name)!r}, but {self.run.get(name)!r} in its run": self.run.get(name)
            != getattr(self, name)
            for name in ("task", "preset", "seed")
        } | {
            f"attention is {self.attention!r}, but {self._own_attention()!r} in its run": self.attention
            != self._own_attention(),
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
        """Returns the name of the attention in the run; as it is said, where this version does not know it."""
        try:
            own: AttentionConfig = from_json(AttentionConfig, self.run["model"].get("attention"))  # type: ignore[type-abstract]
            return attention_name(own)
        except (ValueError, TypeError, KeyError, WrongUseError):
            return self.attention

    def is_whole(self) -> bool:
        """Returns whether what tables look up inside the plain values is there."""
        environment = all(isinstance(self.environment.get(name), str) for name in ("device", "precision"))
        nested = isinstance(self.run.get("model"), dict) and all(len(pair) == 2 for pair in self.changed.values())
        return environment and nested and all(len(part) == 2 for part in self.row)


def _of_this_format(values: Any) -> Any:
    """Returns the fields of a file of an earlier format as this one has them."""
    if not isinstance(values, dict) or type(values.get("format")) is not int or not 1 <= values["format"] <= FORMAT:
        return None
    lacking = [some for number, some in ADDED.items() if number >= values["format"]]
    if any(some.keys() & values.keys() for some in lacking):
        return None
    for some in lacking:
        values = some | values
    return values | {"row": row_parts(values.get("row"), str(values.get("norm")))}


def row_parts(row: Any, norm: str) -> Any:
    """Returns the row in a file as its parts; an earlier format has its name alone, of a run with this ``norm``."""
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


def _seal(values: dict[str, Any]) -> str:
    unsealed = {name: value for name, value in values.items() if name != SEAL}
    return hashlib.sha256(json.dumps(unsealed, sort_keys=True).encode()).hexdigest()[:16]


def _fits(hint: Any, value: Any) -> bool:
    """Returns whether a JSON value is one of a field's: its own kind, and that of what is in it."""
    origin = typing.get_origin(hint) or hint
    inner = tuple(each for each in typing.get_args(hint) if each is not ...)
    if origin in (Literal, types.UnionType):
        return value in inner if origin is Literal else any(_fits(each, value) for each in inner)
    if origin in (Any, float):
        return origin is Any or (type(value) in (int, float) and abs(value) <= LARGEST)
    if type(value) is not origin:
        return False
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    if inner[-1:] == (float,):  # thousands of scores
        return {type(each) for each in items} <= {int, float} and max(map(abs, items), default=0) <= LARGEST
    return all(_fits(inner[-1], each) for each in items)


def read_results(folder: Path) -> tuple[dict[Path, Result], list[str]]:
    """Returns all results below a folder by their directories, in order, and a message for each unreadable file.

    Links to folders are followed; a directory that a run shares with its twin counts once.
    """
    results: dict[Path, Result] = {}
    problems: list[str] = []
    for path in files_below(folder, "result.json"):
        try:
            result = Result.read(path.parent)
        except BadDataError as error:
            problems.append(printable(str(error)))
        else:
            results |= {path.parent: result} if result else {}
    return results, problems
