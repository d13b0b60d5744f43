"""The fields of a pretraining run."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from seqarena.common.errors import WrongUseError
from seqarena.common.model.bert.start import tokenizer_unless_typed, with_checkpoint
from seqarena.common.runs.run import BaseRun, RowParts
from seqarena.pretraining import model
from seqarena.pretraining.data import MaskedText


@dataclass(frozen=True, kw_only=True)
class Run(BaseRun):
    """One pretraining of a masked-language model."""

    data: MaskedText
    """Text and masking."""
    model: model.Model
    """The BERT model."""

    @property
    def row_parts(self) -> RowParts:
        """Attention of the checkpoint that the run starts from, if it differs from the run's."""
        return self.model.pretrained_otherwise

    @property
    def notes(self) -> list[str]:
        """Notes for every table with this result, such as the checkpoint's seed if it differs from the run's."""
        return self.model.notes_of(self.seed)

    def completed(self, typed: Collection[str]) -> "Run":
        """Returns the run with the checkpoint's settings; see ``with_checkpoint`` and ``tokenizer_unless_typed``.

        Raises:
            WrongUseError: a typed setting of a vocabulary to be trained.
        """
        if self.model.init is None:
            return self
        wrong = [path for path in ("data.kind", "data.vocabulary") if path in typed]
        if wrong:
            raise WrongUseError(
                f"{wrong[0]} applies to a vocabulary that is trained on the text; this run has that of its checkpoint "
                f"{self.model.init}; omit it"
            )
        data = replace(self.data, tokenizer=tokenizer_unless_typed(self.data.tokenizer, typed))
        return replace(self, model=with_checkpoint(self.model, self.model.init, typed), data=data)

    @property
    def without_effect(self) -> Mapping[str, str]:
        """The settings of a trained vocabulary, of pairs, of a second length and of spans, where there are none."""
        data, law = self.data, f"data.masking.law {self.data.masking.law}"
        found = {} if data.tokenizer is None else {"data.kind": "data.tokenizer", "data.vocabulary": "data.tokenizer"}
        if data.last_length is None:
            found["data.last_share"] = "data.last_length none"
        if data.building not in ("order", "next"):
            found["data.short"] = f"data.building {data.building}"
        if data.masking.law == "single":
            found["data.masking.longest"] = law
        if data.masking.law != "geometric":
            found["data.masking.geometric"] = law
        return found

    def check(self) -> None:
        """Raises a ``WrongUseError`` for an invalid run, before anything is loaded."""
        super().check()
        self.data.check()
        model.check(self.model, self.data)
