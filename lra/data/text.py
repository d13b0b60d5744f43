"""Text: is a review for or against its film? Bytes of IMDB reviews."""

from dataclasses import dataclass
from pathlib import Path

from seqarena.common.data.prepared import Splits, checksum, prepared
from seqarena.common.errors import WrongUseError
from seqarena.lra import checksums
from seqarena.lra.data import cropped
from seqarena.lra.data.imdb import read_imdb
from seqarena.lra.data.origin import kept_in
from seqarena.lra.data.reviews import Review, Reviews, in_hash_order, of_reviews, validated_on_test

VALIDATION = 5_000
"""Training reviews that become the validation set: those whose hash is least."""


@dataclass(frozen=True, kw_only=True)
class Text(Reviews):
    """Which reviews, and how much of each."""

    path: str | None = None
    """aclImdb_v1.tar.gz (or .tar.xz), its folder, or a folder of the hub's Parquet files; none: the hub."""
    length: int = 4_000
    """Bytes that are read of a review."""

    def check(self) -> None:
        """Raises a ``WrongUseError`` for a length of nothing."""
        if self.length < 1:
            raise WrongUseError(f"data.length: expected at least 1, found {self.length}")

    def load(self, folder: Path) -> tuple[Splits, str]:
        """Returns the splits, cut to ``length``, and the checksum of the whole reviews."""
        self.check()
        where = kept_in(folder, "text", self.path)
        kept, found = prepared(
            where, "text: reading 50,000 reviews", lambda: split(read_imdb(self.path)), checksums.TEXT
        )
        if self.validation == "test":
            kept = validated_on_test(kept)
            found = checksum(kept)
        return cropped(kept, self.length), found


def split(reviews: dict[str, list[Review]]) -> Splits:
    """Returns train, validation and test, each in the order of its texts' hashes: the same from any source."""
    train, test = (in_hash_order(reviews[name]) for name in ("train", "test"))
    parts = {"train": train[VALIDATION:], "validation": train[:VALIDATION], "test": test}
    return {name: of_reviews(part) for name, part in parts.items()}
