"""Lines of the three splits: of the published files, packed or not, of the hub, or of the bundled book."""

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
from seqarena.pretraining.wikitext.vocabularies import UNKNOWN

SPLITS = ("train", "valid", "test")
HUB_SPLITS = {"train": "train", "valid": "validation", "test": "test"}
RAREST = 3
"""Words of the bundled book that stand less often in its training part become ``<unk>``, as WikiText was made."""
HELD_OUT = 0.05
WORD = re.compile(r"\w+|[^\w\s]")
Lines = Callable[[str], Iterator[str]]
"""Returns the lines of a split, from the first at every call."""


def of_path(path: Path, endings: tuple[str, ...]) -> Lines:
    """Returns the lines of ``wiki.SPLIT.tokens`` (or another ending) in a folder, or in the zip as it is published.

    All three are those of one folder, this one or one inside it.

    Raises:
        BadDataError: no such files, or several sets of them; of whoever reads: a file that is damaged.
    """
    is_folder = path.is_dir()
    names = [str(each.relative_to(path)) for each in path.glob("**/wiki.*")] if is_folder else _inside(path)
    sets: dict[tuple[str, str], dict[str, str]] = {}
    for ending in endings:
        for split in SPLITS:
            for name in names:
                folder, _, last = name.rpartition("/")
                if last == f"wiki.{split}.{ending}":
                    sets.setdefault((ending, folder), {})[split] = name
    wanted = [each for each in sets if each[0] == next(iter(sets))[0]]
    if len(wanted) > 1:
        raise BadDataError(f"{path}: several sets, in {', '.join(folder or '.' for _, folder in wanted)}; name one")
    found = sets[wanted[0]] if wanted else {}
    for split in SPLITS:
        if split not in found:
            ending, folder = wanted[0] if wanted else (endings[0], "")
            name = f"{folder}/wiki.{split}.{ending}".lstrip("/")
            raise BadDataError(f"{path}: there is no {name} in it; expected a folder or zip with all three splits")
    return lambda split: text_lines(path / found[split]) if is_folder else _of_zip(path, found[split])


def _inside(path: Path) -> list[str]:
    if path.suffix in (".tokens", ".raw"):
        raise BadDataError(f"{path} is one of the three files; name their folder")
    with _unpacked(path) as archive:
        return archive.namelist()


def _of_zip(path: Path, name: str) -> Iterator[str]:
    with _unpacked(path) as archive, archive.open(name) as file:
        yield from decode_lines(file, f"{path}, {name}")
        found, size = file.tell(), archive.getinfo(name).file_size
        if not found or found != size:  # a damaged directory may say that there is nothing, and nothing's checksum
            raise EOFError(f"{name}: expected {size or 'some'} bytes, found {found:,}")


@contextlib.contextmanager
def _unpacked(path: Path) -> Iterator[zipfile.ZipFile]:
    with damage(path, "zip", "fetch it again"), zipfile.ZipFile(path) as archive:
        yield archive


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
