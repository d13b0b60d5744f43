"""The fields of a language model's run."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from seqarena.common.errors import WrongUseError
from seqarena.common.runs.run import BaseRun
from seqarena.pretraining.transformer_xl import Model
from seqarena.pretraining.wikitext.data import WikiText


@dataclass(frozen=True, kw_only=True)
class Segments:
    """Segmentation of a stream: segment length, memory, distances."""

    length: int
    """Tokens per segment."""
    memory: int
    """Number of earlier tokens that attention reads as memory."""
    clamp: int | None = None
    """Maximum distance; larger ones are replaced by it. None: no maximum."""
    same_length: bool = False
    """Whether each token attends to exactly ``memory`` tokens, itself included, as in the published PyTorch code."""

    @property
    def window(self) -> int | None:
        """Number of most recent tokens each token attends to; None: all available."""
        return self.memory if self.same_length else None

    @property
    def summary(self) -> str:
        """The settings in a few words."""
        clamp = "" if self.clamp is None else f", distances up to {self.clamp}"
        window = ", same length" if self.same_length else ""
        return f"segments of {self.length}, memory {self.memory}{clamp}{window}"

    def check(self, name: str) -> None:
        """Raises a ``WrongUseError`` for invalid settings; ``name``: field of the run, for the message."""
        if self.length < 1 or self.memory < 0:
            raise WrongUseError(f"{name}: expected length >= 1 and memory >= 0, found {self.length} and {self.memory}")
        if self.clamp is not None and self.clamp < 1:
            raise WrongUseError(f"{name}.clamp: expected at least 1, or none, found {self.clamp}")
        if self.same_length and self.memory < 1:
            raise WrongUseError(f"{name}.same_length: needs {name}.memory of at least 1, found {self.memory}")


@dataclass(frozen=True, kw_only=True)
class Scoring(Segments):
    """Settings for scoring a text."""

    streams: int = 10
    """Number of parallel streams. As published, the remainder and the first token of each stream are not scored. With
    1, every token is scored, the first one after an end of line."""

    @property
    def summary(self) -> str:
        """The settings in a few words."""
        return f"{super().summary}, {self.streams} stream{'s' * (self.streams > 1)}"

    def check(self, name: str) -> None:
        """Raises a ``WrongUseError`` for invalid settings."""
        super().check(name)
        if self.streams < 1:
            raise WrongUseError(f"{name}.streams: expected at least 1, found {self.streams}")


@dataclass(frozen=True, kw_only=True)
class LanguageRun(BaseRun):
    """One training of a language model with a memory."""

    data: WikiText
    """Text and its kind of tokens."""
    model: Model
    """The Transformer-XL model."""
    segments: Segments
    """Segmentation of the training text."""
    validation: Scoring
    """Scoring protocol of validation; also applied to the test set at the end."""
    final: Scoring
    """Scoring protocol of the main test score."""

    @property
    def longest(self) -> int:
        """Tokens per training segment."""
        return self.segments.length

    @property
    def measured(self) -> str:
        """The scoring protocols in a few words."""
        return f"scored in {self.final.summary}; as validated in {self.validation.summary}"

    @property
    def without_effect(self) -> Mapping[str, str]:
        """The settings of other kinds of vocabularies."""
        kind = f"data.kind {self.data.kind}"
        names = {"word": ("data.pieces",), "piece": ("data.unknown",), "byte": ("data.pieces", "data.unknown")}
        return dict.fromkeys(names[self.data.kind], kind)

    def completed(self, typed: Collection[str]) -> "LanguageRun":
        """Returns the run with a causal form of de-escalation, unless a form was set."""
        if "model.norm.mean" in typed:
            return self
        return replace(self, model=replace(self.model, norm=self.model.norm.causal()))

    def check(self) -> None:
        """Raises a ``WrongUseError`` for an invalid run, before anything is loaded."""
        super().check()
        self.data.check()
        self.model.check()
        for name in ("segments", "validation", "final"):
            getattr(self, name).check(name)
        if self.train.length_pool != 1:
            raise WrongUseError(
                f"train.length_pool {self.train.length_pool}: expected 1; segments have one length and a fixed order"
            )
