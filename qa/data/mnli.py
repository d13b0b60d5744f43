"""MNLI: does one sentence follow from another, contradict it, or neither?"""

import hashlib
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from seqarena.common.data.counter import hash_text
from seqarena.common.data.hub import hub_rows
from seqarena.common.data.readers import kind_of, member, read_lines, read_parquet, read_text
from seqarena.common.errors import BadDataError, WrongUseError
from seqarena.common.runs.roles import Role, role
from seqarena.qa.data import Data, entailment

LABELS = ("entailment", "neutral", "contradiction")
"""Mapped by name, wherever they come from: files and code disagree on their order."""
UNDECIDED = "-"
"""The label of a pair on which its annotators had no majority."""
UNLABELLED = -1
"""The number of a label that nobody gave: such pairs can be classified, not trained or scored on."""
COLUMNS = (("sentence1", "sentence2"), ("premise", "hypothesis"))
"""Names of the two sentences' columns: official, and on the hub."""
PARTS = ("train", "matched", "mismatched", "extra")
SPLITS_OF_HUB = {"train": "train", "matched": "validation_matched", "mismatched": "validation_mismatched"}
HINT = "--data.train, --data.matched and --data.mismatched take files of your own, such as multinli_1.0_train.jsonl"


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Two sentences and how the second one relates to the first."""

    premise: str
    hypothesis: str
    label: int
    """Its number in ``LABELS``, or ``UNLABELLED``."""


@dataclass(frozen=True, kw_only=True)
class Mnli(Data):
    """Which pairs, and how they are cut."""

    matched: str | None = field(default=None, metadata=role(Role.OWN_FILE))
    """Pairs of the genres of the training pairs, to test on: official JSON lines or table, or rows of the hub as JSON
    lines or Parquet; packed or not, as ``train`` is."""
    mismatched: str | None = field(default=None, metadata=role(Role.OWN_FILE))
    """Pairs of other genres, to test on."""
    extra: str | None = field(default=None, metadata=role(Role.ASIDE))
    """Pairs of your own, such as a stress set, tested too: a score of its own that compares nothing."""
    generated: int = 20_000
    """Generated pairs to train on; a tenth as many test, twice."""
    length: int = 128
    """Tokens of a pair at most, special ones counted; the longer sentence is cut first."""

    @property
    def own(self) -> bool:
        """Whether files are named, in the place of the hub's."""
        return any(each is not None for each in (self.train, self.matched, self.mismatched))

    def check(self) -> None:
        """Raises a ``WrongUseError`` for settings that describe no data."""
        super().check()
        if self.own and (self.train is None or self.matched is None):
            raise WrongUseError(
                "expected --data.train and --data.matched (and --data.mismatched), or none of them and --data.hub"
            )
        if self.length < 5:
            raise WrongUseError(f"data.length: expected at least 5, found {self.length}")

    def load(self) -> tuple[dict[str, list[Pair]], str]:
        """Returns the pairs of train, validation, matched, and where there are such mismatched and extra; a checksum.

        Raises:
            BadDataError: files that are missing, damaged, or of other labels; a split without a pair.
        """
        self.check()
        found = {name: self._read(name) for name in PARTS if self._has(name)}
        train = found.pop("train")
        apart = [hash_text(each.premise) / 2.0**64 < self.held_out for each in train]
        splits = {
            "train": [each for each, out in zip(train, apart, strict=True) if not out],
            "validation": [each for each, out in zip(train, apart, strict=True) if out],
            **{name: self.tested(pairs) for name, pairs in found.items()},
        }
        for name, split in splits.items():
            if not split:
                raise BadDataError(f"mnli: no pair for {name}; of {len(train):,} to train on, data.held_out is taken")
        return splits, checksum(split for name, split in splits.items() if name != "extra")

    def _has(self, name: str) -> bool:
        return getattr(self, name) is not None or (name != "extra" and not self.own)

    def _read(self, name: str) -> list[Pair]:
        path: str | None = getattr(self, name)
        if path is not None:
            return read(Path(path))
        if self.hub is not None:
            source, _, config = self.hub.partition(":")
            rows = hub_rows(source, None, SPLITS_OF_HUB[name], HINT, config=config or None)
            names = getattr(rows.features.get("label"), "names", None)
            placed = ((f"{self.hub}, {name}, row {number}", row) for number, row in enumerate(rows))
            return pairs(placed, names, f"{self.hub}, {name}")
        count = self.generated if name == "train" else self.generated // 10
        return [
            Pair(premise=premise, hypothesis=hypothesis, label=LABELS.index(label))
            for premise, hypothesis, label in entailment.pairs(count, self.seed, PARTS.index(name))
        ]


