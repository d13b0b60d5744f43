"""The fields of a headline run."""

from collections.abc import Collection, Mapping
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
    """One training of a headline model."""

    data: Data
    """Pairs of texts and headlines."""
    model: Model
    """The encoder-decoder."""
    decoding: Decoding
    """Search for headlines."""

    @property
    def longest(self) -> int:
        """Maximum number of tokens in a text."""
        return self.data.source_length

    @property
    def row_parts(self) -> RowParts:
        """Names of the decoder's attentions that are not softmax, and the checkpoint's attention if it differs."""
        places = (("decoder", self.model.decoder_attention), ("cross", self.model.cross_attention))
        named = tuple((place, attention_name(each)) for place, each in places if each != Softmax())
        return (*named, *self.model.pretrained_otherwise)

    @property
    def notes(self) -> list[str]:
        """Notes printed with every table of this result: the pretraining's seed, if it is not the run's."""
        return self.model.notes_of(self.seed)

    def completed(self, typed: Collection[str]) -> "Run":
        """Returns the run with the fields that its checkpoint determines (``started``, ``tokenizer_unless_typed``).

        A part that starts from random weights keeps the chosen attention. hnas in the decoder's self-attention starts
        at u = 0 if it replaces a checkpoint's softmax; in cross-attention it starts at the chosen u.
        """
        chosen = self.model
        source = chosen.encoder_init or chosen.decoder_init
        if source is None:
            return self
        model = with_checkpoint(chosen, source, typed)
        if chosen.encoder_init is None:
            model = replace(model, attention=chosen.attention)
        if chosen.decoder_init is not None:
            if model.decoder_depth != model.layers:
                raise WrongUseError(
                    f"model.decoder_layers {model.decoder_depth}: the checkpoint {source} has {model.layers} layers"
                )
            if is_typed("decoder_attention", typed):
                trained = read_config(folder_of(source)).attention
                own = replace_attention(trained, chosen.decoder_attention, "decoder_attention", typed)
                model = replace(model, decoder_attention=own)
        places = [name for name in ("encoder", "decoder") if getattr(chosen, f"{name}_init") is not None]
        model = replace(model, pretraining=f"{' and '.join(places)}: {model.pretraining}")
        data = replace(self.data, tokenizer=tokenizer_unless_typed(self.data.tokenizer, typed))
        return replace(self, model=model, data=data)

    @property
    def without_effect(self) -> Mapping[str, str]:
        """The number of generated pairs, if others are read, and the exponent of a divisor that is always 1."""
        found = {} if self.data.is_generated else {"data.generated": "data.path" if self.data.path else "data.hub"}
        return found | (
            {"decoding.alpha": "decoding.normalization none"} if self.decoding.normalization == "none" else {}
        )

    def check(self) -> None:
        """Raises a ``WrongUseError`` for an invalid run, before anything is loaded."""
        super().check()
        self.data.check()
        self.model.check()
        self.decoding.check()
        if self.task == "wire" and not self.data.is_generated:
            raise WrongUseError("task wire is generated: omit --data.path and --data.hub, or use task gigaword")
        for name in ("source_length", "target_length"):
            if getattr(self.data, name) > self.model.max_length:
                raise WrongUseError(
                    f"data.{name} {getattr(self.data, name)} is above model.max_length {self.model.max_length}"
                )
        if self.decoding.max_length > self.data.target_length:
            raise WrongUseError(
                f"decoding.max_length {self.decoding.max_length} is above data.target_length "
                f"{self.data.target_length}: positions beyond that are not trained"
            )
        checkpoint = self.model.encoder_init or self.model.decoder_init
        if self.data.tokenizer is None and not self.data.is_generated and checkpoint is None:
            raise WrongUseError("no vocabulary: set --data.tokenizer, or start from a checkpoint")
