"""The fields of a pretraining run."""

from dataclasses import dataclass

from seqarena.common.runs.run import BaseRun
from seqarena.pretraining import model
from seqarena.pretraining.data import MaskedText


@dataclass(frozen=True, kw_only=True)
class Run(BaseRun):
    """One pretraining of a masked-language model."""

    data: MaskedText
    """Text and masking."""
    model: model.Model
    """The BERT model."""

    def check(self) -> None:
        """Raises a ``WrongUseError`` for an invalid run, before anything is loaded."""
        super().check()
        self.data.check()
        model.check(self.model, self.data)