def read(path: Path, *, labelled: bool = True) -> list[Pair]:
    """Returns the pairs of a file: official JSON lines or table, or rows of the hub.

    ``labelled``: whether pairs without a label are left out, or refused if there is no such column.

    Raises:
        BadDataError: another format, a label that there is not, labels that are numbers without names; says where.
    """
    kind = kind_of(path)
    if kind == ".jsonl":
        return pairs(read_lines(path), None, str(path), labelled=labelled)
    if kind == ".parquet":
        rows, features = read_parquet(path)
        return pairs(rows, features.get("label", {}).get("names"), str(path), labelled=labelled)
    if kind in (".tsv", ".txt"):
        return pairs(_table(path, labelled=labelled), None, str(path), labelled=labelled)
    raise BadDataError(
        f"{path}: expected .jsonl, .tsv, .txt (official tables) or .parquet, packed by gzip or xz or not"
    )


def _table(path: Path, *, labelled: bool) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields the rows of an official table: tabs, no quoting; the label last (GLUE) or first (MultiNLI).

    Annotators' own labels, in between or behind, are as many as there were: a row may be shorter than the heading.
    """
    lines = read_text(path).rstrip("\n").split("\n")
    heading = lines[0].rstrip("\r").split("\t")
    names = next((names for names in COLUMNS if set(names) <= set(heading)), None)
    has_labels = "gold_label" in heading
    if names is None or (labelled and not has_labels):
        raise BadDataError(f"{path}: expected columns sentence1, sentence2 and gold_label, found {', '.join(heading)}")
    # without labels: whatever is first
    label = -1 if heading[-1] == "gold_label" else heading.index("gold_label") if has_labels else 0
    first, second = (heading.index(name) for name in names)
    for number, line in enumerate(lines[1:], start=2):
        cells = line.rstrip("\r").split("\t")
        if not max(first, second, label) + (label < 0) < len(cells) <= len(heading):
            raise BadDataError(f"{path}, line {number}: expected {len(heading)} columns, found {len(cells)}")
        row = {names[0]: cells[first], names[1]: cells[second]} | ({"gold_label": cells[label]} if has_labels else {})
        yield f"{path}, line {number}", row


def pairs(
    rows: Iterator[tuple[str, Mapping[str, Any]]], names: Sequence[str] | None, source: str, *, labelled: bool = True
) -> list[Pair]:
    """Returns pairs of rows; ``names`` are what the numbers of a column ``label`` mean.

    Undecided pairs are left out, or, unless pairs are to be ``labelled``, kept like those without any label.

    Raises:
        BadDataError: a field that is missing, or a label that there is not.
    """
    found: list[Pair] = []
    undecided = 0
    for where, row in rows:
        first, second = next((each for each in COLUMNS if each[0] in row), COLUMNS[0])
        premise, hypothesis = member(row, first, str, where), member(row, second, str, where)
        has_label = labelled or "gold_label" in row or "label" in row
        label = _label(row, names, where) if has_label else UNDECIDED
        undecided += label == UNDECIDED
        if label == UNDECIDED and not labelled:
            found.append(Pair(premise=premise, hypothesis=hypothesis, label=UNLABELLED))
        elif label != UNDECIDED:
            found.append(Pair(premise=premise, hypothesis=hypothesis, label=LABELS.index(label)))
    if undecided and labelled:
        print(f"{source}: left out {undecided:,} pairs without a majority of annotators", file=sys.stderr)
    if not found:
        raise BadDataError(f"{source}: there is no pair in it")
    return found


def _label(row: Mapping[str, Any], names: Sequence[str] | None, where: str) -> str:
    label = row.get("gold_label", row.get("label"))
    if isinstance(label, int):
        if names is None:
            raise BadDataError(f"{where}: label {label} is a number, and nothing says what it means; expected a name")
        if label == -1:
            return UNDECIDED
        label = names[label] if 0 <= label < len(names) else label
    if label not in (*LABELS, UNDECIDED):
        raise BadDataError(f"{where}: expected a label {', '.join(LABELS)} or {UNDECIDED}, found {label!r}")
    return str(label)


def checksum(splits: Iterable[Sequence[Pair]]) -> str:
    """Returns the sha256 over sentences and labels, the same for files and rows that say the same."""
    digest = hashlib.sha256()
    for split in splits:
        for each in split:
            digest.update(json.dumps([each.premise, each.hypothesis, LABELS[each.label]]).encode())
    return digest.hexdigest()
