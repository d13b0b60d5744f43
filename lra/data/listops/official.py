"""Reader of the official ListOps files: a header, CRLF line ends, fully parenthesised expressions."""

from pathlib import Path

from seqarena.common.data.batches import Bytes, Ragged
from seqarena.common.errors import BadDataError
from seqarena.lra.data.listops.language import CLASSES, SYMBOLS, encode, evaluate

FILES = {"train": "basic_train.tsv", "validation": "basic_val.tsv", "test": "basic_test.tsv"}
HEADER = "Source\tTarget"


def read_tsv(path: Path) -> Ragged:
    """Returns the examples of one official file. Every label is checked against its expression.

    Raises:
        BadDataError: the file is missing or invalid. The message names the file, the line, the content found and the
            content expected.
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
                if not line.strip():  # an empty line at the end, as some editors add
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
            "(omit --data.path to generate the data)"
        ) from error
    except ValueError as error:
        raise BadDataError(f"{path}, {error}") from error
    if not sequences:
        raise BadDataError(
            f"{path}: expected examples, found {'only a header' if path.stat().st_size else 'an empty file'}"
        )
    return Ragged.of(sequences, labels)


def _text(raw: bytes, number: int) -> str:
    try:
        return raw.removeprefix(b"\xef\xbb\xbf" if number == 1 else b"").decode("ascii")
    except UnicodeDecodeError as error:
        found = raw[error.start : error.start + 1]
        raise ValueError(
            f"line {number}: expected plain ASCII, found byte {found!r} at position {error.start + 1}"
        ) from error


def _row(columns: list[str]) -> tuple[Bytes, int]:
    if len(columns) != 2:
        raise ValueError(f"expected 2 columns (Source, Target), found {len(columns)}")
    source, target = columns
    if source.count("(") != source.count(")"):
        raise ValueError(
            f"expected balanced parentheses, found {source.count('(')} opening and {source.count(')')} closing"
        )
    if target not in {str(label) for label in range(CLASSES)}:
        raise ValueError(f"expected a label from 0 to {CLASSES - 1}, found {target!r:.40}")
    tokens = encode(source)
    value = evaluate(tokens)
    if value < 0:
        index = -1 - value
        found = f"unexpected symbol {index + 1}, {SYMBOLS[tokens[index]]}" if index < len(tokens) else "it ends early"
        raise ValueError(f"expected one complete expression: {found}")
    if value != int(target):
        raise ValueError(f"the expression evaluates to {value}, but its label is {target}")
    return tokens, int(target)


def read_official(folder: Path) -> dict[str, Ragged]:
    """Returns the three splits of an official release folder. Raises a ``BadDataError`` as ``read_tsv`` does."""
    return {split: read_tsv(folder / name) for split, name in FILES.items()}
