"""Paragraphs as windows of tokens beside each question, and batches of them."""

import sys
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from seqarena.common.data.batches import Indices, ShuffledIndices
from seqarena.common.data.tokenization import Ids, Tokenizer
from seqarena.common.shapes import Mask, PerExample
from seqarena.qa.data.batch import TextBatch
from seqarena.qa.data.squad import Questions, Squad

Array = npt.NDArray[np.int64]
CLS = 0
"""Position of [CLS], the target of a window without an answer."""


@dataclass(frozen=True, kw_only=True)
class SpanBatch(TextBatch):
    """Questions and windows, where their answers are, and where answers may be."""

    context: Mask
    """The window's tokens."""
    opens: Mask
    """Those of them where an answer may begin."""
    start: PerExample
    """The answer's first token; ``CLS`` where there is none."""
    end: PerExample
    """Its last."""


@dataclass(frozen=True, kw_only=True)
class Windows:
    """All windows of some questions; one entry a window in ``question`` and the arrays after it."""

    questions: Questions
    data: Squad
    question_tokens: list[Ids]
    """Tokens of each question, cut to ``data.question_length``."""
    context_tokens: list[Ids]
    places: list[Ids]
    """Beginning and end of each token of each paragraph, in characters."""
    special: tuple[int, int, int]
    """[CLS], [SEP], [PAD]."""
    question: Array
    first: Array
    """Number of the window's first token in its paragraph."""
    stop: Array
    """Number of the one behind its last."""
    best_first: Array
    """From here up to ``best_stop`` answers may begin in this window."""
    best_stop: Array
    start: Array
    """Position in the sequence of the answer's first token; ``CLS`` where it is not whole in the window."""
    end: Array

    def __len__(self) -> int:
        return len(self.question)

    @property
    def opening(self) -> Array:
        """Tokens of each sequence in front of the window: [CLS], question, [SEP]."""
        lengths = np.array([len(each) for each in self.question_tokens])
        return lengths[self.question] + 2

    @property
    def lengths(self) -> Array:
        """Tokens of each sequence."""
        return self.opening + (self.stop - self.first) + 1

    def batch(self, examples: Indices) -> SpanBatch:
        """Returns some windows."""
        cls, sep, pad = self.special
        opening, lengths = self.opening[examples], self.lengths[examples]
        shape = len(examples), int(lengths.max())
        tokens = np.full(shape, pad, dtype=np.int64)
        for row, (example, place) in enumerate(zip(examples.tolist(), opening.tolist(), strict=True)):
            question = int(self.question[example])
            window = self.context_tokens[self.questions.questions[question].context][
                self.first[example] : self.stop[example]
            ]
            tokens[row, 0], tokens[row, place - 1] = cls, sep
            tokens[row, 1 : place - 1] = self.question_tokens[question]
            tokens[row, place : place + len(window)] = window
            tokens[row, place + len(window)] = sep
        position = np.arange(shape[1])
        real = position < lengths[:, None]
        types = (position >= opening[:, None]) & real
        context = types & (position < lengths[:, None] - 1)
        # in the paragraph's numbers
        number = position - opening[:, None] + self.first[examples][:, None]
        opens = (number >= self.best_first[examples][:, None]) & (number < self.best_stop[examples][:, None])
        return SpanBatch(
            tokens=torch.from_numpy(tokens),
            types=torch.from_numpy(types.astype(np.int64)),
            real=torch.from_numpy(real),
            context=torch.from_numpy(context),
            opens=torch.from_numpy(context & opens),
            start=torch.from_numpy(self.start[examples]),
            end=torch.from_numpy(self.end[examples]),
        )


@dataclass(frozen=True, kw_only=True)
class SpanBatches:
    """The batch of every training step."""

    windows: Windows
    order: ShuffledIndices

    def __getitem__(self, step: int) -> SpanBatch:
        """Returns the batch of a step."""
        return self.windows.batch(self.order[step])


def cut(count: int, room: int, data: Squad) -> list[tuple[int, int]]:
    """Returns the windows of a paragraph of ``count`` tokens beside a question that leaves ``room``: first, stop.

    ``data.window_step`` goes on by so many tokens (Google), ``data.window_overlap`` by what the window does not share
    (run_qa); the last window ends with the paragraph.
    """
    step = room - data.window_overlap if data.window_overlap is not None else min(data.window_step or room, room)
    firsts = range(0, max(count - room, 0) + step, max(step, 1))
    windows = [(first, min(first + room, count)) for first in firsts]
    last = next(number for number, (_, stop) in enumerate(windows) if stop == count)
    return windows[: last + 1]


def best_ranges(windows: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Returns, for each window, the tokens that have most context in it: first, stop.

    Context is the lesser of the tokens on both sides in the window, and a hundredth of its length (Google's
    ``_check_is_max_context``); of equals the first window counts. Windows that follow each other share the tokens out
    in ranges.
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
    """Returns the first and the last token that an answer shares a character with; None if it shares none.

    An answer may begin or end inside a word.
    """
    first = int(np.searchsorted(places[:, 1], start, "right"))
    last = int(np.searchsorted(places[:, 0], start + len(text), "left")) - 1
    return None if first > last else (first, last)


def windows_of(questions: Questions, data: Squad, tokenizer: Tokenizer, *, all_windows: bool) -> Windows:
    """Returns the windows of questions; each paragraph is tokenized once.

    ``all_windows``: answers may begin anywhere in a window, whatever ``data.windows`` says (training does not ask).
    """
    placed = tokenizer.encode_with_offsets(questions.contexts)
    asked = tokenizer.encode([each.text for each in questions.questions])
    longer = sum(len(each) > data.question_length for each in asked)
    if longer:
        print(f"{questions.source}: {longer:,} questions are cut to {data.question_length} tokens", file=sys.stderr)
    asked = [each[: data.question_length] for each in asked]
    rows: list[tuple[int, ...]] = []
    unseen = 0
    for number, (question, tokens) in enumerate(zip(questions.questions, asked, strict=True)):
        places = placed[question.context][1]
        windows = cut(len(places), data.length - len(tokens) - 3, data)
        ranges = windows if all_windows or data.windows == "all" else best_ranges(windows)
        answer = answer_tokens(places, *question.answers[0]) if question.answers else None
        unseen += answer is None and bool(question.answers)
        for (first, stop), best in zip(windows, ranges, strict=True):
            inside = answer is not None and first <= answer[0] and answer[1] < stop
            move = len(tokens) + 2 - first
            span = (answer[0] + move, answer[1] + move) if answer is not None and inside else (CLS, CLS)
            rows.append((number, first, stop, *best, *span))
    if unseen:
        print(f"{questions.source}: {unseen:,} answers hold no token and count as unanswered", file=sys.stderr)
    columns = np.array(rows, dtype=np.int64).T
    names = ("question", "first", "stop", "best_first", "best_stop", "start", "end")
    return Windows(
        questions=questions,
        data=data,
        question_tokens=asked,
        context_tokens=[tokens for tokens, _ in placed],
        places=[places for _, places in placed],
        special=(tokenizer.id("[CLS]"), tokenizer.id("[SEP]"), tokenizer.id("[PAD]")),
        **dict(zip(names, columns, strict=True)),
    )
