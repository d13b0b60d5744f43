"""BERT with a head that points at the first and last token of an answer, or one that names the relation of a pair."""

from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from seqarena.common.attention.visibility import Visibility
from seqarena.common.errors import WrongUseError
from seqarena.common.model.bert.model import Bert, initialise
from seqarena.common.model.bert.start import StartedConfig
from seqarena.common.runs.roles import Role, role
from seqarena.common.shapes import Hidden, Logits, Mask, PerExample, Tokens
from seqarena.qa.decoding import Spans, best_spans

Head = Literal["span", "conditioned"]
STARTS = 5
"""Beginnings, and ends to each, that the conditioned head looks at."""


@dataclass(frozen=True, kw_only=True)
class Model(StartedConfig):
    """A BERT, from a checkpoint or from nothing, and its head."""

    init: str | None = field(default=None, metadata=role(Role.WEIGHTS))
    """A checkpoint: folder, id of the hub, or directory of a pretraining run; its sizes count. None: from nothing."""
    head: Head = "span"
    """Of SQuAD: span, two scores a token (BERT); conditioned, ends given the beginning, and a score of its own for no
    answer (XLNet, ALBERT)."""

    def check(self, *, order: Literal["none"] = "none", mean_pooled: bool = False) -> None:  # type: ignore[override]
        """Raises a ``WrongUseError`` that names the field which no model can have."""
        super().check(order=order, mean_pooled=mean_pooled)
        if self.init is None and self.names_pretraining:
            raise WrongUseError(
                "model.pretraining, .pretraining_seed and .pretrained_with are taken from the checkpoint model.init"
            )


class SpanHead(nn.Module):
    """BERT's own: a beginning's score and an end's at each token."""

    def __init__(self, config: Model) -> None:
        super().__init__()
        self.both = nn.Linear(config.dim, 2)

    def forward(self, hidden: Hidden, real: Mask) -> tuple[Tensor, Tensor]:
        """Returns the scores of beginnings and ends (both B T); -inf at padding, which Google's code scores too."""
        start, end = self.both(hidden).float().masked_fill(~real[..., None], -torch.inf).unbind(dim=-1)
        return start, end


class ConditionedHead(nn.Module):
    """ALBERT's for SQuAD 2.0, after XLNet's: ends given a beginning, and whether there is an answer at all.

    start_t = w . h_t; end_t = v . LayerNorm(tanh(W [h_t; h_s])) for a beginning s; no answer = a . tanh(U [h'; h_0]),
    h' the mean of h under softmax(start). Softmax over the window and [CLS] alone.
    """

    def __init__(self, config: Model, *, answerable: bool) -> None:
        super().__init__()
        self.start = nn.Linear(config.dim, 1)
        self.join = nn.Linear(2 * config.dim, config.dim)
        self.norm = nn.LayerNorm(config.dim, eps=config.norm_eps)
        self.end = nn.Linear(config.dim, 1)
        layers = nn.Linear(2 * config.dim, config.dim), nn.Tanh(), nn.Dropout(config.dropout)
        self.answer = nn.Sequential(*layers, nn.Linear(config.dim, 1, bias=False)) if answerable else None

    def starts(self, hidden: Hidden, allowed: Mask) -> Tensor:
        """Returns the scores of beginnings; B T."""
        scores: Tensor = self.start(hidden).squeeze(-1).float().masked_fill(~allowed, -torch.inf)
        return scores

    def ends(self, hidden: Hidden, allowed: Mask, start: Tensor) -> Tensor:
        """Returns the scores of ends for each of some beginnings (B k); B k T."""
        # W [h_t; h_s] is one half of W times h_t and the other times h_s: no pair is ever laid out
        begun = hidden.gather(1, start[..., None].expand(-1, -1, hidden.shape[-1]))  # B k C
        of_end, of_start = self.join.weight.chunk(2, dim=1)
        pairs = F.linear(hidden, of_end)[:, None] + F.linear(begun, of_start, self.join.bias)[:, :, None]  # B k T C
        scores: Tensor = self.end(self.norm(torch.tanh(pairs))).squeeze(-1).float()
        return scores.masked_fill(~allowed[:, None], -torch.inf)

    def unanswerable(self, hidden: Hidden, starts: Tensor) -> PerExample | None:
        """Returns the log odds that there is no answer; None where there always is one."""
        if self.answer is None:
            return None
        mean = torch.einsum("bt,btc->bc", starts.softmax(dim=-1).to(hidden.dtype), hidden)
        odds: Tensor = self.answer(torch.cat([mean, hidden[:, 0]], dim=-1)).squeeze(-1).float()
        return odds


