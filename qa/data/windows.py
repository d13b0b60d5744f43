"""Windows of paragraphs, each combined with its question, and batches of them."""

import sys
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from seqarena.common.data.batches import Indices, ShuffledIndices
from seqarena.common.data.tokenization import Ids, Tokenizer
from seqarena.common.errors import WrongUseError
from seqarena.common.shapes import Mask, PerExample
from seqarena.qa.data.batch import PairFormat, TextBatch, format_of
from seqarena.qa.data.squad import Questions, Squad

Array = npt.NDArray[np.int64]
CLS = 0
"""Position of [CLS]: the target of windows without an answer."""


@dataclass(frozen=True, kw_only=True)
class SpanBatch(TextBatch):
    """Batch of questions and windows, with the true answers and masks of allowed answers."""

    context: Mask
    """Mask of the window's tokens."""
    opens: Mask
    """Mask of the window's tokens at which an answer may start."""
    start: PerExample
    """Position of the answer's first token; ``CLS`` if there is no answer."""
    end: PerExample
    """Position of the answer's last token; ``CLS`` if there is no answer."""


@dataclass(frozen=True, kw_only=True)
class Windows:
    """All windows of a set of questions. ``question`` and the arrays after it have one entry per window."""

    questions: Questions
    data: Squad
    question_tokens: list[Ids]
    """Tokens of each question, truncated to ``data.question_length``."""
    context_tokens: list[Ids]
    places: list[Ids]
    """Character offsets (start, stop) of each token of each paragraph."""
    format: PairFormat
    question: Array
    first: Array
    """Index of the window's first token in its paragraph."""
    stop: Array
    """Index after the window's last token in its paragraph."""
    best_first: Array
    """Answers may start in this window from this index up to, but not including, ``best_stop``."""
    best_stop: Array
    start: Array
    """Position in the sequence of the answer's first token; ``CLS`` if the window does not contain the whole answer."""
    end: Array

    def __len__(self) -> int:
        return len(self.question)

    @property
    def opening(self) -> Array:
        """Number of tokens of each sequence before the window: [CLS], question, [SEP]."""
        lengths = np.array([len(each) for each in self.question_tokens])
        return lengths[self.question] + self.format.before

    @property
    def lengths(self) -> Array:
        """Number of tokens of each sequence."""
        return self.opening + (self.stop - self.first) + 1

    def batch(self, examples: Indices) -> SpanBatch:
        """Returns the batch of the given windows."""
        tokens, types, real = self.format.join([self._texts(example) for example in examples.tolist()])
        opening, lengths = self.opening[examples], self.lengths[examples]
        position = np.arange(tokens.shape[1])
        context = (types == 1) & (position < lengths[:, None] - 1)
        # token index in the paragraph
        number = position - opening[:, None] + self.first[examples][:, None]
        opens = (number >= self.best_first[examples][:, None]) & (number < self.best_stop[examples][:, None])
        return SpanBatch(
            tokens=torch.from_numpy(tokens),
            types=torch.from_numpy(types),
            real=torch.from_numpy(real),
            context=torch.from_numpy(context),
            opens=torch.from_numpy(context & opens),
            start=torch.from_numpy(self.start[examples]),
            end=torch.from_numpy(self.end[examples]),
        )

    def _texts(self, example: int) -> tuple[Ids, Ids]:
        """Returns the tokens of a window's question and those of the window."""
        question = int(self.question[example])
        context = self.context_tokens[self.questions.questions[question].context]
        return self.question_tokens[question], context[self.first[example] : self.stop[example]]


@dataclass(frozen=True, kw_only=True)
class SpanBatches:
    """The batch of every training step."""

    windows: Windows
    order: ShuffledIndices

    def __getitem__(self, step: int) -> SpanBatch:
        """Returns the batch of a step."""
        return self.windows.batch(self.order[step])


