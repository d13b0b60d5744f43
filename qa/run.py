"""The config of a finetuning run."""

from collections.abc import Collection, Mapping
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
    """One finetuning run."""

    data: Data
    """The questions or pairs."""
    model: Model
    """The BERT and its head."""

    @property
    def longest(self) -> int:
        """Maximum number of tokens of a sequence."""
        return self.data.length

    @property
    def row_parts(self) -> RowParts:
        """Attention of the checkpoint's pretraining, if it differs from the run's."""
        return self.model.pretrained_otherwise

    @property
    def notes(self) -> list[str]:
        """Notes for every table with this result, such as the pretraining's seed if it differs from the run's."""
        return self.model.notes_of(self.seed)

    def completed(self, typed: Collection[str]) -> "Run":
        """Returns the run with the checkpoint's settings; see ``started`` and ``tokenizer_unless_typed``."""
        if self.model.init is None:
            return self
        data = replace(self.data, tokenizer=tokenizer_unless_typed(self.data.tokenizer, typed))
        return replace(self, model=with_checkpoint(self.model, self.model.init, typed), data=data)

    @property
    def without_effect(self) -> Mapping[str, str]:
        """The settings of generated examples, if others are read."""
        if self.data.is_generated:
            return {}
        source = "files of your own" if self.data.own else "data.hub"
        names = ["generated"] if self.data.test_limit is not None else ["generated", "seed"]
        return {f"data.{name}": source for name in names}

    def check(self) -> None:
        """Raises a ``WrongUseError`` for an invalid run, before anything is loaded."""
        super().check()
        self.data.check()
        self.model.check()
        version = self.data.version if isinstance(self.data, Squad) else None
        if (version is None) != (self.task not in VERSIONS):
            raise WrongUseError(f"data: expected the data of {self.task}, found a {type(self.data).__name__}")
        if version != VERSIONS.get(self.task):
            task = next((name for name, each in VERSIONS.items() if each == version), "")
            raise WrongUseError(
                f"data.version: expected {VERSIONS[self.task]} for {self.task}, found {version}; run {task} instead"
            )
        if version is None and self.model.head != "span":
            raise WrongUseError("model.head applies only to squad1 and squad2: mnli has one head; omit it")
        if self.data.length > self.model.max_length:
            raise WrongUseError(
                f"data.length: expected at most model.max_length {self.model.max_length}, found {self.data.length}"
            )
        if self.data.tokenizer is None and self.model.init is None and not self.data.is_generated:
            raise WrongUseError("expected a vocabulary: set --data.tokenizer, or --model.init to a checkpoint with one")
