"""The config of a run on associative recall."""

from collections.abc import Collection
from dataclasses import dataclass, replace

from seqarena.common.runs.run import BaseRun
from seqarena.lra.recall.data import Recall
from seqarena.lra.recall.model import Model


@dataclass(frozen=True, kw_only=True)
class RecallRun(BaseRun):
    """One training run on associative recall."""

    data: Recall
    """The sequences."""
    model: Model
    """The causal Transformer."""

    def completed(self, typed: Collection[str]) -> "RecallRun":
        """Returns the run with as many positions and tokens as the data, and a causal norm, unless they were typed."""
        model = self.model
        if "model.norm.mean" not in typed:
            model = replace(model, norm=model.norm.causal())
        if "model.max_length" not in typed:
            model = replace(model, max_length=self.data.longest)
        if "model.vocabulary" not in typed:
            model = replace(model, vocabulary=self.data.vocabulary)
        return replace(self, model=model)

    def check(self) -> None:
        """Raises a ``WrongUseError`` for an invalid run, before anything is loaded."""
        super().check()
        self.data.check()
        self.model.check_recall(longest=self.data.longest, vocabulary=self.data.vocabulary)
