"""The fields of a language model's run."""

from collections.abc import Collection
from dataclasses import dataclass, replace

from seqarena.common.errors import WrongUseError
from seqarena.common.model.blocks import Deescalated
from seqarena.common.runs.run import BaseRun
from seqarena.pretraining.transformer_xl import Model
from seqarena.pretraining.wikitext.data import WikiText


@dataclass(frozen=True, kw_only=True)
class Segments:
    """How a stream is read, segment after segment."""

    length: int
    """Tokens of a segment."""
    memory: int
    """Earlier tokens that attention sees beside a segment."""
    clamp: int | None = None
    """The largest distance that is told apart; none: all are."""
    same_length: bool = False
    """Whether every token sees equally many: ``memory`` of them, its own counted, as in the published PyTorch code."""

    @property
    def window(self) -> int | None:
        """So many of the newest tokens are seen from each; None: all that there are."""
        return self.memory if self.same_length else None

    @property
    def told(self) -> str:
        """The settings in a few words."""
        clamp = "" if self.clamp is None else f", distances up to {self.clamp}"
        window = ", same length" if self.same_length else ""
        return f"segments of {self.length}, memory {self.memory}{clamp}{window}"

    def check(self, name: str) -> None:
        """Raises a ``WrongUseError`` for what cannot be; ``name``: of the run's field."""
        if self.length < 1 or self.memory < 0:
            raise WrongUseError(f"{name}: expected a length of at least 1 and a memory of at least 0")
        if self.clamp is not None and self.clamp < 1:
            raise WrongUseError(f"{name}.clamp: expected at least 1, or none, found {self.clamp}")
        if self.same_length and self.memory < 1:
            raise WrongUseError(f"{name}.same_length: without a memory there is no length that all could see")


@dataclass(frozen=True, kw_only=True)
class Scoring(Segments):
    """How a text is scored."""

    streams: int = 10
    """Streams side by side; what does not fill them and the first token of each are not scored, as published. 1: every
    token is, the first one behind an end of line."""

    @property
    def told(self) -> str:
        """The settings in a few words."""
        return f"{super().told}, {self.streams} stream{'s' * (self.streams > 1)}"

    def check(self, name: str) -> None:
        """Raises a ``WrongUseError`` for what cannot be."""
        super().check(name)
        if self.streams < 1:
            raise WrongUseError(f"{name}.streams: expected at least 1, found {self.streams}")


@dataclass(frozen=True, kw_only=True)
class LanguageRun(BaseRun):
    """One training of a language model with a memory."""

    data: WikiText
    """Which text."""
    model: Model
    """The Transformer-XL."""
    segments: Segments
    """How the text is read in training."""
    validation: Scoring
    """How it is scored while training goes on, and once more at the end."""
    final: Scoring
    """How the test set is scored at the end: the main score."""

    @property
    def longest(self) -> int:
        """Tokens of a segment of training."""
        return self.segments.length

    @property
    def measured(self) -> str:
        """How the scores came about."""
        return f"scored in {self.final.told}; as validated in {self.validation.told}"

    def completed(self, typed: Collection[str]) -> "LanguageRun":
        """Returns the run with de-escalation in a causal form, where none was named."""
        norm = self.model.norm
        if not isinstance(norm, Deescalated) or norm.leaky or "model.norm.mean" in typed:
            return self
        return replace(self, model=replace(self.model, norm=norm.causal()))

    def check(self) -> None:
        """Raises a ``WrongUseError`` for a run that could not work, before anything is loaded."""
        super().check()
        self.data.check()
        self.model.check()
        for name in ("segments", "validation", "final"):
            getattr(self, name).check(name)
        if self.train.length_pool != 1:
            raise WrongUseError("train.length_pool: segments follow one another and are all of one length; leave it 1")
