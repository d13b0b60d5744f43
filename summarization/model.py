"""Encoder-decoder for headlines: BERT's encoder, and a decoder of BERT layers with cross-attention."""

from dataclasses import dataclass, field

import torch
from torch import nn
from torch.nn import functional as F

from seqarena.common.attention import attention_name, is_function_of_scores, require_steps
from seqarena.common.attention.base import AttentionConfig
from seqarena.common.attention.softmax import Softmax
from seqarena.common.attention.visibility import Order, Visibility
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
    TokenIds,
    Tokens,
    Total,
)


@dataclass(frozen=True, kw_only=True)
class Model(StartedConfig):
    """Config of an encoder-decoder with one token table for input and output (224 million parameters at BERT-base).

    ``attention`` is the encoder's. The decoder's attentions are ordered in time: doubly-normalised variants use their
    prefix form there, and at the first target step weight all tokens of the text equally.
    """

    encoder_init: str | None = field(default=None, metadata=role(Role.WEIGHTS))
    """BERT checkpoint for the encoder: folder, id of the hub, or directory of a pretraining run; it sets the sizes.
    None: random initialisation."""
    decoder_init: str | None = field(default=None, metadata=role(Role.WEIGHTS))
    """The same for the decoder, except cross-attention. Both parts must use one checkpoint, or one of them none."""
    decoder_layers: int | None = None
    """Layers of the decoder; none: as many as the encoder."""
    decoder_attention: AttentionConfig = field(default_factory=Softmax, metadata=role(Role.ROW))
    """The decoder's self-attention, by name."""
    cross_attention: AttentionConfig = field(default_factory=Softmax, metadata=role(Role.ROW))
    """The decoder's attention to the text, by name."""
    label_smoothing: float = 0.1
    """Fraction of each target's probability that training spreads uniformly over the vocabulary."""

    @property
    def started_attention(self) -> AttentionConfig:
        """Attention that starts from the checkpoint: the encoder's, or the decoder's if only the decoder does."""
        return self.attention if self.decoder_init is None or self.encoder_init is not None else self.decoder_attention

    @property
    def decoder_depth(self) -> int:
        """Number of layers of the decoder."""
        return self.layers if self.decoder_layers is None else self.decoder_layers

    def check(self, *, order: str = "none", mean_pooled: bool = False) -> None:
        """Raises a ``WrongUseError`` that names the invalid field."""
        super().check(order="none", mean_pooled=mean_pooled)
        if self.shared_layers:
            raise WrongUseError(
                "model.shared_layers: the decoder of headlines needs a layer of its own at each depth; expected "
                "model.encoder_init or model.decoder_init of another family than ALBERT"
            )
        if self.decoder_depth < 1:
            raise WrongUseError(f"model.decoder_layers: expected at least 1, found {self.decoder_depth}")
        if not 0 <= self.label_smoothing < 1:
            raise WrongUseError(f"model.label_smoothing: expected 0 up to below 1, found {self.label_smoothing}")
        decoder: tuple[tuple[AttentionConfig, Order], ...] = (
            (self.decoder_attention, "causal"), (self.cross_attention, "ordered_queries"),
        )  # fmt: skip
        for attention, time in decoder:
            self.check_attention(attention, time)
            require_steps(attention, time, "decoding")
            if not is_function_of_scores(attention.build(heads=1)):
                raise WrongUseError(
                    f"attention {attention_name(attention)!r} cannot decode: its weights are not a formula of the "
                    "scores alone"
                )
        started = self.encoder_init or self.decoder_init
        if started is None and self.names_pretraining:
            raise WrongUseError(
                "model.pretraining, .pretraining_seed and .pretrained_with are set by the checkpoint; omit them"
            )
        if self.encoder_init and self.decoder_init and self.encoder_init != self.decoder_init:
            raise WrongUseError(
                f"model.encoder_init {self.encoder_init} and model.decoder_init {self.decoder_init}: expected one "
                "checkpoint for both, or none for one of them, because they share the token table"
            )


class Summarizer(nn.Module):
    """Encoder-decoder that generates headlines from texts."""

    def __init__(self, config: Model) -> None:
        super().__init__()
        self.config = config
        self.bert = Bert(config, pooler=False)
        self.target = Embeddings(config, words=False)
        self.decoder = Decoder(
            config, layers=config.decoder_depth, attention=config.decoder_attention, cross=config.cross_attention
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
        picked: TokenIds,
        smoothing: float,
    ) -> Total:
        """Returns the mean smoothed cross-entropy over all target tokens, ``picked`` of the B T positions."""
        hidden = self.decode(target, target_real, self.encode(source, source_real), source_real)
        said = self.masked.transform(hidden.flatten(0, 1)[picked])  # P C
        total = chunked_cross_entropy(
            said, self.bert.embeddings.table, self.masked.bias, labels.flatten()[picked], smoothing
        )
        return total / len(picked)

    def encode(self, source: SourceTokens, real: SourceMask) -> Context:
        """Returns the encoder's hidden states of texts."""
        hidden: Context = self.bert(source, torch.zeros_like(source), Visibility(query_real=real, key_real=real))
        return hidden

    def decode(self, target: Tokens, real: Mask, context: Context, context_real: KeyMask) -> Hidden:
        """Returns the decoder's hidden states of headline prefixes, which predict the next tokens."""
        hidden = self.target(target, torch.zeros_like(target), None, self.bert.embeddings.table)
        visibility = Visibility(query_real=real, key_real=real, order="causal", padded_at_end=True)
        stream: Hidden = self.decoder(hidden, visibility, context, context_real)
        return stream

    def begin(self, source: SourceTokens, real: SourceMask, *, steps: int, beams: int) -> Memory:
        """Returns the initial decoding state, of ``beams`` hypotheses per text and up to ``steps`` tokens."""
        return self.decoder.begin(self.encode(source, real), real, steps=steps, beams=beams)

    def step(self, tokens: BeamTokens, memory: Memory) -> BeamLogits:
        """Returns the logits of the next token of every hypothesis."""
        places = torch.full_like(tokens, memory.time)
        table = self.bert.embeddings.table
        hidden = self.target(tokens, torch.zeros_like(tokens), places, table)
        said = self.masked.transform(self.decoder.step(hidden, memory))
        return F.linear(said, table, self.masked.bias)
