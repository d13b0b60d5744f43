"""The fields of a run on questions about pictures."""

from dataclasses import dataclass

from seqarena.common.errors import WrongUseError
from seqarena.common.runs.run import MODEL, BaseRun, RowParts
from seqarena.vqa.data import Data
from seqarena.vqa.model import Model


@dataclass(frozen=True, kw_only=True)
class Run(BaseRun):
    """One training on a task of the package."""

    data: Data
    """Which questions and pictures."""
    model: Model
    """Fusion and backbone."""

    @property
    def row_parts(self) -> RowParts:
        """The fusion, where it is none by attention; joint keys."""
        fusion = self.model.fusion
        if fusion.kind != "attention":
            return ((MODEL, fusion.kind),)
        return ((MODEL, fusion.keys),) if fusion.keys == "joint" else ()

    def check(self) -> None:
        """Raises a ``WrongUseError`` for a run that could not work, before anything is loaded."""
        super().check()
        self.data.check()
        self.model.check_data(self.data)
        if self.model.fusion.kind in ("attention", "mean") and self.data.views[0] < 2:
            raise WrongUseError(
                f"model.fusion.kind {self.model.fusion.kind} needs two detectors at least, data.regions names "
                f"{self.data.views[0]}; --model.fusion.kind primary reads one"
            )
        if self.model.fusion.kind == "channels" and not self.data.aligned_views:
            raise WrongUseError("model.fusion.kind channels puts box i of all views together: it needs data.aligned")
