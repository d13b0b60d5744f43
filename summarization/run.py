"""The fields of a run on headlines."""

from collections.abc import Collection
from dataclasses import dataclass, replace

from seqarena.common.attention import attention_name
from seqarena.common.attention.softmax import Softmax
from seqarena.common.errors import WrongUseError
from seqarena.common.model.bert.checkpoint import folder_of, read_config
from seqarena.common.model.bert.start import is_typed, replace_attention, tokenizer_unless_typed, with_checkpoint
from seqarena.common.runs.run import BaseRun, RowParts
from seqarena.summarization.data import Data
from seqarena.summarization.decoding import Decoding
from seqarena.summarization.model import Model


@dataclass(frozen=True, kw_only=True)
class Run(BaseRun):
    """One training on texts and their headlines."""

    data: Data
    """Which pairs."""
    model: Model
    """The encoder and the decoder."""
    decoding: Decoding
    """How headlines are searched for."""

    @property
    def longest(self) -> int:
        """The most tokens of a text there may be."""
        return self.data.source_length

    @property
    def row_parts(self) -> RowParts:
        """The decoder's attentions where they are not softmax, and with which one a checkpoint was trained."""
        places = (("decoder", self.model.decoder_attention), ("cross", self.model.cross_attention))
        named = tuple((place, attention_name(each)) for place, each in places if each != Softmax())
        return (*named, *self.model.pretrained_otherwise)

    @property
    def notes(self) -> list[str]:
        """Notes for every table with this result; the pretraining's seed, where it is not the run's."""
        return self.model.notes_of(self.seed)

    def completed(self, typed: Collection[str]) -> "Run":
        """Returns the run with what its checkpoint settles; see ``started`` and ``tokenizer_unless_typed``.

        Of a part that starts from nothing the attention is as it was chosen. hnas among the decoder's own tokens starts
        at u = 0 in the place of a checkpoint's softmax, and at the u that was chosen towards the text.
        """
        chosen = self.model
        source = chosen.encoder_init or chosen.decoder_init
        if source is None:
            return self
        model = with_checkpoint(chosen, source, typed)
        if chosen.encoder_init is None:
            model = replace(model, attention=chosen.attention)
        if chosen.decoder_init is not None:
            if model.depth != model.layers:
                raise WrongUseError(
                    f"model.decoder_layers {model.depth}: the checkpoint {source} has {model.layers} layers"
                )
            if is_typed("decoder_attention", typed):
                trained = read_config(folder_of(source)).attention
                own = replace_attention(trained, chosen.decoder_attention, "decoder_attention", typed)
                model = replace(model, decoder_attention=own)
        places = [name for name in ("encoder", "decoder") if getattr(chosen, f"{name}_init") is not None]
        model = replace(model, pretraining=f"{' and '.join(places)}: {model.pretraining}")
        data = replace(self.data, tokenizer=tokenizer_unless_typed(self.data.tokenizer, typed))
        return replace(self, model=model, data=data)

    def check(self) -> None:
        """Raises a ``WrongUseError`` for a run that could not work, before anything is loaded."""
        super().check()
        self.data.check()
        self.model.check()
        self.decoding.check()
        if self.task == "wire" and not self.data.is_generated:
            raise WrongUseError("wire is generated; --data.path and --data.hub belong to the task gigaword")
        for name in ("source_length", "target_length"):
            if getattr(self.data, name) > self.model.max_length:
                raise WrongUseError(
                    f"data.{name} {getattr(self.data, name)} is above model.max_length {self.model.max_length}"
                )
        if self.decoding.max_length > self.data.target_length:
            raise WrongUseError(
                f"decoding.max_length {self.decoding.max_length} is above data.target_length "
                f"{self.data.target_length}: no position beyond it is trained"
            )
        checkpoint = self.model.encoder_init or self.model.decoder_init
        if self.data.tokenizer is None and not self.data.is_generated and checkpoint is None:
            raise WrongUseError("without a checkpoint there is no vocabulary: --data.tokenizer names one")
