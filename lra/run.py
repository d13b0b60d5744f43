"""The fields of a run on Long Range Arena."""

from dataclasses import dataclass, field

from seqarena.common.errors import WrongUseError
from seqarena.common.runs.run import BaseRun
from seqarena.lra.data import Data
from seqarena.lra.data.pixels import Pixels
from seqarena.lra.data.reviews import Reviews
from seqarena.lra.model import Model


@dataclass(frozen=True, kw_only=True)
class Legacy:
    """Traps of the published code, to re-derive its numbers; all off by default."""

    padded_pooling: bool = False
    """Mean pooling divides by model.max_length, not by the number of real tokens (Xiong et al.)."""
    drop_tail: bool = False
    """Evaluation leaves out the last examples that do not fill a batch of train.batch_size (Xiong et al.)."""
    zero_is_padding: bool = False
    """Black pixels count as padding, as token 0 did (Tay et al., Xiong et al.)."""


@dataclass(frozen=True, kw_only=True)
class Run(BaseRun):
    """One training on a task of Long Range Arena."""

    data: Data
    """Which examples."""
    model: Model
    """The classifier."""
    legacy: Legacy = field(default_factory=Legacy)
    """Traps of published code."""

    def check(self) -> None:
        """Raises a ``WrongUseError`` for a run that could not work, before anything is loaded."""
        super().check()
        self.data.check()
        self.model.check_task(self.data, longest=self.data.longest)
        if isinstance(self.data, Reviews) and (self.data.validation == "test") != (self.task == "text-legacy"):
            raise WrongUseError("data.validation test makes the task text-legacy, held-out makes it text")
        if self.data.sequences == 1 and self.model.pairing != "product":
            raise WrongUseError("model.pairing is for tasks that compare two documents")
        if self.legacy.zero_is_padding and not isinstance(self.data, Pixels):
            raise WrongUseError("legacy.zero_is_padding is about black pixels: for image, pathfinder and pathx")
        if self.legacy.padded_pooling and self.model.pooling != "mean":
            raise WrongUseError("legacy.padded_pooling belongs to model.pooling mean")
