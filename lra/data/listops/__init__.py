"""ListOps: nested list operations on digits, from a seeded generator or from the official TSV files."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import ClassVar

from seqarena.common.data.archives import folder_of
from seqarena.common.data.prepared import Splits, prepared
from seqarena.common.runs.config import fingerprint
from seqarena.lra.data import Data
from seqarena.lra.data.listops.floors import floors
from seqarena.lra.data.listops.generator import Expressions, generate
from seqarena.lra.data.listops.language import CLASSES, SYMBOLS
from seqarena.lra.data.listops.official import FILES, read_official
from seqarena.lra.data.origin import prepared_folder

GENERATOR_VERSION = 2
"""Increased whenever the generator's output changes, so that older prepared data are not reused."""


@dataclass(frozen=True, kw_only=True)
class ListOps(Expressions, Data):
    """Config of the expressions: generated, or read from the official release."""

    vocabulary: ClassVar[int] = len(SYMBOLS)
    classes: ClassVar[int] = CLASSES
    path: str | None = None
    """Folder that contains basic_train.tsv, basic_val.tsv and basic_test.tsv, at any depth. none: generate them."""

    @property
    def longest(self) -> int:
        """Maximum number of symbols of an expression."""
        return 0 if self.path is not None else self.shorter_than - 1

    @property
    def without_effect(self) -> Mapping[str, str]:
        """The settings of the generator, if there are files."""
        return {} if self.path is None else {each.name: "data.path" for each in fields(Expressions)}

    def load(self, folder: Path) -> tuple[Splits, str]:
        """Returns the splits and their checksum. Prepared data are stored below ``folder``."""
        if self.path is not None:
            there = folder_of(Path(self.path), FILES["train"])
            return prepared(
                prepared_folder(folder, "listops", str(there)),
                f"listops: reading {there}",
                lambda: read_official(there),
            )
        self.check()
        return prepared(
            folder / "lra" / f"listops-v{GENERATOR_VERSION}-{fingerprint(self)}",
            f"listops: generating {self.train + self.validation + self.test:,} expressions",
            lambda: generate(self),
        )

    def floors(self, splits: Splits) -> dict[str, float]:
        """Returns the test score of each trivial rule."""
        return floors(splits)
