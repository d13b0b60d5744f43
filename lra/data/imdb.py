"""Reader of the Large Movie Review Dataset (Maas et al. 2011), from its authors' archive or from the hub."""

import re
from pathlib import Path

from seqarena.common.data.archives import is_hub_layout, members
from seqarena.common.data.hub import hub_rows
from seqarena.common.data.imdb import ARCHIVE, REVIEWS, UNLABELLED, review_file
from seqarena.common.errors import BadDataError
from seqarena.common.training.log import with_progress
from seqarena.lra.data.reviews import Review

HUB = "stanfordnlp/imdb"
REVISION = "e6281661ce1c48d982bc483cf8a173c1bbeb5d31"
HINT = f"--data.path accepts {ARCHIVE}, or a folder of the Parquet files of {HUB}; --preset quick needs no files"
URLS = re.compile(r"(?:^|/)(train|test)/urls_(pos|neg)\.txt$")
FILM = re.compile(r"/title/(tt\d+)")


def read_imdb(path: str | None) -> dict[str, list[Review]]:
    """Returns the reviews of train and test, in no particular order.

    Raises:
        BadDataError: files are missing or damaged, or do not contain 12,500 reviews of each label.
    """
    if path is None or is_hub_layout(Path(path)):
        return {split: _from_hub(path, split) for split in ("train", "test")}
    return _from_files(Path(path))


def _from_hub(path: str | None, split: str) -> list[Review]:
    rows = hub_rows(path or HUB, None if path else REVISION, split, HINT)
    source = path or HUB
    if set(rows.column_names) != {"text", "label"}:
        raise BadDataError(f"{source}: expected columns text and label, found {', '.join(rows.column_names)}")
    reviews = []
    for number, row in enumerate(with_progress(rows, f"imdb {split}", len(rows))):
        text, label = row["text"], row["label"]
        if not isinstance(text, str) or label not in (0, 1):
            raise BadDataError(
                f"{source}, split {split}, row {number}: expected a text and a label of 0 or 1, found a "
                f"{type(text).__name__} and {label!r}"
            )
        reviews.append(Review(text=text.encode(), positive=int(label == 1), film=""))
    _check_counts(source, split, reviews)
    return reviews


def _from_files(path: Path) -> dict[str, list[Review]]:
    texts: dict[tuple[str, str], dict[int, bytes]] = {}
    films: dict[tuple[str, str], list[str]] = {}
    wanted = (each for each in members(path, (".txt",)) if _is_labelled(each[0]) or URLS.search(each[0]))
    for name, content in with_progress(wanted, "imdb", 4 * REVIEWS + 4):
        if review := review_file(name):
            texts.setdefault((review.split, review.label), {})[review.number] = content
        elif listed := URLS.search(name):
            lines = content.decode("ascii", "replace").splitlines()
            where = f"{path}, {name}, line"
            films[listed[1], listed[2]] = [
                _film(line, f"{where} {number}") for number, line in enumerate(lines, start=1)
            ]
    reviews: dict[str, list[Review]] = {"train": [], "test": []}
    for split, found in reviews.items():
        for label in ("neg", "pos"):
            known = films.get((split, label))
            for number, text in sorted(texts.get((split, label), {}).items()):
                if known is not None and number >= len(known):
                    raise BadDataError(
                        f"{path}: {split}/{label}/{number}_*.txt has no line in urls_{label}.txt ({len(known):,} lines)"
                    )
                found.append(Review(text=text, positive=int(label == "pos"), film=known[number] if known else ""))
        _check_counts(str(path), split, found)
    return reviews


def _is_labelled(name: str) -> bool:
    review = review_file(name)
    return review is not None and review.label != UNLABELLED


def _film(line: str, where: str) -> str:
    found = FILM.search(line)
    if found is None:
        raise BadDataError(f"{where}: expected a film's URL with /title/tt..., found {line!r:.80}")
    return found[1]


def _check_counts(source: str, split: str, reviews: list[Review]) -> None:
    counts = [sum(review.positive == label for review in reviews) for label in (0, 1)]
    if counts != [REVIEWS, REVIEWS]:
        raise BadDataError(
            f"{source}: expected {REVIEWS:,} negative and {REVIEWS:,} positive reviews in {split}, found "
            f"{counts[0]:,} and {counts[1]:,}; {HINT}"
        )
