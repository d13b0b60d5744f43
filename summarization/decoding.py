"""Headlines from a model: beam search over many texts at once.

As everywhere: of each text's hypotheses, all continuations are ranked by the sum of their log probabilities; of the
best 2W those that end among the first W are finished and the best W others go on. What has a length penalty under one
name elsewhere is two formulas, and when to stop is three rules: each has its name here.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from seqarena.common.errors import WrongUseError
from seqarena.common.shapes import SourceMask, SourceTokens
from seqarena.summarization.model import Summarizer

BLOCK = 128
"""Tokens of the vocabulary that are looked at together: the best k lie in the k blocks with the highest maxima."""


@dataclass(frozen=True, kw_only=True)
class Decoding:
    """How headlines are searched for; the same for every variant."""

    beam: int = 5
    """Hypotheses kept of each text; 1: greedy."""
    normalization: Literal["gnmt", "power", "none"] = "gnmt"
    """What a sum of log probabilities is divided by, L tokens with the end: gnmt ((5 + L) / 6)^alpha, power L^alpha
    (fairseq's and transformers' length_penalty), none 1."""
    alpha: float = 0.6
    """The exponent of that."""
    max_length: int = 32
    """Tokens of a headline at most, its end counted."""
    min_length: int = 1
    """Tokens before the end at least."""
    no_repeat: int = 0
    """No sequence of so many tokens twice in a headline; 0: never mind."""
    stop: Literal["bound", "current", "full"] = "bound"
    """When a text is done: bound, nothing that goes on can still get among the best, however long it grows; current,
    nothing would at its present length (transformers' default); full, W are finished (fairseq, OpenNMT)."""
    n_best: int = 1
    """Headlines of each text that are written, best first; the first is scored."""
    batch_size: int = 64
    """Texts that are searched for together."""

    def check(self) -> None:
        """Raises a ``WrongUseError`` for settings no search can have."""
        for name in ("beam", "max_length", "n_best", "batch_size"):
            if getattr(self, name) < 1:
                raise WrongUseError(f"decoding.{name}: expected at least 1, found {getattr(self, name)}")
        if not 0 <= self.min_length < self.max_length:
            raise WrongUseError(
                f"decoding.min_length: expected 0 up to below decoding.max_length {self.max_length}, "
                f"found {self.min_length}"
            )
        if self.n_best > self.beam:
            raise WrongUseError(f"decoding.n_best {self.n_best} is above decoding.beam {self.beam}")
        if self.alpha < 0 or self.no_repeat < 0:
            raise WrongUseError("decoding.alpha and decoding.no_repeat: expected at least 0")

    def divisor(self, length: int) -> float:
        """Returns what the sum of the log probabilities of so many tokens is divided by."""
        if self.normalization == "none":
            return 1.0
        base = (5 + length) / 6 if self.normalization == "gnmt" else length
        return float(base**self.alpha)


@dataclass(frozen=True, kw_only=True)
class Headline:
    """One finished hypothesis."""

    tokens: tuple[int, ...]
    """Without beginning and end."""
    score: float
    """Sum of log probabilities over the divisor of its length."""


class BestHypotheses:
    """The best finished hypotheses of each text, B W."""

    def __init__(self, batch: int, beam: int, steps: int, device: torch.device) -> None:
        self.score = torch.full((batch, beam), -torch.inf, device=device)
        self.tokens = torch.zeros(batch, beam, steps, dtype=torch.long, device=device)
        self.length = torch.zeros(batch, beam, dtype=torch.long, device=device)

    def add(self, score: Tensor, tokens: Tensor) -> None:
        """Takes hypotheses of one length (B C T) that score above -inf, and keeps the best W."""
        longer = torch.nn.functional.pad(tokens, (0, self.tokens.shape[2] - tokens.shape[2]))
        every = torch.cat([self.score, score], dim=1)
        self.score, kept = every.topk(self.score.shape[1], dim=1)
        together = torch.cat([self.tokens, longer], dim=1)
        self.tokens = together.gather(1, kept[..., None].expand(-1, -1, together.shape[2]))
        lengths = torch.cat([self.length, torch.full_like(score, tokens.shape[2], dtype=torch.long)], dim=1)
        self.length = lengths.gather(1, kept)

    def keep(self, sources: Tensor) -> None:
        """Forgets all texts but these."""
        self.score, self.tokens, self.length = self.score[sources], self.tokens[sources], self.length[sources]

    def headlines(self, source: int, count: int, end: int) -> list[Headline]:
        """Returns the best of a text."""
        found = []
        for score, tokens, length in zip(
            self.score[source, :count].tolist(),
            self.tokens[source, :count].tolist(),
            self.length[source, :count].tolist(),
            strict=True,
        ):
            if score > -torch.inf:
                said = tokens[:length]
                found.append(Headline(tokens=tuple(said[:-1] if said[-1] == end else said), score=score))
        return found


@torch.no_grad()
def search(
    model: Summarizer,
    source: SourceTokens,
    real: SourceMask,
    how: Decoding,
    *,
    start: int,
    end: int,
    banned: Sequence[int] = (),
) -> list[list[Headline]]:
    """Returns for each text its best headlines, best first; model in evaluation.

    ``banned`` tokens are never said; their probability is given to no other, as in transformers. At ``max_length`` what
    has not ended is finished as it is.
    """
    how.check()
    memory = model.begin(source, real, steps=how.max_length, beams=how.beam)
    device = source.device
    finished = BestHypotheses(len(source), how.beam, how.max_length, device)
    places = torch.arange(len(source), device=device)  # of the texts that are not done
    done = torch.zeros(len(source), dtype=torch.bool, device=device)
    answers: list[list[Headline]] = [[] for _ in range(len(source))]
    sums = torch.zeros(len(source), 1, device=device)  # B W
    said = torch.zeros(len(source), 1, 0, dtype=torch.long, device=device)  # B W T
    newest = torch.full((len(source), 1), start, dtype=torch.long, device=device)
    forbidden = torch.tensor(sorted(banned), dtype=torch.long, device=device)
    for length in range(1, how.max_length + 1):
        logits = model.step(newest, memory).float()
        every = logits.logsumexp(dim=-1, keepdim=True)
        logits[..., forbidden] = -torch.inf
        if length <= how.min_length:
            logits[..., end] = -torch.inf
        if how.no_repeat:
            _forbid_repeats(logits, said, how.no_repeat)
        value, token = top(logits, min(2 * how.beam, logits.shape[-1]))
        candidates = (sums[..., None] + value - every).flatten(1)
        score, best = candidates.topk(min(2 * how.beam, candidates.shape[1]), dim=1)
        parent = best // token.shape[-1]
        newest = token.flatten(1).gather(1, best)
        said = torch.cat([said.gather(1, parent[..., None].expand(-1, -1, length - 1)), newest[..., None]], dim=2)
        ends = (newest == end) | (length == how.max_length)
        first = torch.arange(score.shape[1], device=device) < how.beam
        over = (score / how.divisor(length)).masked_fill(~(ends & first) | done[:, None], -torch.inf)
        finished.add(over, said)
        sums, going = score.masked_fill(ends, -torch.inf).topk(min(how.beam, score.shape[1]), dim=1)
        newest, parent = newest.gather(1, going), parent.gather(1, going)
        said = said.gather(1, going[..., None].expand(-1, -1, length))
        done = done | _is_done(finished, sums[:, 0], how, length)
        remaining = int((~done).sum())
        last = length == how.max_length or not remaining
        if last or remaining <= len(places) * 7 // 8:
            for place in torch.arange(len(places))[done.cpu() | last].tolist():
                answers[int(places[place])] = finished.headlines(place, how.n_best, end)
            if last:
                break
            left = torch.nonzero(~done)[:, 0]
            memory.keep(left)
            finished.keep(left)
            places, done, sums, said, newest, parent = (
                each[left] for each in (places, done, sums, said, newest, parent)
            )
        memory.descend(parent)
    return answers


def _is_done(finished: BestHypotheses, best: Tensor, how: Decoding, length: int) -> Tensor:
    """Returns which texts need no further step; ``best``: the highest sum that goes on."""
    if how.stop == "full" or how.beam == 1:
        return finished.score[:, -1] > -torch.inf
    if how.stop == "current":
        return finished.score[:, -1] >= best / how.divisor(length)
    return finished.score[:, how.n_best - 1] >= best / how.divisor(how.max_length)


def top(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Returns the highest of the last axis and where they stand, as ``topk``, several times as fast on a CPU."""
    size = logits.shape[-1]
    blocks = size // BLOCK
    if blocks < 4 * count:
        value, place = logits.topk(count, dim=-1)
        return value, place
    whole = logits[..., : blocks * BLOCK].view(*logits.shape[:-1], blocks, BLOCK)
    highest = whole.amax(dim=-1).topk(count, dim=-1).indices  # ... k
    inside = whole.gather(-2, highest[..., None].expand(*highest.shape, BLOCK)).flatten(-2)
    rest = logits[..., blocks * BLOCK :]
    value, place = torch.cat([inside, rest], dim=-1).topk(count, dim=-1)
    block = highest.gather(-1, (place // BLOCK).clamp(max=count - 1))
    in_rest = place >= count * BLOCK
    return value, torch.where(in_rest, place - count * BLOCK + blocks * BLOCK, block * BLOCK + place % BLOCK)


def _forbid_repeats(logits: Tensor, said: Tensor, size: int) -> None:
    """Sets to -inf what would complete a sequence of ``size`` tokens that a hypothesis (B W T) has already."""
    if said.shape[2] < size:
        return
    windows = said.unfold(2, size, 1)  # B W windows size
    before = said[..., said.shape[2] - size + 1 :] if size > 1 else said[..., :0]
    same = (windows[..., :-1] == before[:, :, None]).all(dim=-1)  # B W windows
    times = torch.zeros_like(logits, dtype=torch.long).scatter_add_(2, windows[..., -1], same.long())
    logits.masked_fill_(times > 0, -torch.inf)
