"""Reads documents from Parquet, JSON lines, plain text, IMDB's reviews, or a data set of the hub."""

import json
import re
from codecs import BOM_UTF8
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet

from seqarena.common.data.archives import ARCHIVES
from seqarena.common.data.hub import hub_rows
from seqarena.common.data.imdb import is_imdb, training_reviews
from seqarena.common.data.readers import open_unpacked
from seqarena.common.errors import BadDataError, damage
from seqarena.common.files import paths_below

SUFFIXES = (".parquet", ".jsonl", ".txt")
PACKED = (".gz", ".xz")
FIELD = "text"
"""Column or key of the text."""
BOOKS = ("bookcorpus/bookcorpus", "bookcorpus")
BOOK_ROWS = 16
"""Rows of BookCorpus per document, as in cramming; the rows do not say where a book ends."""
HINT = "or set --data.path to files of your own: Parquet or JSON lines with text, or plain text"
LINE_BREAK = re.compile("<br ?/?>")
"""Markup of a line's end in IMDB's reviews."""
CLOSED = """["')\\]]"""
ENDED = "|".join(f"(?<=[.!?]{CLOSED * closed})" for closed in range(3))
SENTENCE = re.compile(rf"""(?:{ENDED})\s+(?=["'(\[]?[A-Z0-9])|\s*\n\s*""")
"""Sentence boundaries: after a full stop and closing quotes or brackets, before a capital; and at line ends. Only
white space is removed."""


class Text:
    """Decodes UTF-8. Invalid bytes are an error if ``strict``, otherwise replaced and counted."""

    def __init__(self, *, strict: bool) -> None:
        self.strict = strict
        self.replaced = 0

    def of(self, raw: bytes, where: str) -> str:
        """Returns the text.

        Raises:
            BadDataError: invalid UTF-8 if ``strict``; names its position.
        """
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError as error:
            if self.strict:
                raise BadDataError(
                    f"{where}: invalid UTF-8 at byte {error.start + 1} ({raw[error.start : error.start + 1]!r}); "
                    "--data.no-strict replaces and counts such bytes"
                ) from error
            text = raw.decode("utf-8", "replace")
            self.replaced += text.count("�") - raw.count("�".encode())
            return text


def sources(path: Path) -> list[Path]:
    """Returns the files of a corpus, in the order of their names; IMDB's archive or its folder counts as one.

    Raises:
        BadDataError: no file of a supported format.
    """
    if is_imdb(path):
        return [path]
    wanted = tuple(f"{suffix}{packed}" for suffix in SUFFIXES for packed in ("", *PACKED))
    found = [path] if path.is_file() else [each for each in paths_below(path) if each.is_file()]
    found = [each for each in found if each.name.endswith(wanted) or _is_imdb_archive(each)]
    if not found:
        raise BadDataError(
            f"{path}: expected files that end in {', '.join(SUFFIXES)}, optionally with .gz or .xz, or IMDB's archive; "
            "found none"
        )
    return found


def _is_imdb_archive(path: Path) -> bool:
    """Returns whether a file among others is an archive by the name of IMDB's; a folder may have unrelated ones."""
    return path.name.startswith("aclImdb") and path.name.endswith(ARCHIVES)


def documents(path: Path, text: Text) -> Iterator[str]:
    """Yields the documents of one file: rows of Parquet, values of JSON lines, text between empty lines, or reviews.

    Raises:
        BadDataError: a file that is damaged, or has no field ``text``; names file and row.
    """
    if is_imdb(path):
        yield from (LINE_BREAK.sub("\n", text.of(raw, f"{path}, {name}")) for name, raw in training_reviews(path))
        return
    name = path.name.removesuffix(".gz").removesuffix(".xz")
    if name.endswith(".parquet"):
        yield from _of_parquet(path, text)
        return
    with damage(path, "text file", "fetch it again"), open_unpacked(path) as packed:
        lines = (line.removeprefix(BOM_UTF8) if number == 0 else line for number, line in enumerate(packed))
        yield from (_of_jsonl if name.endswith(".jsonl") else _of_text)(lines, path, text)


def _of_parquet(path: Path, text: Text) -> Iterator[str]:
    with damage(path, "Parquet file"):
        file = pyarrow.parquet.ParquetFile(path, page_checksum_verification=True)
        if FIELD not in file.schema_arrow.names:
            raise BadDataError(f"{path}: expected a column {FIELD}, found {', '.join(file.schema_arrow.names)}")
        for batch in file.iter_batches(columns=[FIELD]):
            for row in batch.column(0).cast(pa.large_binary()).to_pylist():
                if row is None:
                    raise BadDataError(f"{path}: expected text in column {FIELD}, found nothing in a row")
                yield text.of(row, str(path))


def _of_jsonl(lines: Iterable[bytes], path: Path, text: Text) -> Iterator[str]:
    for number, line in enumerate(lines, start=1):
        where = f"{path}, line {number}"
        if not line.strip():
            continue
        try:
            found = json.loads(text.of(line, where))[FIELD]
        except BadDataError:
            raise
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise BadDataError(f'{where}: expected an object with "{FIELD}", found {line!r:.60}') from error
        if not isinstance(found, str):
            raise BadDataError(f'{where}: expected text in "{FIELD}", found {found!r:.40}')
        yield text.of(found.encode("utf-8", "surrogatepass"), where)  # lone surrogates count as invalid bytes


def _of_text(lines: Iterable[bytes], path: Path, text: Text) -> Iterator[str]:
    gathered: list[str] = []
    for number, line in enumerate(lines, start=1):
        words = text.of(line, f"{path}, line {number}").strip()
        if words:
            gathered.append(words)
        elif gathered:
            yield "\n".join(gathered)
            gathered = []
    if gathered:
        yield "\n".join(gathered)


def from_hub(name: str) -> Iterator[str]:
    """Yields the documents of a hub data set, ID or ID:CONFIG, or of a local folder in its layout.

    BookCorpus has one sentence per row and no document boundaries; ``BOOK_ROWS`` consecutive rows form a document.

    Raises:
        BadDataError: the data set is unavailable, or has no column ``text``.
    """
    source, _, config = name.partition(":")
    revision = "refs/convert/parquet" if source in BOOKS else None
    rows = hub_rows(source, revision, "train", HINT, config=config or None, streamed=True)
    gathered: list[str] = []
    for number, row in enumerate(rows):
        if not isinstance(row.get(FIELD), str):
            raise BadDataError(f"{source}, row {number}: expected text in column {FIELD}, found {', '.join(row)}")
        gathered.append(row[FIELD])
        if source not in BOOKS or len(gathered) == BOOK_ROWS:
            yield "\n".join(gathered)
            gathered = []
    if gathered:
        yield "\n".join(gathered)


def sentences(document: str) -> Sequence[str]:
    """Returns a document's sentences, split by a simple rule (``SENTENCE``)."""
    return [each for each in SENTENCE.split(document) if each and not each.isspace()]
