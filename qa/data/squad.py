"""SQuAD: questions on paragraphs, answered by a span of them or not at all."""

import hashlib
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from seqarena.common.data.counter import hash_text
from seqarena.common.data.hub import hub_rows
from seqarena.common.data.readers import kind_of, member, read_json, read_lines, read_parquet
from seqarena.common.errors import BadDataError, WrongUseError
from seqarena.common.runs.roles import Role, role
from seqarena.qa.data import Data, world

Version = Literal["1.1", "2.0"]
Use = Literal["train", "test", "score", "predict"]
"""What is read for: train leaves questions out whose answers do not stand where they say; test does not, for it scores
by the texts alone; score takes them as they are, as the official scripts do; predict too, and needs no answers."""
WRONG = 0.001
"""Share of answers that may not stand where they should."""
HINT = "--data.train and --data.dev take files of your own, such as train-v1.1.json and dev-v1.1.json"


@dataclass(frozen=True, kw_only=True)
class Question:
    """One question and the answers people gave."""

    id: str
    text: str
    context: int
    """Number of its paragraph."""
    answers: tuple[tuple[str, int], ...]
    """Text, and where it begins, in characters; none: the paragraph does not answer it."""


@dataclass(frozen=True, kw_only=True)
class Questions:
    """Paragraphs and the questions on them."""

    contexts: tuple[str, ...]
    questions: tuple[Question, ...]
    source: str
    """Source, for messages."""

    def __len__(self) -> int:
        return len(self.questions)

    def some(self, chosen: Iterable[Question]) -> "Questions":
        """Returns some of the questions; paragraphs stay."""
        return Questions(contexts=self.contexts, questions=tuple(chosen), source=self.source)


@dataclass(frozen=True, kw_only=True)
class Squad(Data):
    """Which questions, and how paragraphs are cut and answers chosen."""

    version: Version = "1.1"
    """2.0 has questions that are not answered."""
    dev: str | None = field(default=None, metadata=role(Role.OWN_FILE))
    """Questions to test on; this and ``train``: the official JSON, or rows as JSON lines or Parquet, packed or not."""
    generated: int = 12_000
    """Generated questions to train on; a tenth as many test."""
    length: int = 384
    """Tokens of question and window together at most, special ones counted."""
    question_length: int = 64
    """Tokens of a question that are read."""
    window_step: int | None = 128
    """Tokens from the beginning of one window to that of the next (doc_stride of Google's code)."""
    window_overlap: int | None = None
    """Tokens that one window shares with the next (doc_stride of run_qa); either this or ``window_step``."""
    windows: Literal["best", "all"] = "best"
    """Of the windows that hold a token, which may begin an answer there: best, where the token has most context around
    it (Google), or all (run_qa)."""
    n_best: int = 20
    """Beginnings and ends that are looked at in a window, and answers that are kept of a question."""
    answer_length: int = 30
    """Tokens of an answer at most."""
    null_threshold: float = 0.0
    """A question is left unanswered if doing so scores better than its best answer by more than this (2.0 alone)."""

    @property
    def own(self) -> bool:
        """Whether files are named, in the place of the hub's."""
        return self.train is not None or self.dev is not None

    @property
    def unanswerable(self) -> bool:
        """Whether there are questions without an answer."""
        return self.version == "2.0"

    def check(self) -> None:
        """Raises a ``WrongUseError`` for settings that describe no data."""
        super().check()
        if self.own and (self.train is None or self.dev is None):
            raise WrongUseError("expected --data.train and --data.dev, both, or neither and --data.hub")
        if (self.window_step is None) == (self.window_overlap is None):
            raise WrongUseError(
                "expected one of data.window_step and data.window_overlap; the other is none (--data.window-step none)"
            )
        if self.null_threshold and not self.unanswerable:
            raise WrongUseError("data.null_threshold is about questions without an answer: squad2 has them")
        for name in ("length", "question_length", "n_best", "answer_length"):
            if getattr(self, name) < 1:
                raise WrongUseError(f"data.{name}: expected at least 1, found {getattr(self, name)}")
        room = self.length - self.question_length - 3
        if room < 1:
            raise WrongUseError(
                f"data.length {self.length} leaves no window beside a question of data.question_length "
                f"{self.question_length} and three special tokens"
            )
        if self.window_step is not None and not self.window_step >= 1:
            raise WrongUseError(f"data.window_step: expected at least 1 token, found {self.window_step}")
        if self.window_overlap is not None and not 0 <= self.window_overlap < room:
            raise WrongUseError(
                f"data.window_overlap: expected 0 up to below {room} tokens, found {self.window_overlap}"
            )

    def load(self) -> tuple[dict[str, Questions], str]:
        """Returns the questions of train, validation and test, and their checksum.

        Raises:
            BadDataError: files that are missing, damaged, or of another version; a split without a question.
        """
        self.check()
        train, test = self._read("train"), self._read("dev")
        apart = [hash_text(context) / 2.0**64 < self.held_out for context in train.contexts]
        splits = {
            "train": train.some(each for each in train.questions if not apart[each.context]),
            "validation": train.some(each for each in train.questions if apart[each.context]),
            "test": test.some(self.tested(test.questions)),
        }
        for name, split in splits.items():
            if not split.questions:
                raise BadDataError(f"{split.source}: no question for {name}; of {len(train):,}, data.held_out is taken")
        return splits, checksum(splits.values())

    def _read(self, name: Literal["train", "dev"]) -> Questions:
        path: str | None = getattr(self, name)
        use: Use = "train" if name == "train" else "test"
        if path is not None:
            return read(Path(path), self.version, use)
        if self.hub is not None:
            source, _, config = self.hub.partition(":")
            rows = hub_rows(source, None, "train" if name == "train" else "validation", HINT, config=config or None)
            return of_rows(((f"{self.hub}, row {n}", row) for n, row in enumerate(rows)), self.version, self.hub, use)
        count = self.generated if name == "train" else self.generated // 10
        return of_json(
            world.squad(count, self.seed, name, unanswerable=self.unanswerable), self.version, f"generated {name}"
        )


