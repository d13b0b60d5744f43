"""MNLI: does a hypothesis follow from a premise, contradict it, or neither?"""

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
from seqarena.common.errors import BadDataError, WrongUseError, named_by
from seqarena.common.runs.roles import Role, role
from seqarena.qa.data import Data, entailment, with_sizes

LABELS = ("entailment", "neutral", "contradiction")
"""Labels in the order of their numbers. Sources are mapped by name, because they disagree on the order."""
UNDECIDED = "-"
"""Label of a pair without a majority among its annotators."""
UNLABELLED = -1
"""Label number of unlabelled pairs. They can be classified, but not used for training or scoring."""
COLUMNS = (("sentence1", "sentence2"), ("premise", "hypothesis"))
"""Column names of the two sentences: in the official files, and on the hub."""
PARTS = ("train", "matched", "mismatched", "extra")
SPLITS_OF_HUB = {"train": "train", "matched": "validation_matched", "mismatched": "validation_mismatched"}
HINT = "--data.train, --data.matched and --data.mismatched accept your own files, such as multinli_1.0_train.jsonl"


@dataclass(frozen=True, kw_only=True)
class Pair:
    """A labelled pair of sentences."""

    premise: str
    hypothesis: str
    label: int
    """Index in ``LABELS``, or ``UNLABELLED``."""


@dataclass(frozen=True, kw_only=True)
class Mnli(Data):
    """Config of the sentence pairs and their tokenization."""

    matched: str | None = field(default=None, metadata=role(Role.OWN_FILE))
    """File of test pairs of the same genres as the training pairs. Format of this and the other files: official JSON
    lines or table, or rows of the hub as JSON lines or Parquet, compressed or not."""
    mismatched: str | None = field(default=None, metadata=role(Role.OWN_FILE))
    """File of test pairs of other genres."""
    extra: str | None = field(default=None, metadata=role(Role.ASIDE))
    """File of additional test pairs, such as a stress set. Their score is reported but not compared."""
    generated: int = 20_000
    """Number of generated training pairs. Each of the two test sets has a tenth as many."""
    length: int = 128
    """Maximum number of tokens of a pair, including special tokens. The longer sentence is truncated first."""

    @property
    def own(self) -> bool:
        """Whether the data are your own files instead of a data set of the hub."""
        return any(each is not None for each in (self.train, self.matched, self.mismatched))

    def check(self) -> None:
        """Raises a ``WrongUseError`` for invalid settings."""
        super().check()
        if self.own and (self.train is None or self.matched is None):
            raise WrongUseError(
                "expected --data.train and --data.matched, with --data.mismatched optional; or omit all three and use "
                "--data.hub"
            )
        if self.length < 5:
            raise WrongUseError(f"data.length: expected at least 5, found {self.length}")

    def load(self) -> tuple[dict[str, list[Pair]], str]:
        """Returns the splits and their checksum.

        The splits are train, validation, matched, and if present mismatched and extra.

        Raises:
            BadDataError: files are missing or damaged, or have unknown labels; or a split is empty.
        """
        self.check()
        found = {name: self._read(name) for name in PARTS if self._has(name)}
        train = found.pop("train")
        apart = [hash_text(each.premise) / 2.0**64 < self.held_out for each in train]
        splits = {
            "train": [each for each, out in zip(train, apart, strict=True) if not out],
            "validation": [each for each, out in zip(train, apart, strict=True) if out],
            **{name: self.sample_test(pairs) for name, pairs in found.items()},
        }
        for name, split in splits.items():
            if not split:
                raise BadDataError(
                    f"mnli: expected pairs for {name}, found none; {len(train):,} pairs were divided by data.held_out "
                    f"{self.held_out}"
                )
        compared = [split for name, split in splits.items() if name != "extra"]
        return splits, with_sizes(checksum(compared), compared, self.is_generated)

    def _has(self, name: str) -> bool:
        return getattr(self, name) is not None or (name != "extra" and not self.own)

    def _read(self, name: str) -> list[Pair]:
        path: str | None = getattr(self, name)
        if path is not None:
            with named_by(f"--data.{name}", path, "a file of MNLI, as JSON lines, table or Parquet") as file:
                return read(file)
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

    ``labelled``: skip pairs without a majority label, and raise if there is no column of labels.

    Raises:
        BadDataError: the format or a label is unknown, or labels are numbers without names. The message names the line.
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
        f"{path}: expected .jsonl, .tsv, .txt (official tables) or .parquet, uncompressed or with gzip or xz"
    )


def _table(path: Path, *, labelled: bool) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields the rows of an official table: separated by tabs, without quoting.

    The gold label is the last column (GLUE) or the first (MultiNLI). The number of individual annotators' labels, in
    other columns, varies, so a row may be shorter than the heading.
    """
    lines = read_text(path).rstrip("\n").split("\n")
    heading = lines[0].rstrip("\r").split("\t")
    names = next((names for names in COLUMNS if set(names) <= set(heading)), None)
    has_labels = "gold_label" in heading
    if names is None or (labelled and not has_labels):
        raise BadDataError(f"{path}: expected columns sentence1, sentence2 and gold_label, found {', '.join(heading)}")
    # without labels the first column serves as a placeholder
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
    """Returns the pairs of rows. ``names`` are the label names of the numbers in a column ``label``.

    Pairs without a majority label are skipped if ``labelled``; otherwise they are returned as unlabelled.

    Raises:
        BadDataError: a field is missing, or a label is unknown.
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
        print(f"{source}: skipped {undecided:,} pairs without a majority label", file=sys.stderr)
    if not found:
        raise BadDataError(f"{source}: expected labelled pairs, found none")
    return found


def _label(row: Mapping[str, Any], names: Sequence[str] | None, where: str) -> str:
    label = row.get("gold_label", row.get("label"))
    if isinstance(label, int):
        if names is None:
            raise BadDataError(f"{where}: expected the name of a label, found the number {label} without names")
        if label == -1:
            return UNDECIDED
        label = names[label] if 0 <= label < len(names) else label
    if label not in (*LABELS, UNDECIDED):
        raise BadDataError(f"{where}: expected a label {', '.join(LABELS)} or {UNDECIDED}, found {label!r}")
    return str(label)


def checksum(splits: Iterable[Sequence[Pair]]) -> str:
    """Returns the sha256 of sentences and labels. It does not depend on the file format."""
    digest = hashlib.sha256()
    for split in splits:
        for each in split:
            digest.update(json.dumps([each.premise, each.hypothesis, LABELS[each.label]]).encode())
    return digest.hexdigest()
