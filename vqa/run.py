"""The config of a visual question answering run."""

from collections.abc import Mapping
from dataclasses import dataclass

from seqarena.common.errors import WrongUseError
from seqarena.common.runs.run import MODEL, BaseRun, RowParts
from seqarena.vqa.data import Data
from seqarena.vqa.model import Model


@dataclass(frozen=True, kw_only=True)
class Run(BaseRun):
    """One training run on a task of the package."""

    data: Data
    """The questions and pictures."""
    model: Model
    """Fusion and backbone."""

    @property
    def longest(self) -> int:
        """Maximum number of words of a question."""
        return self.data.longest

    @property
    def row_parts(self) -> RowParts:
        """Kind of fusion unless it is attention; with attention, the keys if they are joint."""
        fusion = self.model.fusion
        if fusion.kind != "attention":
            return ((MODEL, fusion.kind),)
        return ((MODEL, fusion.keys),) if fusion.keys == "joint" else ()

    @property
    def without_effect(self) -> Mapping[str, str]:
        """Those of the data, and the settings of a fusion that has no attention."""
        found = {f"data.{name}": setting for name, setting in self.data.without_effect.items()}
        kind = self.model.fusion.kind
        if kind != "attention":
            found["model.fusion.alike"] = f"model.fusion.kind {kind}"
        if kind not in ("attention", "mean"):
            found["model.fusion.residual"] = f"model.fusion.kind {kind}"
        return found

    def check(self) -> None:
        """Raises a ``WrongUseError`` for an invalid run, before anything is loaded."""
        super().check()
        self.data.check()
        self.model.check_data(self.data)
        if self.model.fusion.kind in ("attention", "mean") and self.data.views[0] < 2:
            raise WrongUseError(
                f"model.fusion.kind {self.model.fusion.kind} needs at least two detectors, data.regions has "
                f"{self.data.views[0]}; for one detector use --model.fusion.kind primary"
            )
        if self.model.fusion.kind == "channels" and not self.data.aligned_views:
            raise WrongUseError("model.fusion.kind channels concatenates box i of all views: it needs data.aligned")
