"""Text: sentiment of IMDB reviews, read byte by byte."""

from dataclasses import dataclass
from pathlib import Path

from seqarena.common.data.prepared import Splits, checksum, prepared
from seqarena.common.errors import WrongUseError
from seqarena.lra import checksums
from seqarena.lra.data import truncate
from seqarena.lra.data.imdb import read_imdb
from seqarena.lra.data.origin import prepared_folder
from seqarena.lra.data.reviews import Review, Reviews, in_hash_order, reviews_to_sequences, validate_on_test

VALIDATION = 5_000
"""Number of training reviews that form the validation set: those with the smallest hashes."""


@dataclass(frozen=True, kw_only=True)
class Text(Reviews):
    """Config of the IMDB reviews."""

    path: str | None = None
    """aclImdb_v1.tar.gz (or .tar.xz), its folder, or a folder of the hub's Parquet files. none: the hub."""
    length: int = 4_000
    """Number of bytes read per review."""

    def check(self) -> None:
        """Raises a ``WrongUseError`` if ``length`` is below 1."""
        if self.length < 1:
            raise WrongUseError(f"data.length: expected at least 1, found {self.length}")

    def load(self, folder: Path) -> tuple[Splits, str]:
        """Returns the splits, truncated to ``length``, and the checksum of the whole reviews."""
        self.check()
        where = prepared_folder(folder, "text", self.path)
        kept, found = prepared(
            where, "text: reading 50,000 reviews", lambda: split(read_imdb(self.path)), checksums.TEXT
        )
        if self.validation == "test":
            kept = validate_on_test(kept)
            found = checksum(kept)
        return truncate(kept, self.length), found


def split(reviews: dict[str, list[Review]]) -> Splits:
    """Returns train, validation and test, each sorted by text hash, so that all sources yield the same order."""
    train, test = (in_hash_order(reviews[name]) for name in ("train", "test"))
    parts = {"train": train[VALIDATION:], "validation": train[:VALIDATION], "test": test}
    return {name: reviews_to_sequences(part) for name, part in parts.items()}
