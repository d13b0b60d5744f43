"""BERT's encoder, and a decoder of BERT's layers with attention to it between the two that they have."""

from dataclasses import dataclass, field

import torch
from torch import nn
from torch.nn import functional as F

from seqarena.common.attention import require_order
from seqarena.common.attention.base import AttentionConfig
from seqarena.common.attention.softmax import Softmax
from seqarena.common.attention.visibility import Visibility
from seqarena.common.errors import WrongUseError
from seqarena.common.model.beams import Memory
from seqarena.common.model.bert.model import Bert, Embeddings, MaskedLanguageHead, initialise
from seqarena.common.model.bert.start import StartedConfig
from seqarena.common.model.cross_entropy import chunked_cross_entropy
from seqarena.common.model.transformer import Decoder
from seqarena.common.runs.roles import Role, role
from seqarena.common.shapes import (
    BeamLogits,
    BeamTokens,
    Context,
    Hidden,
    KeyMask,
    Mask,
    SourceMask,
    SourceTokens,
    Tokens,
    Total,
)


@dataclass(frozen=True, kw_only=True)
class Model(StartedConfig):
    """An encoder, a decoder, and one table of tokens for both and for what is said (224 million numbers at BERT-base).

    ``attention`` is the encoder's. What a decoder attends with has an order in time: doubly-normalised variants take
    their prefix form there, and at a target's first step weigh all of a text alike, whatever it says.
    """

    encoder_init: str | None = field(default=None, metadata=role(Role.WEIGHTS))
    """A BERT checkpoint for the encoder: folder, id of the hub, or directory of a pretraining run; its sizes count.
    None: from nothing."""
    decoder_init: str | None = field(default=None, metadata=role(Role.WEIGHTS))
    """The same for the decoder, all but its attention to the encoder; both start from one checkpoint or from none."""
    decoder_layers: int | None = None
    """Layers of the decoder; none: as many as the encoder's."""
    decoder_attention: AttentionConfig = field(default_factory=Softmax, metadata=role(Role.ROW))
    """The decoder's attention to the tokens so far; by name."""
    cross_attention: AttentionConfig = field(default_factory=Softmax, metadata=role(Role.ROW))
    """The decoder's attention to the text; by name."""
    label_smoothing: float = 0.1
    """Share of each token's probability that training spreads over the vocabulary."""

    @property
    def started_attention(self) -> AttentionConfig:
        """The encoder's, or the decoder's where that alone starts from the checkpoint."""
        return self.attention if self.decoder_init is None or self.encoder_init is not None else self.decoder_attention

    @property
    def depth(self) -> int:
        """Layers of the decoder."""
        return self.layers if self.decoder_layers is None else self.decoder_layers

    def check(self, *, order: str = "none", mean_pooled: bool = False) -> None:
        """Raises a ``WrongUseError`` that names the field which no model can have."""
        super().check(order="none", mean_pooled=mean_pooled)
        if self.depth < 1:
            raise WrongUseError(f"model.decoder_layers: expected at least 1, found {self.depth}")
        if not 0 <= self.label_smoothing < 1:
            raise WrongUseError(f"model.label_smoothing: expected 0 up to below 1, found {self.label_smoothing}")
        require_order(self.decoder_attention, "causal")
        require_order(self.cross_attention, "ordered_queries")
        started = self.encoder_init or self.decoder_init
        if started is None and self.names_pretraining:
            raise WrongUseError(
                "model.pretraining, .pretraining_seed and .pretrained_with are taken from the checkpoint"
            )
        if self.encoder_init and self.decoder_init and self.encoder_init != self.decoder_init:
            raise WrongUseError(
                f"model.encoder_init {self.encoder_init} and model.decoder_init {self.decoder_init}: expected one "
                "checkpoint for both, or none for one, for they share a table of tokens"
            )


class Summarizer(nn.Module):
    """Texts to headlines."""

    def __init__(self, config: Model) -> None:
        super().__init__()
        self.config = config
        self.bert = Bert(config, pooler=False)
        self.target = Embeddings(config, words=False)
        self.decoder = Decoder(
            config, layers=config.depth, attention=config.decoder_attention, cross=config.cross_attention
        )
        self.masked = MaskedLanguageHead(config)
        for part in (self.target, self.decoder, self.masked):
            initialise(part, config.initial_std)

    def forward(
        self,
        source: SourceTokens,
        source_real: SourceMask,
        target: Tokens,
        target_real: Mask,
        labels: Tokens,
        smoothing: float,
    ) -> Total:
        """Returns the mean, over all tokens to be said, of their smoothed cross-entropy."""
        hidden = self.decoded(target, target_real, self.encoded(source, source_real), source_real)
        said = self.masked.transform(hidden[target_real])  # P C
        total = chunked_cross_entropy(
            said, self.bert.embeddings.table, self.masked.bias, labels[target_real], smoothing
        )
        return total / target_real.sum()

    def encoded(self, source: SourceTokens, real: SourceMask) -> Context:
        """Returns the stream of texts."""
        hidden: Context = self.bert(source, torch.zeros_like(source), Visibility(query_real=real, key_real=real))
        return hidden

    def decoded(self, target: Tokens, real: Mask, context: Context, context_real: KeyMask) -> Hidden:
        """Returns the stream of headlines so far; what follows each token is read from it."""
        hidden = self.target(target, torch.zeros_like(target), None, self.bert.embeddings.table)
        visibility = Visibility(query_real=real, key_real=real, order="causal")
        stream: Hidden = self.decoder(hidden, visibility, context, context_real)
        return stream

    def begin(self, source: SourceTokens, real: SourceMask, *, steps: int, beams: int) -> Memory:
        """Returns the memory of headlines without a token yet, at most ``steps`` long, ``beams`` to a text."""
        return self.decoder.begin(self.encoded(source, real), real, steps=steps, beams=beams)

    def step(self, tokens: BeamTokens, memory: Memory) -> BeamLogits:
        """Returns the scores of what follows the newest token of every hypothesis."""
        places = torch.full_like(tokens, memory.time)
        table = self.bert.embeddings.table
        hidden = self.target(tokens, torch.zeros_like(tokens), places, table)
        said = self.masked.transform(self.decoder.step(hidden, memory))
        return F.linear(said, table, self.masked.bias)
