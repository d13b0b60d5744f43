"""The data of every finetuning task: questions on paragraphs, or sentence pairs; read or generated, then batched."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Sequence, Sized
from dataclasses import dataclass, field
from typing import TypeVar

from seqarena.common.data.batches import sample_indices
from seqarena.common.errors import WrongUseError
from seqarena.common.runs.roles import Role, added, role

Example = TypeVar("Example")


@dataclass(frozen=True, kw_only=True)
class Data(ABC):
    """Config of the examples and their tokenization. Each task's own config adds its fields."""

    train: str | None = field(default=None, metadata=role(Role.OWN_FILE))
    """File of training examples. none: those of ``hub``, or generated ones."""
    hub: str | None = field(default=None, metadata=role(Role.ORIGIN))
    """Data set of the hub, as ID or ID:CONFIG. Without it and without files, examples are generated."""
    generated: int
    """Number of generated training examples. The test set has a tenth as many."""
    tokenizer: str | None = field(default=None, metadata=role(Role.ORIGIN))
    """spiece.model, tokenizer.json, vocab.json or vocab.txt, a folder or an id of the hub. none: the checkpoint's; for
    generated text its own words."""
    length: int
    """Maximum number of tokens of a sequence, including special tokens."""
    held_out: float = 0.01
    """Fraction of the training texts, chosen by their hashes, whose examples form the validation set."""
    test_limit: int | None = field(default=None, metadata=added(2))
    """Number of examples to evaluate of each test set, sampled from all. none: all. Scores on a sample are kept out of
    the tables of scores on the whole test set."""
    seed: int = 0
    """Seed of generated examples and of the sample of test examples."""

    @property
    @abstractmethod
    def own(self) -> bool:
        """Whether the data are your own files instead of a data set of the hub."""

    @property
    def is_generated(self) -> bool:
        """Whether the examples are generated."""
        return self.hub is None and not self.own

    def sample_test(self, examples: Sequence[Example]) -> list[Example]:
        """Returns the examples of a test set that are evaluated: all, or a sample of ``test_limit``."""
        return [examples[number] for number in sample_indices(len(examples), self.test_limit, self.seed, 1).tolist()]

    def check(self) -> None:
        """Raises a ``WrongUseError`` for invalid settings."""
        if not 0 < self.held_out < 1:
            raise WrongUseError(f"data.held_out: expected a fraction between 0 and 1, found {self.held_out}")
        if self.generated < 100:
            raise WrongUseError(f"data.generated: expected at least 100, found {self.generated}")
        if self.test_limit is not None and self.test_limit < 1:
            raise WrongUseError(f"data.test_limit: expected at least 1, or none for all, found {self.test_limit}")


def with_sizes(checksum: str, splits: Sequence[Sized], is_generated: bool) -> str:
    """Returns a checksum of splits that also covers which examples are in which split.

    ``checksum`` is that of all examples, one after the other. The config determines the sizes of generated splits.
    """
    if is_generated:
        return checksum
    return hashlib.sha256(f"{checksum} {[len(split) for split in splits]}".encode()).hexdigest()