class Reader(nn.Module):
    """Windows to scores of answers."""

    def __init__(self, config: Model, *, answerable: bool = True) -> None:
        """``answerable``: whether the conditioned head also says if there is an answer (2.0)."""
        super().__init__()
        self.bert = Bert(config, pooler=False)
        self.spans = SpanHead(config) if config.head == "span" else ConditionedHead(config, answerable=answerable)
        initialise(self.spans, config.initial_std)

    def forward(
        self, tokens: Tokens, types: Tokens, real: Mask, context: Mask, start: PerExample
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Returns what training looks at: scores of beginnings and of ends, and the log odds of no answer.

        The conditioned head's ends are those given the true ``start``; it alone gives the odds.
        """
        hidden = self._hidden(tokens, types, real)
        if isinstance(self.spans, SpanHead):
            return *self.spans(hidden, real), None
        allowed = _allowed(context)
        starts = self.spans.starts(hidden, allowed)
        ends = self.spans.ends(hidden, allowed, start[:, None])[:, 0]
        return starts, ends, self.spans.unanswerable(hidden, starts)

    @property
    def gives_odds(self) -> bool:
        """Whether what it says of no answer is log odds, not a score to compare with an answer's."""
        return isinstance(self.spans, ConditionedHead)

    def _hidden(self, tokens: Tokens, types: Tokens, real: Mask) -> Hidden:
        hidden: Tensor = self.bert(tokens, types, Visibility(query_real=real, key_real=real))
        return hidden

    def best(
        self, tokens: Tokens, types: Tokens, real: Mask, context: Mask, opens: Mask, *, n_best: int, longest: int
    ) -> Spans:
        """Returns the best spans of each window; of the conditioned head those of its 5 best beginnings and ends."""
        hidden = self._hidden(tokens, types, real)
        if isinstance(self.spans, SpanHead):
            start, end = self.spans(hidden, real)
            return best_spans(start, end, opens, context, n_best=n_best, longest=longest)
        allowed = _allowed(context)
        starts = self.spans.starts(hidden, allowed)
        some = min(STARTS, starts.shape[1])
        first, at = starts.log_softmax(dim=-1).topk(some, dim=1)
        last, to = self.spans.ends(hidden, allowed, at).log_softmax(dim=-1).topk(some, dim=2)  # B k k
        far = to - at[:, :, None]
        ends = context.gather(1, to.flatten(1)).view_as(to)
        fits = (far >= 0) & (far < longest) & opens.gather(1, at)[:, :, None] & ends
        odds = self.spans.unanswerable(hidden, starts)
        score, order = (first[:, :, None] + last).masked_fill(~fits, -torch.inf).flatten(1).sort(dim=1, descending=True)
        return Spans(
            score=score,
            start=at.gather(1, order // some),
            end=to.flatten(1).gather(1, order),
            null=starts[:, 0] if odds is None else odds,
        )


def _allowed(context: Mask) -> Mask:
    """Returns the window's tokens and [CLS]."""
    allowed = context.clone()
    allowed[:, 0] = True
    return allowed


class PairClassifier(nn.Module):
    """The relation of two texts, from the pooled vector of [CLS]."""

    def __init__(self, config: Model, classes: int) -> None:
        super().__init__()
        self.bert = Bert(config)
        self.dropout = nn.Dropout(config.dropout)
        self.classes = nn.Linear(config.dim, classes)
        initialise(self.classes, config.initial_std)

    def forward(self, tokens: Tokens, types: Tokens, real: Mask) -> Logits:
        """Returns the score of each relation."""
        hidden = self.bert(tokens, types, Visibility(query_real=real, key_real=real))
        scores: Tensor = self.classes(self.dropout(self.bert.pooled(hidden)))
        return scores
