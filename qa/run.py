"""What a finetuning is made of."""

from collections.abc import Collection
from dataclasses import dataclass, fields, replace

from common.attention import attention_name
from common.attention.hybrid import Hybrid
from common.attention.softmax import Softmax
from common.bert.checkpoint import folder_of, pretraining_of, read_config
from common.bert.model import BertConfig
from common.errors import WrongUseError
from common.run import BaseRun
from qa.data import Data
from qa.data.squad import Squad
from qa.model import Model

OWN = ("attention", "norm", "dropout", "attention_dropout", "initial_std")
"""Fields of a BERT that a checkpoint does not settle."""
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
    def row_parts(self) -> tuple[str, ...]:
        """With which attention the checkpoint was trained, if it was another one."""
        trained, own = self.model.pretrained_with, attention_name(self.model.attention)
        return (f"pretrained with {trained}",) if trained and trained.split("[")[0] != own.split("[")[0] else ()

    def completed(self, typed: Collection[str]) -> "Run":
        """Returns the run with the checkpoint's sizes, and its attention and norm unless they were typed.

        hnas in the place of softmax starts at u = 0, unless a u was typed: the function that was learned is kept.

        Raises:
            BadDataError: a checkpoint that cannot be read.
            WrongUseError: a size was typed that is not the checkpoint's.
        """
        if self.model.init is None:
            return self
        folder = folder_of(self.model.init)
        config = read_config(folder)
        sizes = {each.name: getattr(config, each.name) for each in fields(BertConfig) if each.name not in OWN}
        for name, value in sizes.items():
            mine = getattr(self.model, name)
            if f"model.{name}" in typed and mine != value:
                raise WrongUseError(f"model.{name} {mine}: the checkpoint {self.model.init} has {value}")
        for name in ("pretraining", "pretrained_with"):
            if f"model.{name}" in typed:
                raise WrongUseError(f"model.{name} is taken from the checkpoint {self.model.init}")
        if isinstance(config.attention, Hybrid) and "model.attention.u" in typed:
            raise WrongUseError(f"model.attention.u: the checkpoint {self.model.init} has trained values of u")
        attention = self.model.attention if _is_typed("attention", typed) else config.attention
        norm = self.model.norm if _is_typed("norm", typed) else config.norm
        softmax = isinstance(config.attention, Softmax)
        if softmax and isinstance(attention, Hybrid) and "model.attention.u" not in typed:
            attention = replace(attention, u=0.0)
        model = replace(
            self.model, **sizes, attention=attention, norm=norm, pretraining=pretraining_of(folder),
            pretrained_with=attention_name(config.attention),
        )  # fmt: skip
        return replace(self, model=model)

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


def _is_typed(name: str, typed: Collection[str]) -> bool:
    return any(path == f"model.{name}" or path.startswith(f"model.{name}.") for path in typed)