def cut(count: int, room: int, data: Squad) -> list[tuple[int, int]]:
    """Divides a paragraph of ``count`` tokens into windows (first, stop) of at most ``room`` tokens.

    Consecutive windows start ``data.window_step`` tokens apart (Google), or ``room`` minus ``data.window_overlap``
    (run_qa). The last window ends with the paragraph.
    """
    step = room - data.window_overlap if data.window_overlap is not None else min(data.window_step or room, room)
    firsts = range(0, max(count - room, 0) + step, max(step, 1))
    windows = [(first, min(first + room, count)) for first in firsts]
    last = next(number for number, (_, stop) in enumerate(windows) if stop == count)
    return windows[: last + 1]


def best_ranges(windows: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Returns, for each window, the range (first, stop) of tokens that have more context in it than in other windows.

    Context is the smaller number of tokens on either side in the window, plus a hundredth of the window's length
    (Google's ``_check_is_max_context``). Ties go to the first window. The ranges partition the paragraph.
    """
    if len(windows) == 1:
        return windows
    token = np.arange(windows[-1][1])
    first, stop = np.array(windows).T[:, :, None]
    context = np.minimum(token - first, stop - 1 - token)
    owner = np.where(context < 0, -1.0, context + 0.01 * (stop - first)).argmax(axis=0)
    return [
        (int(np.searchsorted(owner, n, "left")), int(np.searchsorted(owner, n, "right"))) for n in range(len(windows))
    ]


def answer_tokens(places: Ids, text: str, start: int) -> tuple[int, int] | None:
    """Returns the first and the last token that overlap an answer, or None if there is none.

    An answer may start or end inside a word.
    """
    first = int(np.searchsorted(places[:, 1], start, "right"))
    last = int(np.searchsorted(places[:, 0], start + len(text), "left")) - 1
    return None if first > last else (first, last)


def windows_of(questions: Questions, data: Squad, tokenizer: Tokenizer, *, all_windows: bool) -> Windows:
    """Returns the windows of questions. Each paragraph is tokenized once.

    ``all_windows``: answers may start anywhere in a window, whatever ``data.windows`` is (for training, which does not
    use the restriction).

    Raises:
        WrongUseError: sequences too short for a question and its window.
    """
    placed = tokenizer.encode_with_offsets(questions.contexts)
    question_tokens = tokenizer.encode([each.text for each in questions.questions])
    longer = sum(len(each) > data.question_length for each in question_tokens)
    if longer:
        print(
            f"{questions.source}: {longer:,} questions are truncated to {data.question_length} tokens", file=sys.stderr
        )
    question_tokens = [each[: data.question_length] for each in question_tokens]
    layout = format_of(tokenizer)
    if data.length - data.question_length - layout.special <= (data.window_overlap or 0):
        raise WrongUseError(
            f"data.length: expected more than data.question_length {data.question_length}, data.window_overlap "
            f"{data.window_overlap or 0} and the {layout.special} special tokens of {tokenizer.source} together, found "
            f"{data.length}"
        )
    rows: list[tuple[int, ...]] = []
    without_token = 0
    for number, (question, tokens) in enumerate(zip(questions.questions, question_tokens, strict=True)):
        places = placed[question.context][1]
        windows = cut(len(places), data.length - len(tokens) - layout.special, data)
        ranges = windows if all_windows or data.windows == "all" else best_ranges(windows)
        answer = answer_tokens(places, *question.answers[0]) if question.answers else None
        without_token += answer is None and bool(question.answers)
        for (first, stop), best in zip(windows, ranges, strict=True):
            inside = answer is not None and first <= answer[0] and answer[1] < stop
            shift = len(tokens) + layout.before - first
            span = (answer[0] + shift, answer[1] + shift) if answer is not None and inside else (CLS, CLS)
            rows.append((number, first, stop, *best, *span))
    if without_token:
        print(
            f"{questions.source}: {without_token:,} answers contain no token; their questions count as unanswerable",
            file=sys.stderr,
        )
    columns = np.array(rows, dtype=np.int64).T
    names = ("question", "first", "stop", "best_first", "best_stop", "start", "end")
    return Windows(
        questions=questions,
        data=data,
        question_tokens=question_tokens,
        context_tokens=[tokens for tokens, _ in placed],
        places=[places for _, places in placed],
        format=layout,
        **dict(zip(names, columns, strict=True)),
    )
