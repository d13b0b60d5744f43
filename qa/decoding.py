"""Combines the best spans of each window into one answer per question."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from seqarena.common.shapes import Mask, PerExample, PlacesOfRows, ScoresOfRows, TokenScores
from seqarena.qa.data.windows import Windows

PAIRS = 20
"""Maximum number of pairs per window, as a multiple of the number of answers."""


@dataclass(frozen=True, kw_only=True)
class Spans:
    """The best spans of each window, best first, and the score of no answer. Missing spans have the score -inf."""

    score: ScoresOfRows
    start: PlacesOfRows
    end: PlacesOfRows
    null: PerExample


def best_spans(start: TokenScores, end: TokenScores, opens: Mask, context: Mask, *, n_best: int, longest: int) -> Spans:
    """Returns the spans by their sums of start score and end score (both B T), best first, as Google's code chooses.

    Only the ``n_best`` highest start and end positions of a window are paired. More pairs than ``n_best`` are returned,
    since some may have equal texts: all 400 at Google's ``n_best`` of 20, at most ``PAIRS`` times ``n_best``. A span
    has at most ``longest`` tokens, starts where ``opens`` is true and ends in the window.
    """
    length = start.shape[1]
    some = min(n_best, length)
    first, at = start.topk(some, dim=1)
    last, to = end.topk(some, dim=1)
    number = torch.arange(length, device=start.device).expand_as(start)
    pairs = first[:, :, None] + last[:, None, :]  # B some some
    far = to[:, None, :] - at[:, :, None]
    fits = (far >= 0) & (far < longest) & opens.gather(1, at)[:, :, None] & context.gather(1, to)[:, None, :]
    pairs = pairs.masked_fill(~fits, -torch.inf).flatten(1)
    score, chosen = (each[:, : PAIRS * n_best] for each in pairs.sort(dim=1, descending=True, stable=True))
    null = start[:, 0] + end[:, 0]
    return Spans(
        score=score,
        start=number.gather(1, at).gather(1, chosen // some),
        end=number.gather(1, to).gather(1, chosen % some),
        null=null,
    )


@dataclass(frozen=True, kw_only=True)
class QuestionAnswers:
    """The predicted answers of one question."""

    text: str
    """The best answer; empty only if no window has a span."""
    null_odds: float
    """Score of no answer minus that of the best answer. Above the threshold the question is left unanswered. NaN if a
    score of the model is."""
    best: tuple[tuple[str, float], ...]
    """Distinct texts with their scores, best first."""


Floats = npt.NDArray[np.floating]
Places = npt.NDArray[np.integer]
NONE = -1e9
"""Score of the best span of a question without spans."""


def answers(
    windows: Windows, score: Floats, start: Places, end: Places, null: Floats, *, null_is_log_odds: bool = False
) -> dict[str, QuestionAnswers]:
    """Returns the answers of each question from the spans of all windows (W n) and their scores of no answer (W).

    The score of no answer is the minimum over a question's windows (Google). ``null_is_log_odds``: ``null`` is log odds
    already. Texts are substrings of the paragraph (Google's code joins word pieces).
    """
    question = np.repeat(windows.question, score.shape[1])
    window = np.repeat(np.arange(len(windows)), score.shape[1])
    order = np.lexsort((-score.ravel(), question))
    order = order[np.isfinite(score.ravel()[order])]
    question, window = question[order], window[order]
    values = score.ravel()[order]
    shift = windows.first[window] - windows.opening[window]
    first, last = start.ravel()[order].astype(np.int64) + shift, end.ravel()[order].astype(np.int64) + shift
    borders = np.searchsorted(question, np.arange(len(windows.questions) + 1))
    nulls = np.full(len(windows.questions), np.inf)
    np.minimum.at(nulls, windows.question, np.where(np.isnan(score).any(axis=1), np.nan, null))
    found = {}
    for number, each in enumerate(windows.questions.questions):
        part = slice(borders[number], borders[number + 1])
        text, places = windows.questions.contexts[each.context], windows.places[each.context]
        cut: dict[str, float] = {}
        for value, begin, stop in zip(
            values[part].tolist(), places[first[part], 0], places[last[part], 1], strict=True
        ):
            cut.setdefault(text[begin:stop], value)
            if len(cut) == windows.data.n_best:
                break
        best = next(iter(cut.items()), ("", NONE))
        odds = float(nulls[number]) - (0.0 if null_is_log_odds else best[1])
        found[each.id] = QuestionAnswers(text=best[0], null_odds=odds, best=tuple(cut.items()))
    return found
