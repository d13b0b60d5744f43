"""Questions on paragraphs, pairs of sentences: read or generated, made into batches."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from seqarena.common.data.batches import sample_indices
from seqarena.common.errors import WrongUseError
from seqarena.common.runs.roles import Role, added, role

Example = TypeVar("Example")


@dataclass(frozen=True, kw_only=True)
class Data(ABC):
    """Which examples, and how they become tokens."""

    train: str | None = field(default=None, metadata=role(Role.OWN_FILE))
    """Examples to train on, a file; none: those of ``hub``, or generated ones."""
    hub: str | None = field(default=None, metadata=role(Role.ORIGIN))
    """A data set of the hub, as ID or ID:CONFIG; without it and without files examples are generated."""
    generated: int
    """Generated examples to train on; a tenth as many test."""
    tokenizer: str | None = field(default=None, metadata=role(Role.ORIGIN))
    """tokenizer.json or vocab.txt, a folder or id of the hub; none: the checkpoint's; generated text: its own words."""
    length: int
    """Tokens of a sequence at most, special ones counted."""
    held_out: float = 0.01
    """Share of the texts trained on, by a hash of them, whose examples validate instead."""
    test_limit: int | None = field(default=None, metadata=added(2))
    """Examples of each test set that are evaluated, drawn from all; none: all. A score on fewer is in no table with
    those on all."""
    seed: int = 0
    """Seed of generated examples, and of those that are drawn."""

    @property
    @abstractmethod
    def own(self) -> bool:
        """Whether files are named, in the place of the hub's."""

    @property
    def is_generated(self) -> bool:
        """Whether the examples are generated."""
        return self.hub is None and not self.own

    def tested(self, examples: Sequence[Example]) -> list[Example]:
        """Returns those examples of a test set that are evaluated."""
        return [examples[number] for number in sample_indices(len(examples), self.test_limit, self.seed, 1).tolist()]

    def check(self) -> None:
        """Raises a ``WrongUseError`` for settings that describe no data."""
        if not 0 < self.held_out < 1:
            raise WrongUseError(f"data.held_out: expected a share between 0 and 1, found {self.held_out}")
        if self.generated < 100:
            raise WrongUseError(f"data.generated: expected at least 100, found {self.generated}")
        if self.test_limit is not None and self.test_limit < 1:
            raise WrongUseError(f"data.test_limit: expected at least 1, or none for all, found {self.test_limit}")
