"""The fields of a finetuning run."""

from collections.abc import Collection
from dataclasses import dataclass, replace

from seqarena.common.errors import WrongUseError
from seqarena.common.model.bert.start import tokenizer_unless_typed, with_checkpoint
from seqarena.common.runs.run import BaseRun, RowParts
from seqarena.qa.data import Data
from seqarena.qa.data.squad import Squad
from seqarena.qa.model import Model

VERSIONS = {"squad1": "1.1", "squad2": "2.0"}
"""Task -> version of SQuAD."""


@dataclass(frozen=True, kw_only=True)
class Run(BaseRun):
    """One finetuning."""

    data: Data
    """Which questions or pairs."""
    model: Model
    """The BERT and its head."""

    @property
    def longest(self) -> int:
        """The most tokens of a sequence there may be."""
        return self.data.length

    @property
    def row_parts(self) -> RowParts:
        """With which attention the checkpoint was trained, if it was another one."""
        return self.model.pretrained_otherwise

    @property
    def notes(self) -> list[str]:
        """Notes for every table with this result; the pretraining's seed, where it is not the run's."""
        return self.model.notes_of(self.seed)

    def completed(self, typed: Collection[str]) -> "Run":
        """Returns the run with what its checkpoint settles; see ``started`` and ``tokenizer_unless_typed``."""
        if self.model.init is None:
            return self
        data = replace(self.data, tokenizer=tokenizer_unless_typed(self.data.tokenizer, typed))
        return replace(self, model=with_checkpoint(self.model, self.model.init, typed), data=data)

    def check(self) -> None:
        """Raises a ``WrongUseError`` for a run that could not work, before anything is loaded."""
        super().check()
        self.data.check()
        self.model.check()
        version = self.data.version if isinstance(self.data, Squad) else None
        if version != VERSIONS.get(self.task):
            raise WrongUseError("data.version: squad1 is 1.1, squad2 is 2.0; choose the task instead")
        if version is None and self.model.head != "span":
            raise WrongUseError("model.head is about SQuAD's answers: mnli has one head")
        if self.data.length > self.model.max_length:
            raise WrongUseError(f"data.length {self.data.length} is above model.max_length {self.model.max_length}")
        if self.data.tokenizer is None and self.model.init is None and not self.data.is_generated:
            raise WrongUseError("without --model.init there is no vocabulary: --data.tokenizer names one")
