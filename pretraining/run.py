"""The fields of a pretraining run."""

from dataclasses import dataclass

from seqarena.common.runs.run import BaseRun
from seqarena.pretraining import model
from seqarena.pretraining.data import MaskedText


@dataclass(frozen=True, kw_only=True)
class Run(BaseRun):
    """One pretraining of a masked-language model."""

    data: MaskedText
    """Which text, and what is hidden in it."""
    model: model.Model
    """The BERT."""

    def check(self) -> None:
        """Raises a ``WrongUseError`` for a run that could not work, before anything is loaded."""
        super().check()
        self.data.check()
        model.check(self.model, self.data)
