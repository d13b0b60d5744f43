"""The official ListOps files: a header, CRLF line ends, fully parenthesised expressions."""

from pathlib import Path

from seqarena.common.data.batches import Bytes, Ragged
from seqarena.common.errors import BadDataError
from seqarena.lra.data.listops.language import CLASSES, SYMBOLS, encode, evaluate

FILES = {"train": "basic_train.tsv", "validation": "basic_val.tsv", "test": "basic_test.tsv"}
HEADER = "Source\tTarget"


def read_tsv(path: Path) -> Ragged:
    """Returns the examples of one official file; every label is checked against its expression.

    Raises:
        BadDataError: names the file, the line, what was found and what was expected.
    """
    sequences: list[Bytes] = []
    labels: list[int] = []
    try:
        with path.open("rb") as file:
            for number, raw in enumerate(file, start=1):
                line = _text(raw, number).rstrip("\r\n")
                if number == 1:
                    if line.split("\t") != HEADER.split("\t"):
                        raise ValueError(f"line 1: expected the header {HEADER!r}, found {line!r:.80}")
                    continue
                if not line.strip():  # an empty line at the end, as editors leave it
                    continue
                try:
                    tokens, label = _row(line.split("\t"))
                except ValueError as error:
                    raise ValueError(f"line {number}: {error}") from error
                sequences.append(tokens)
                labels.append(label)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise BadDataError(
            f"{path} does not exist; expected {', '.join(FILES.values())} in --data.path "
            "(leave --data.path out to generate the data)"
        ) from error
    except ValueError as error:
        raise BadDataError(f"{path}, {error}") from error
    if not sequences:
        raise BadDataError(f"{path}: no examples, only {'a header' if path.stat().st_size else 'an empty file'}")
    return Ragged.of(sequences, labels)


def _text(raw: bytes, number: int) -> str:
    try:
        return raw.removeprefix(b"\xef\xbb\xbf" if number == 1 else b"").decode("ascii")
    except UnicodeDecodeError as error:
        found = raw[error.start : error.start + 1]
        raise ValueError(
            f"line {number}: expected plain ASCII, found byte {found!r} at place {error.start + 1}"
        ) from error


def _row(columns: list[str]) -> tuple[Bytes, int]:
    if len(columns) != 2:
        raise ValueError(f"expected 2 columns (Source, Target), found {len(columns)}")
    source, target = columns
    if source.count("(") != source.count(")"):
        raise ValueError(f"{source.count('(')} parentheses open and {source.count(')')} close")
    if target not in {str(label) for label in range(CLASSES)}:
        raise ValueError(f"expected a label from 0 to {CLASSES - 1}, found {target!r:.40}")
    tokens = encode(source)
    value = evaluate(tokens)
    if value < 0:
        place = -1 - value
        found = f"symbol {place + 1}, {SYMBOLS[tokens[place]]}," if place < len(tokens) else "its end"
        raise ValueError(f"not one whole expression: {found} does not fit")
    if value != int(target):
        raise ValueError(f"the expression is {value}, but its label says {target}")
    return tokens, int(target)


def read_official(folder: Path) -> dict[str, Ragged]:
    """Returns the three splits of an official release folder; raises ``BadDataError`` as ``read_tsv`` does."""
    return {split: read_tsv(folder / name) for split, name in FILES.items()}
