"""Lines of the three splits, from the published files (folder or zip), the hub, or the bundled book."""

import contextlib
import re
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from seqarena.common.data import corpus
from seqarena.common.data.counter import hash64
from seqarena.common.data.hub import hub_rows
from seqarena.common.data.readers import decode_lines, text_lines
from seqarena.common.errors import BadDataError, damage
from seqarena.common.files import paths_below
from seqarena.pretraining.wikitext.vocabularies import UNKNOWN

SPLITS = ("train", "valid", "test")
HUB_SPLITS = {"train": "train", "valid": "validation", "test": "test"}
RAREST = 3
"""Words of the bundled book with fewer occurrences in its training part become ``<unk>``, as in WikiText."""
HELD_OUT = 0.05
WORD = re.compile(r"\w+|[^\w\s]")
Lines = Callable[[str], Iterator[str]]
"""Function that returns the lines of a split, from the first on each call."""


def lines_of_path(path: Path, endings: tuple[str, ...]) -> Lines:
    """Returns the lines of ``wiki.SPLIT.tokens`` (or another ending) in a folder, or in the published zip.

    All three files must be in one folder, ``path`` or one below it.

    Raises:
        BadDataError: files are missing, or there are several sets; on reading: a file is damaged.
    """
    is_folder = path.is_dir()
    names = [str(each.relative_to(path)) for each in paths_below(path)] if is_folder else _names_in_zip(path)
    sets: dict[tuple[str, str], dict[str, str]] = {}
    for ending in endings:
        for split in SPLITS:
            for name in names:
                folder, _, last = name.rpartition("/")
                if last == f"wiki.{split}.{ending}":
                    sets.setdefault((ending, folder), {})[split] = name
    wanted = [each for each in sets if each[0] == next(iter(sets))[0]]
    if len(wanted) > 1:
        raise BadDataError(
            f"{path}: several sets of files, in {', '.join(folder or '.' for _, folder in wanted)}; name one folder"
        )
    found = sets[wanted[0]] if wanted else {}
    for split in SPLITS:
        if split not in found:
            ending, folder = wanted[0] if wanted else (endings[0], "")
            name = f"{folder}/wiki.{split}.{ending}".lstrip("/")
            raise BadDataError(f"{path}: there is no {name} in it; expected a folder or zip with all three splits")
    return lambda split: text_lines(path / found[split]) if is_folder else _lines_of_zip(path, found[split])


def _names_in_zip(path: Path) -> list[str]:
    if path.suffix in (".tokens", ".raw"):
        raise BadDataError(f"{path} is one of the three files; expected the folder that contains them")
    with _open_zip(path) as archive:
        return archive.namelist()


def _lines_of_zip(path: Path, name: str) -> Iterator[str]:
    with _open_zip(path) as archive, archive.open(name) as file:
        yield from decode_lines(file, f"{path}, {name}")
        found, size = file.tell(), archive.getinfo(name).file_size
        if not found or found != size:  # a damaged directory may declare size 0, with a matching checksum
            raise EOFError(f"{name}: expected {size or 'some'} bytes, found {found:,}")


@contextlib.contextmanager
def _open_zip(path: Path) -> Iterator[zipfile.ZipFile]:
    with damage(path, "zip", "fetch it again"), zipfile.ZipFile(path) as archive:
        yield archive


def lines_of_hub(name: str) -> Lines:
    """Returns the lines of a hub data set, ID:CONFIG, or of a local folder in its layout: one line per row.

    Raises:
        BadDataError: on reading: the data set is unavailable, or has no column ``text``.
    """
    source, _, config = name.partition(":")
    hint = "or set --data.path to a folder or zip with wiki.train.tokens, wiki.valid.tokens and wiki.test.tokens"

    def lines(split: str) -> Iterator[str]:
        for number, row in enumerate(hub_rows(source, None, HUB_SPLITS[split], hint, config=config or None)):
            if not isinstance(row.get("text"), str):
                raise BadDataError(f"{source}, row {number}: expected text in column text, found {', '.join(row)}")
            yield row["text"]

    return lines


def lines_of_book() -> Lines:
    """Returns the verses of the bundled King James Bible, words and punctuation separated; chapters split by a hash."""
    chapters = [[WORD.findall(verse) for verse in verses] for verses in corpus.chapters()]
    drawn = [float(hash64(number)[0]) / 2.0**64 for number in range(len(chapters))]
    parts: Mapping[str, list[list[str]]] = {name: [] for name in SPLITS}
    for verses, place in zip(chapters, drawn, strict=True):
        name = "valid" if place < HELD_OUT else "test" if place < 2 * HELD_OUT else "train"
        parts[name].extend(verses)
    counts = Counter(word for verse in parts["train"] for word in verse)
    known = {word for word, count in counts.items() if count >= RAREST}
    return lambda split: (" ".join(word if word in known else UNKNOWN for word in verse) for verse in parts[split])
