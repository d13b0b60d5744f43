"""Generates headlines by beam search over a batch of texts.

Each step ranks all continuations of a text's hypotheses by the sum of their log probabilities. Of the best 2W, those
among the first W that end are finished, and the best W others continue. The names for length penalties and stopping
rules distinguish formulas that other libraries call the same.
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
"""Vocabulary entries per block; the k best entries are in the k blocks with the highest maxima."""


@dataclass(frozen=True, kw_only=True)
class Decoding:
    """Settings of the search for headlines; the same for every variant."""

    beam: int = 5
    """Hypotheses per text. 1: greedy."""
    normalization: Literal["gnmt", "power", "none"] = "gnmt"
    """Divisor of a sum of log probabilities over L tokens, end included: gnmt ((5 + L) / 6)^alpha; power L^alpha
    (length_penalty in fairseq and transformers); none 1."""
    alpha: float = 0.6
    """Exponent alpha of the divisor."""
    max_length: int = 32
    """Maximum tokens of a headline, end included."""
    min_length: int = 1
    """Minimum tokens before the end."""
    no_repeat: int = 0
    """Length of token sequences that may not occur twice in a headline. 0: no restriction."""
    stop: Literal["bound", "current", "full"] = "bound"
    """Stopping rule of a text: bound, no hypothesis can still enter the best, at any length; current, none could at
    its present length (transformers' default); full, W hypotheses are finished (fairseq, OpenNMT)."""
    n_best: int = 1
    """Headlines written per text, best first; the first is scored."""
    batch_size: int = 64
    """Texts per search batch."""

    def check(self) -> None:
        """Raises a ``WrongUseError`` for invalid settings."""
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
            raise WrongUseError(
                f"decoding.alpha and decoding.no_repeat: expected at least 0, found {self.alpha} and {self.no_repeat}"
            )

    def divisor(self, length: int) -> float:
        """Returns the divisor of the summed log probabilities of ``length`` tokens."""
        if self.normalization == "none":
            return 1.0
        base = (5 + length) / 6 if self.normalization == "gnmt" else length
        return float(base**self.alpha)


@dataclass(frozen=True, kw_only=True)
class Headline:
    """One finished hypothesis."""

    tokens: tuple[int, ...]
    """Token ids without start and end."""
    score: float
    """Sum of log probabilities, divided by the divisor of its length. NaN if a score of the model is."""


class BestHypotheses:
    """The best finished hypotheses of each text, B W."""

    def __init__(self, batch: int, beam: int, steps: int, device: torch.device) -> None:
        self.score = torch.full((batch, beam), -torch.inf, device=device)
        self.tokens = torch.zeros(batch, beam, steps, dtype=torch.long, device=device)
        self.length = torch.zeros(batch, beam, dtype=torch.long, device=device)

    def add(self, score: Tensor, tokens: Tensor) -> None:
        """Merges hypotheses of one length (B C T), keeping the best W; scores of -inf mark empty slots."""
        longer = torch.nn.functional.pad(tokens, (0, self.tokens.shape[2] - tokens.shape[2]))
        every = torch.cat([self.score, score], dim=1)
        self.score, kept = every.topk(self.score.shape[1], dim=1)
        together = torch.cat([self.tokens, longer], dim=1)
        self.tokens = together.gather(1, kept[..., None].expand(-1, -1, together.shape[2]))
        lengths = torch.cat([self.length, torch.full_like(score, tokens.shape[2], dtype=torch.long)], dim=1)
        self.length = lengths.gather(1, kept)

    def keep(self, sources: Tensor) -> None:
        """Keeps only the given texts."""
        self.score, self.tokens, self.length = self.score[sources], self.tokens[sources], self.length[sources]

    def headlines(self, count: int, end: int) -> list[list[Headline]]:
        """Returns the best headlines of each text. The host waits for a GPU three times, not for each text."""
        columns = (self.score[:, :count], self.tokens[:, :count], self.length[:, :count])
        return [
            [_headline(tokens[:length], score, end) for score, tokens, length in zip(*rows, strict=True)
             if score != -torch.inf]
            for rows in zip(*(each.tolist() for each in columns), strict=True)
        ]  # fmt: skip


def _headline(generated: list[int], score: float, end: int) -> Headline:
    return Headline(tokens=tuple(generated[:-1] if generated[-1] == end else generated), score=score)


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
    """Returns the best headlines of each text, best first. The model must be in evaluation mode.

    ``banned`` tokens are never generated; as in transformers, their probability is not redistributed. Hypotheses
    without an end at ``max_length`` are finished as they are.
    """
    how.check()
    memory = model.begin(source, real, steps=how.max_length, beams=how.beam)
    device = source.device
    finished = BestHypotheses(len(source), how.beam, how.max_length, device)
    indices = torch.arange(len(source), device=device)  # of the texts still searched
    done = torch.zeros(len(source), dtype=torch.bool, device=device)
    answers: list[list[Headline]] = [[] for _ in range(len(source))]
    sums = torch.zeros(len(source), 1, device=device)  # B W
    generated = torch.zeros(len(source), 1, 0, dtype=torch.long, device=device)  # B W T
    newest = torch.full((len(source), 1), start, dtype=torch.long, device=device)
    forbidden = torch.tensor(sorted(banned), dtype=torch.long, device=device)
    for length in range(1, how.max_length + 1):
        logits = model.step(newest, memory).float()
        every = logits.logsumexp(dim=-1, keepdim=True)
        logits[..., forbidden] = -torch.inf
        if length <= how.min_length:
            logits[..., end] = -torch.inf
        if how.no_repeat:
            _forbid_repeats(logits, generated, how.no_repeat)
        value, token = top(logits, min(2 * how.beam, logits.shape[-1]))
        candidates = (sums[..., None] + value - every).flatten(1)
        score, best = candidates.topk(min(2 * how.beam, candidates.shape[1]), dim=1)
        parent = best // token.shape[-1]
        newest = token.flatten(1).gather(1, best)
        generated = torch.cat(
            [generated.gather(1, parent[..., None].expand(-1, -1, length - 1)), newest[..., None]], dim=2
        )
        ends = (newest == end) | (length == how.max_length)
        first = torch.arange(score.shape[1], device=device) < how.beam
        over = (score / how.divisor(length)).masked_fill(~(ends & first) | done[:, None], -torch.inf)
        finished.add(over, generated)
        sums, going = score.masked_fill(ends, -torch.inf).topk(min(how.beam, score.shape[1]), dim=1)
        newest, parent = newest.gather(1, going), parent.gather(1, going)
        generated = generated.gather(1, going[..., None].expand(-1, -1, length))
        done = done | _is_done(finished, sums[:, 0], how, length)
        remaining = int((~done).sum())
        last = length == how.max_length or not remaining
        if last or remaining <= len(indices) * 7 // 8:
            for index, is_done, headlines in zip(
                indices.tolist(), done.tolist(), finished.headlines(how.n_best, end), strict=True
            ):
                if is_done or last:
                    answers[index] = headlines
            if last:
                break
            left = torch.nonzero(~done)[:, 0]
            memory.keep(left)
            finished.keep(left)
            indices, done, sums, generated, newest, parent = (
                each[left] for each in (indices, done, sums, generated, newest, parent)
            )
        memory.descend(parent)
    return answers


def _is_done(finished: BestHypotheses, best: Tensor, how: Decoding, length: int) -> Tensor:
    """Returns which texts are finished; ``best``: the highest sum among continuing hypotheses."""
    if how.stop == "full" or how.beam == 1:
        return finished.score[:, -1] > -torch.inf
    if how.stop == "current":
        return finished.score[:, -1] >= best / how.divisor(length)
    return finished.score[:, how.n_best - 1] >= best / how.divisor(how.max_length)


def top(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Returns the highest entries of the last axis and their indices, as ``topk``, several times as fast on a CPU."""
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


def _forbid_repeats(logits: Tensor, generated: Tensor, size: int) -> None:
    """Sets to -inf each token that would repeat a sequence of ``size`` tokens within a hypothesis (B W T)."""
    if generated.shape[2] < size:
        return
    windows = generated.unfold(2, size, 1)  # B W windows size
    before = generated[..., generated.shape[2] - size + 1 :] if size > 1 else generated[..., :0]
    same = (windows[..., :-1] == before[:, :, None]).all(dim=-1)  # B W windows
    times = torch.zeros_like(logits, dtype=torch.long).scatter_add_(2, windows[..., -1], same.long())
    logits.masked_fill_(times > 0, -torch.inf)
