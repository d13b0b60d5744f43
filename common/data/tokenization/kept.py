"""Vocabulary in the directory of a run, with the checksums of its files."""

import hashlib
from pathlib import Path

from seqarena.common.data.tokenization import Tokenizer, load_tokenizer
from seqarena.common.errors import BadDataError
from seqarena.common.files import read_strict_json, write_json

CHECKSUMS = "checksums.json"
"""File beside the vocabulary with the sha256 of each of its files."""


def keep_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """Writes the files of a vocabulary, and their checksums."""
    tokenizer.save(folder)
    files = [path for path in folder.iterdir() if path.name != CHECKSUMS]
    write_json(folder / CHECKSUMS, {path.name: _sha256(path) for path in sorted(files)})


def load_kept_tokenizer(folder: Path) -> Tokenizer:
    """Returns the tokenizer that ``keep_tokenizer`` wrote. Earlier versions wrote no checksums.

    Raises:
        BadDataError: a file is missing, damaged or changed.
    """
    sums = folder / CHECKSUMS
    if sums.exists():
        try:
            expected = dict(read_strict_json(sums))
            changed = [name for name, value in expected.items() if _sha256(folder / name) != value]
        except (OSError, ValueError, TypeError) as error:
            raise BadDataError(f"{folder}: a file of the vocabulary is missing or damaged ({error})") from error
        if changed:
            raise BadDataError(
                f"{folder}: {', '.join(changed)} was changed after the run: {CHECKSUMS} has another sha256; "
                "--overwrite trains the run again"
            )
    return load_tokenizer(folder)


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
