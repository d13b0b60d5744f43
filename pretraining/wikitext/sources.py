"""Lines of the three splits: of the published files, packed or not, of the hub, or of the bundled book."""

import io
import re
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from common import corpus
from common.counter import hash64
from common.errors import BadDataError
from common.files import text_lines
from common.hub import hub_rows
from pretraining.wikitext.vocabularies import UNKNOWN

SPLITS = ("train", "valid", "test")
HUB_SPLITS = {"train": "train", "valid": "validation", "test": "test"}
RAREST = 3
"""Words of the bundled book that stand less often in its training part become ``<unk>``, as WikiText was made."""
HELD_OUT = 0.05
WORD = re.compile(r"\w+|[^\w\s]")
Lines = Callable[[str], Iterator[str]]
"""Of a split its lines, from the first again at every call."""


def of_path(path: Path, endings: tuple[str, ...]) -> Lines:
    """Returns the lines of ``wiki.SPLIT.tokens`` (or another ending) in a folder, or in the zip as it is published.

    Raises:
        BadDataError: of whoever reads: a file that is missing or damaged.
    """
    return lambda split: _of_folder(path, split, endings) if path.is_dir() else _of_zip(path, split, endings)


def _of_folder(path: Path, split: str, endings: tuple[str, ...]) -> Iterator[str]:
    names = [f"wiki.{split}.{ending}" for ending in endings]
    places = [place for name in names for place in (path / name, *sorted(path.glob(f"*/{name}")))]
    yield from text_lines(next((place for place in places if place.exists()), path / names[0]))


def _of_zip(path: Path, split: str, endings: tuple[str, ...]) -> Iterator[str]:
    names = [f"wiki.{split}.{ending}" for ending in endings]
    try:
        with zipfile.ZipFile(path) as archive:
            inside = {each.split("/")[-1]: each for each in archive.namelist()}
            name = next((inside[name] for name in names if name in inside), None)
            if name is None:
                raise BadDataError(f"{path}: there is no {names[0]} in it")
            with archive.open(name) as file:
                yield from (line.rstrip("\n") for line in io.TextIOWrapper(file, encoding="utf-8", newline="\n"))
    except FileNotFoundError as error:
        raise BadDataError(f"{path} does not exist; expected a folder with {names[0]}, or a zip of it") from error
    except (OSError, zipfile.BadZipFile, UnicodeDecodeError) as error:
        raise BadDataError(f"{path}: cannot be read ({error}); fetch it again") from error


def of_hub(name: str) -> Lines:
    """Returns the lines of a data set of the hub, ID:CONFIG, or of a local folder in its layout: a row a line.

    Raises:
        BadDataError: of whoever reads: it cannot be had, or has no column ``text``.
    """
    source, _, config = name.partition(":")
    hint = "--data.path takes a folder or zip with wiki.train.tokens, wiki.valid.tokens and wiki.test.tokens"

    def lines(split: str) -> Iterator[str]:
        for number, row in enumerate(hub_rows(source, None, HUB_SPLITS[split], hint, config=config or None)):
            if not isinstance(row.get("text"), str):
                raise BadDataError(f"{source}, row {number}: expected text in column text, found {', '.join(row)}")
            yield row["text"]

    return lines


def of_book() -> Lines:
    """Returns the verses of the bundled King James Bible, words and marks apart; chapters split by a hash."""
    chapters = [[WORD.findall(verse) for verse in verses] for verses in corpus.chapters()]
    drawn = [float(hash64(number)[0]) / 2.0**64 for number in range(len(chapters))]
    parts: Mapping[str, list[list[str]]] = {name: [] for name in SPLITS}
    for verses, place in zip(chapters, drawn, strict=True):
        name = "valid" if place < HELD_OUT else "test" if place < 2 * HELD_OUT else "train"
        parts[name].extend(verses)
    counts = Counter(word for verse in parts["train"] for word in verse)
    known = {word for word, count in counts.items() if count >= RAREST}
    return lambda split: (" ".join(word if word in known else UNKNOWN for word in verse) for verse in parts[split])