def read(path: Path, version: Version, use: Use) -> Questions:
    """Returns the questions of a file: the official JSON, or rows of the hub as JSON lines or Parquet.

    Raises:
        BadDataError: see ``of_json`` and ``of_rows``.
    """
    kind = kind_of(path)
    if kind == ".jsonl":
        return of_rows(read_lines(path), version, str(path), use)
    if kind == ".parquet":
        return of_rows(read_parquet(path)[0], version, str(path), use)
    if kind != ".json":
        raise BadDataError(f"{path}: expected .json (official), .jsonl or .parquet (rows), packed by gzip or xz or not")
    return of_json(read_json(path), version, str(path), use)


def of_json(values: Any, version: Version, source: str, use: Use = "train") -> Questions:
    """Returns the questions of SQuAD's own JSON: data, paragraphs, qas.

    Raises:
        BadDataError: another structure, the other version, a question id that stands there twice; and but for
            scoring an empty paragraph, or more than one answer in a thousand that does not stand where it says; names
            the id.
    """
    return _checked(_flat(values, source, use), version, source, use)


def of_rows(
    rows: Iterator[tuple[str, Mapping[str, Any]]], version: Version, source: str, use: Use = "train"
) -> Questions:
    """Returns the questions of rows as the hub has them: id, question, context, answers {text, answer_start}.

    Raises:
        BadDataError: as ``of_json``.
    """

    def flat() -> Iterator[tuple[str, str, str, list[tuple[str, int]], bool]]:
        for where, row in rows:
            answers = _answers(row, dict, where, use)
            texts, starts = member(answers, "text", list, where), member(answers, "answer_start", list, where)
            if len(texts) != len(starts) or any(type(start) is not int for start in starts):
                raise BadDataError(f"{where}: expected a whole number answer_start for each of {len(texts)} texts")
            name, question = member(row, "id", str, where), member(row, "question", str, where)
            found = list(zip(map(str, texts), starts, strict=True))
            yield name, question, member(row, "context", str, where), found, not found

    return _checked(flat(), version, source, use)


