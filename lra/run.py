"""The config of a run on Long Range Arena."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from seqarena.common.errors import WrongUseError
from seqarena.common.runs.run import BaseRun
from seqarena.lra.data import Data
from seqarena.lra.data.pixels import Pixels
from seqarena.lra.data.reviews import Reviews
from seqarena.lra.model import Model


@dataclass(frozen=True, kw_only=True)
class Legacy:
    """Quirks of the published code, for reproducing its numbers. All are off by default."""

    padded_pooling: bool = False
    """Mean pooling divides by model.max_length, not by the number of real tokens (Xiong et al.)."""
    drop_tail: bool = False
    """Evaluation skips the last examples that do not fill a batch of train.batch_size (Xiong et al.)."""
    zero_is_padding: bool = False
    """Black pixels are treated as padding: both are token 0 in the published code (Tay et al., Xiong et al.)."""


@dataclass(frozen=True, kw_only=True)
class Run(BaseRun):
    """One training run on a task of Long Range Arena."""

    data: Data
    """The examples."""
    model: Model
    """The classifier."""
    legacy: Legacy = field(default_factory=Legacy)
    """Quirks of the published code."""

    @property
    def without_effect(self) -> Mapping[str, str]:
        """Those of the data."""
        return {f"data.{name}": setting for name, setting in self.data.without_effect.items()}

    def check(self) -> None:
        """Raises a ``WrongUseError`` for an invalid run, before anything is loaded."""
        super().check()
        self.data.check()
        self.model.check_task(self.data, longest=self.data.longest)
        if isinstance(self.data, Reviews) and (self.data.validation == "test") != (self.task == "text-legacy"):
            raise WrongUseError(
                "data.validation: expected held-out for the task text and test for text-legacy, found "
                f"{self.data.validation} for {self.task}"
            )
        if self.data.sequences == 1 and self.model.pairing != "product":
            raise WrongUseError("model.pairing applies only to retrieval and retrieval-imdb; omit it")
        if self.legacy.zero_is_padding and not isinstance(self.data, Pixels):
            raise WrongUseError("legacy.zero_is_padding applies only to image, pathfinder and pathx; omit it")
        if self.legacy.padded_pooling and self.model.pooling != "mean":
            raise WrongUseError(f"legacy.padded_pooling needs model.pooling mean, found {self.model.pooling}")
