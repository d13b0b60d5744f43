"""Published file layouts of Gigaword headlines: two text files per split, or a table."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from types import MappingProxyType

from seqarena.common.data.hub import hub_rows
from seqarena.common.data.readers import member, read_lines, read_parquet, text_lines
from seqarena.common.errors import BadDataError

SPLITS = ("train", "validation", "test")
TEXTS: Mapping[str, tuple[tuple[str, str], ...]] = MappingProxyType(
    {
        "train": (("train/train.article.txt", "train/train.title.txt"), ("train.src.txt", "train.tgt.txt")),
        "validation": (
            ("train/valid.article.filter.txt", "train/valid.title.filter.txt"), ("dev.src.txt", "dev.tgt.txt")
        ),
        "test": (("Giga/input.txt", "Giga/task1_ref0.txt"), ("test.src.txt", "test.tgt.txt")),
    }
)  # fmt: skip
"""Files of texts and titles: of harvardnlp/sent-summary (sumdata), of microsoft/unilm (org_data)."""
FOLDERS = ("", "sumdata", "org_data", "data")
"""Subfolders that are searched."""
TABLES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"train": ("train",), "validation": ("validation", "valid", "dev"), "test": ("test",)}
)
COLUMNS = ("document", "summary")
"""Columns of a table; a .tsv without a header has these two, in this order."""
PACKED = ("", ".gz", ".xz")
EXPECTED = (
    "train/train.article.txt with train.title.txt, train/valid.article.filter.txt, Giga/input.txt with task1_ref0.txt "
    "(sumdata); train.src.txt with train.tgt.txt, dev.*, test.* (org_data); or train, validation and test as .tsv, "
    ".jsonl or .parquet with document and summary"
)


@dataclass(frozen=True, kw_only=True)
class Pair:
    """A text and its headline, as read."""

    document: str
    summary: str


Pairs = Callable[[], Iterator[Pair]]
"""Function that reads a split, from the start on each call."""


def find(folder: Path) -> dict[str, Pairs]:
    """Returns a reader for each split of a folder.

    Raises:
        BadDataError: the folder does not exist, or a split is in none of the layouts; names the expected files.
    """
    if not folder.is_dir():
        raise BadDataError(f"--data.path {folder}: no such folder; expected one with {EXPECTED}")
    return {split: _reader(folder, split) for split in SPLITS}


def _reader(folder: Path, split: str) -> Pairs:
    roots = [folder / name for name in FOLDERS if (folder / name).is_dir()]
    for root in roots:
        for both in TEXTS[split]:
            source, target = (_existing(root / name) for name in both)
            if source is not None and target is not None:
                return lambda one=source, two=target: _parallel(one, two)  # type: ignore[misc]
            if source is not None or target is not None:
                raise BadDataError(f"{source or target}: the other file of {' and '.join(both)} is missing")
    for root in roots:
        for kind, read in (("parquet", _parquet), ("jsonl", _json), ("tsv", _tabs)):
            paths = _tables(root, split, kind)
            if paths:
                return lambda paths=paths, read=read: (pair for path in paths for pair in read(path))  # type: ignore[misc]
    raise BadDataError(f"{folder}: no {split} pairs; expected {EXPECTED}, each optionally with .gz or .xz")


def _existing(path: Path) -> Path | None:
    return next((found for end in PACKED if (found := path.with_name(path.name + end)).exists()), None)


def _tables(root: Path, split: str, kind: str) -> Sequence[Path]:
    """Returns a split's table, or its parts as named by the hub (train-00000-of-00002.parquet), in order."""
    for name in TABLES[split]:
        whole = _existing(root / f"{name}.{kind}")
        if whole is not None:
            return [whole]
        parts = sorted(root.glob(f"{name}-*-of-*.{kind}"))
        if parts:
            wanted = int(parts[0].stem.rpartition("-")[2])
            if len(parts) != wanted:
                raise BadDataError(f"{root}: {len(parts)} parts of {name}, expected {wanted}: {parts[0].name}, ...")
            return parts
    return ()


def _parallel(source: Path, target: Path) -> Iterator[Pair]:
    """Yields the pairs of two parallel files, line by line.

    Raises:
        BadDataError: the files have different numbers of lines; names both.
    """
    pairs = zip_longest(text_lines(source), text_lines(target))
    for number, (document, summary) in enumerate(pairs):
        if document is None or summary is None:
            longer = number + 1 + sum(1 for _ in pairs)
            both = (number, longer) if document is None else (longer, number)
            raise BadDataError(f"{source} has {both[0]:,} lines and {target} {both[1]:,}; expected the same number")
        yield Pair(document=document, summary=summary)


def _parquet(path: Path) -> Iterator[Pair]:
    return (_pair(row, where) for where, row in read_parquet(path)[0])


def _json(path: Path) -> Iterator[Pair]:
    return (_pair(row, where) for where, row in read_lines(path))


def _tabs(path: Path) -> Iterator[Pair]:
    order = 0, 1
    for number, line in enumerate(text_lines(path), start=1):
        cells = line.split("\t")
        if len(cells) != len(COLUMNS):
            raise BadDataError(f"{path}, line {number}: expected text, tab, headline; found {len(cells)} cells")
        names = [cell.strip().lower() for cell in cells]
        if number == 1 and sorted(names) == sorted(COLUMNS):
            order = names.index(COLUMNS[0]), names.index(COLUMNS[1])
        else:
            yield Pair(document=cells[order[0]], summary=cells[order[1]])


def of_hub(source: str, hint: str) -> dict[str, Pairs]:
    """Returns a reader for each split of a hub data set, ID or ID:CONFIG."""
    name, _, config = source.partition(":")

    def rows(split: str) -> Iterator[Pair]:
        found = hub_rows(name, None, split, hint, config=config or None)
        return (_pair(row, f"{source}, {split}, row {number}") for number, row in enumerate(found, start=1))

    return {split: lambda split=split: rows(split) for split in SPLITS}  # type: ignore[misc]


def _pair(row: object, where: str) -> Pair:
    document, summary = (member(row, name, str, where) for name in COLUMNS)
    return Pair(document=document, summary=summary)
