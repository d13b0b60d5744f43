"""Tokenizers behind one interface: WordPiece (BERT), SentencePiece (ALBERT), byte-level BPE (RoBERTa)."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Literal

from seqarena.common.checksums import CHECKSUMS, require_checksum, write_checksums
from seqarena.common.data.tokenization.byte_level import MERGES, read_byte_level
from seqarena.common.data.tokenization.interface import CONTINUED, SPECIAL, Ids, Tokenizer
from seqarena.common.data.tokenization.library import LibraryTokenizer, read_tokenizer
from seqarena.common.data.tokenization.sentencepiece import read_sentencepiece, train_sentencepiece
from seqarena.common.data.tokenization.wordpiece import read_vocabulary, train_wordpiece, word_tokenizer
from seqarena.common.errors import BadDataError, WrongUseError, damage

__all__ = [
    "BESIDE", "CONTINUED", "FILES", "SPECIAL", "VOCABULARIES", "Ids", "Kind", "LibraryTokenizer", "Tokenizer",
    "load_from_run", "load_tokenizer", "save_in_run", "train_tokenizer", "word_tokenizer",
]  # fmt: skip

Kind = Literal["wordpiece", "sentencepiece"]
TRAIN: Mapping[Kind, Callable[[Iterable[str], int], Tokenizer]] = {
    "wordpiece": train_wordpiece,
    "sentencepiece": train_sentencepiece,
}
READ: Mapping[str, Callable[[Path], Tokenizer]] = {
    "spiece.model": read_sentencepiece,
    "30k-clean.model": read_sentencepiece,  # in Google's archives of ALBERT
    "tokenizer.json": read_tokenizer,
    "vocab.json": read_byte_level,
    "vocab.txt": read_vocabulary,
}
FILES = tuple(READ)
"""Files with a vocabulary, in order of preference: tokenizer.json only approximates spiece.model."""
BESIDE = (MERGES, "tokenizer_config.json")
"""Files beside one of ``FILES`` that are read together with it."""
VOCABULARIES = (*FILES, *BESIDE)
"""Files of a checkpoint that define its tokenizer."""


def load_tokenizer(path: Path) -> Tokenizer:
    """Returns the tokenizer of a checkpoint's folder (the first of ``FILES``) or of one such file.

    Raises:
        BadDataError: no such file, a damaged one, or a vocabulary without ``[MASK]`` and the other special tokens.
    """
    if path.is_dir():
        path = next((path / name for name in FILES if (path / name).exists()), path / FILES[-1])
    if not path.exists():
        raise BadDataError(f"{path} does not exist; expected a folder with one of {', '.join(FILES)}, or such a file")
    by_suffix = (READ[name] for name in FILES if Path(name).suffix == path.suffix)
    read = READ.get(path.name) or next(by_suffix, read_vocabulary)
    with damage(path, "tokenizer"):
        return read(path)


def save_in_run(tokenizer: Tokenizer, folder: Path) -> None:
    """Writes the vocabulary of a run with the checksums of its files."""
    tokenizer.save(folder)
    write_checksums(folder, sorted(path.name for path in folder.iterdir() if path.name != CHECKSUMS))


def load_from_run(folder: Path) -> Tokenizer:
    """Returns the tokenizer that ``save_in_run`` wrote. The vocabularies of earlier versions have no checksums.

    Raises:
        BadDataError: there is no vocabulary, or one of its files is damaged or was changed.
    """
    for path in folder.iterdir() if folder.is_dir() else ():
        if path.name in VOCABULARIES:
            require_checksum(path)
    return load_tokenizer(folder)


def train_tokenizer(texts: Iterable[str], kind: Kind, size: int) -> Tokenizer:
    """Returns a lower-case tokenizer of at most ``size`` tokens, trained on texts.

    Raises:
        WrongUseError: a size below 100, or too small for the letters of the text.
    """
    if size < 100:
        raise WrongUseError(f"a vocabulary of {size} tokens: expected at least 100")
    failures: list[Exception | KeyboardInterrupt] = []
    try:
        return TRAIN[kind](_watched(texts, failures), size)
    except Exception as error:  # the libraries raise base classes
        if failures:
            raise failures[0] from None
        raise WrongUseError(f"no {kind} vocabulary of {size:,} tokens can be trained on this text: {error}") from error


def _watched(texts: Iterable[str], failures: list[Exception | KeyboardInterrupt]) -> Iterator[str]:
    """Yields the texts and records what interrupts them: the libraries hide it in an error of their own."""
    try:
        yield from texts
    except (Exception, KeyboardInterrupt) as error:
        failures.append(error)
        raise
