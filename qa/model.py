"""BERT with a head for answer spans, or a classifier of pairs."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from seqarena.common.attention.visibility import Visibility
from seqarena.common.model.bert.model import Bert, initialise
from seqarena.common.model.bert.start import InitConfig
from seqarena.common.shapes import Hidden, Logits, Mask, PerExample, Tokens
from seqarena.qa.decoding import Spans, best_spans

Head = Literal["span", "conditioned"]
STARTS = 5
"""Number of start positions of the conditioned head's search, and of end positions per start."""


@dataclass(frozen=True, kw_only=True)
class Model(InitConfig):
    """Config of a BERT with a head, from a checkpoint or from random weights."""

    head: Head = "span"
    """Head for SQuAD. span: two scores per token (BERT); conditioned: end scores given the start, and a separate score
    of no answer (XLNet, ALBERT)."""


class SpanHead(nn.Module):
    """BERT's head: a start score and an end score per token."""

    def __init__(self, config: Model) -> None:
        super().__init__()
        self.both = nn.Linear(config.dim, 2)

    def forward(self, hidden: Hidden, real: Mask) -> tuple[Tensor, Tensor]:
        """Returns the start and end scores (both B T): -inf at padding, unlike Google's code, which scores padding."""
        start, end = self.both(hidden).float().masked_fill(~real[..., None], -torch.inf).unbind(dim=-1)
        return start, end


class ConditionedHead(nn.Module):
    """ALBERT's head for SQuAD 2.0, after XLNet's: end scores given a start, and the log odds of no answer.

    start_t = w . h_t; end_t = v . LayerNorm(tanh(W [h_t; h_s])) for a start s; no answer = a . tanh(U [h'; h_0]), where
    h' is the mean of h weighted by softmax(start). The softmax is over the window and [CLS] only.
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
        """Returns the start scores (B T)."""
        scores: Tensor = self.start(hidden).squeeze(-1).float().masked_fill(~allowed, -torch.inf)
        return scores

    def ends(self, hidden: Hidden, allowed: Mask, start: Tensor) -> Tensor:
        """Returns the end scores (B k T) for each of k start positions (B k)."""
        # W [h_t; h_s] = W_1 h_t + W_2 h_s avoids concatenating all pairs
        start_hidden = hidden.gather(1, start[..., None].expand(-1, -1, hidden.shape[-1]))  # B k C
        end_weight, start_weight = self.join.weight.chunk(2, dim=1)
        start_part = F.linear(start_hidden, start_weight, self.join.bias)
        pairs = F.linear(hidden, end_weight)[:, None] + start_part[:, :, None]  # B k T C
        scores: Tensor = self.end(self.norm(torch.tanh(pairs))).squeeze(-1).float()
        return scores.masked_fill(~allowed[:, None], -torch.inf)

    def unanswerable(self, hidden: Hidden, starts: Tensor) -> PerExample | None:
        """Returns the log odds of no answer, or None if every question has an answer."""
        if self.answer is None:
            return None
        mean = torch.einsum("bt,btc->bc", starts.softmax(dim=-1).to(hidden.dtype), hidden)
        odds: Tensor = self.answer(torch.cat([mean, hidden[:, 0]], dim=-1)).squeeze(-1).float()
        return odds


class Reader(nn.Module):
    """Maps windows to scores of answers."""

    def __init__(self, config: Model, *, answerable: bool = True) -> None:
        """``answerable``: whether the conditioned head also predicts if there is an answer (2.0)."""
        super().__init__()
        self.bert = Bert(config, pooler=False)
        self.spans = SpanHead(config) if config.head == "span" else ConditionedHead(config, answerable=answerable)
        initialise(self.spans, config.initial_std)

    def forward(
        self, tokens: Tokens, types: Tokens, real: Mask, context: Mask, start: PerExample
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Returns the inputs of the loss: start scores, end scores, and the log odds of no answer.

        The conditioned head's end scores are given the true ``start``. The span head has no odds (None).
        """
        hidden = self._hidden(tokens, types, real)
        if isinstance(self.spans, SpanHead):
            return *self.spans(hidden, real), None
        allowed = _window_and_cls(context)
        starts = self.spans.starts(hidden, allowed)
        ends = self.spans.ends(hidden, allowed, start[:, None])[:, 0]
        return starts, ends, self.spans.unanswerable(hidden, starts)

    @property
    def outputs_log_odds(self) -> bool:
        """Whether the output for no answer is log odds, not a score comparable with those of answers."""
        return isinstance(self.spans, ConditionedHead)

    def _hidden(self, tokens: Tokens, types: Tokens, real: Mask) -> Hidden:
        hidden: Tensor = self.bert(tokens, types, Visibility(query_real=real, key_real=real))
        return hidden

    def best(
        self, tokens: Tokens, types: Tokens, real: Mask, context: Mask, opens: Mask, *, n_best: int, longest: int
    ) -> Spans:
        """Returns the best spans of each window. The conditioned head searches its 5 best starts and 5 ends of each."""
        hidden = self._hidden(tokens, types, real)
        if isinstance(self.spans, SpanHead):
            start, end = self.spans(hidden, real)
            return best_spans(start, end, opens, context, n_best=n_best, longest=longest)
        allowed = _window_and_cls(context)
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


def _window_and_cls(context: Mask) -> Mask:
    """Returns the mask of the window's tokens and [CLS]."""
    allowed = context.clone()
    allowed[:, 0] = True
    return allowed


class PairClassifier(nn.Module):
    """Classifies pairs of texts by the pooled vector of [CLS]."""

    def __init__(self, config: Model, classes: int) -> None:
        super().__init__()
        self.bert = Bert(config)
        self.dropout = nn.Dropout(config.dropout)
        self.classes = nn.Linear(config.dim, classes)
        initialise(self.classes, config.initial_std)

    def forward(self, tokens: Tokens, types: Tokens, real: Mask) -> Logits:
        """Returns the logits of the labels."""
        hidden = self.bert(tokens, types, Visibility(query_real=real, key_real=real))
        scores: Tensor = self.classes(self.dropout(self.bert.pooled(hidden)))
        return scores
