"""The config of a run on pictures."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from seqarena.common.errors import WrongUseError
from seqarena.common.runs.run import BaseRun
from seqarena.lra.pictures.augmentation import Augmentation
from seqarena.lra.pictures.data import PictureData
from seqarena.lra.pictures.model import PictureModel


@dataclass(frozen=True, kw_only=True)
class PictureRun(BaseRun):
    """One training run on a task of pictures."""

    data: PictureData
    """The pictures."""
    model: PictureModel
    """The classifier."""
    augmentation: Augmentation = field(default_factory=Augmentation)
    """Random changes of training pictures."""

    def completed(self, typed: Collection[str]) -> "PictureRun":
        """Returns the run with the model's size and number of classes as in the data, unless they were typed."""
        names = [name for name in ("side", "classes") if f"model.{name}" not in typed]
        return replace(self, model=replace(self.model, **{name: getattr(self.data, name) for name in names}))

    @property
    def without_effect(self) -> Mapping[str, str]:
        """The settings of RandAugment, if it is not used."""
        if self.augmentation.policy == "rand":
            return {}
        other = f"augmentation.policy {self.augmentation.policy}"
        return {"augmentation.operations": other, "augmentation.magnitude": other}

    def check(self) -> None:
        """Raises a ``WrongUseError`` for an invalid run, before anything is loaded."""
        super().check()
        self.data.check()
        self.augmentation.check()
        self.model.check_picture()
        for name in ("side", "classes"):
            if getattr(self.model, name) != getattr(self.data, name):
                raise WrongUseError(
                    f"model.{name}: expected data.{name} {getattr(self.data, name)}, found {getattr(self.model, name)}"
                )
        if self.train.length_pool != 1:
            raise WrongUseError("train.length_pool applies only to sequences of different lengths; leave it out")