def _answers(values: Mapping[str, Any], kind: type, where: str, use: Use) -> Any:
    """Returns the answers of a question, of which there may be none where it is to be answered."""
    if use == "predict" and "answers" not in values:
        return {"text": [], "answer_start": []} if kind is dict else []
    return member(values, "answers", kind, where)


def _flat(values: Any, source: str, use: Use) -> Iterator[tuple[str, str, str, list[tuple[str, int]], bool]]:
    if not isinstance(values, dict):
        raise BadDataError(f"{source}: expected an object with data, found {type(values).__name__}")
    for article in member(values, "data", list, source):
        for number, paragraph in enumerate(member(article, "paragraphs", list, source)):
            where = f"{source}, {article.get('title', 'article')!r}, paragraph {number}"
            context = member(paragraph, "context", str, where)
            for each in member(paragraph, "qas", list, where):
                name = member(each, "id", str, where)
                answers = [
                    (
                        member(answer, "text", str, f"{where}, {name}"),
                        member(answer, "answer_start", int, f"{where}, {name}"),
                    )
                    for answer in _answers(each, list, f"{where}, {name}", use)
                ]
                impossible = bool(each.get("is_impossible", False))
                yield name, member(each, "question", str, f"{where}, {name}"), context, answers, impossible


def _checked(
    found: Iterator[tuple[str, str, str, list[tuple[str, int]], bool]], version: Version, source: str, use: Use
) -> Questions:
    contexts: dict[str, int] = {}
    questions: dict[str, Question] = {}
    wrong: list[str] = []
    total = 0
    for name, question, context, answers, impossible in found:
        if name in questions:
            raise BadDataError(f"{source}: question id {name!r} stands there twice")
        as_it_is = use in ("score", "predict")
        if not context.strip() and use != "score":
            raise BadDataError(f"{source}: question {name!r} is on an empty paragraph")
        if (bad := _no_text(context + question)) is not None:
            raise BadDataError(f"{source}: question {name!r}: half a character ({bad}) that is no text")
        if version == "1.1" and use != "predict" and (impossible or not answers):
            raise BadDataError(
                f"{source}: question {name!r} has no answer, which is SQuAD 2.0, not 1.1; use squad2 (evaluate squad2)"
            )
        right = [(text, start) for text, start in answers if text and context[start : start + len(text)] == text]
        total += len(answers)
        wrong += [f"{name!r}: {text!r} at {start}" for text, start in answers if (text, start) not in right]
        kept = right if use == "train" else answers
        if not as_it_is and impossible:
            kept = []
        elif answers and not kept:
            continue  # counted among the wrong ones
        questions[name] = Question(
            id=name, text=question.lstrip(), context=contexts.setdefault(context, len(contexts)), answers=tuple(kept)
        )
    if use in ("train", "test"):
        _told(wrong, total, source, use)
    if not questions:
        raise BadDataError(f"{source}: there is no question in it")
    if version == "2.0" and use in ("train", "test") and all(each.answers for each in questions.values()):
        raise BadDataError(f"{source}: every question has an answer, which is SQuAD 1.1, not 2.0; use squad1")
    return Questions(contexts=tuple(contexts), questions=tuple(questions.values()), source=source)


def _no_text(text: str) -> str | None:
    """Returns the surrogate that a text has, or None."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return repr(text[error.start])
    return None


def _told(wrong: Sequence[str], total: int, source: str, use: Use) -> None:
    """Says how many answers do not stand where they say; refuses too many."""
    if len(wrong) > WRONG * total:
        raise BadDataError(
            f"{source}: {len(wrong):,} of {total:,} answers do not stand in their paragraph where they say, "
            f"the first is {wrong[0]}; at most {WRONG:.1%} may"
        )
    if wrong:
        what = "left out" if use == "train" else "scored by their text all the same"
        print(f"{source}: {len(wrong):,} answers do not stand where they say, {what}", file=sys.stderr)


def checksum(splits: Iterable[Questions]) -> str:
    """Returns the sha256 over ids, questions, paragraphs and answers, the same for files and rows that say the same."""
    digest = hashlib.sha256()
    for split in splits:
        for each in split.questions:
            digest.update(json.dumps([each.id, each.text, split.contexts[each.context], each.answers]).encode())
    return digest.hexdigest()
