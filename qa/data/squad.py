"""SQuAD: questions on paragraphs, answered by a span of the paragraph or unanswerable."""

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
from seqarena.common.errors import BadDataError, WrongUseError, named_by
from seqarena.common.runs.roles import Role, role
from seqarena.qa.data import Data, with_sizes, world

Version = Literal["1.1", "2.0"]
Use = Literal["train", "test", "score", "predict"]
"""Purpose of reading. train: questions with misplaced answers (text not at ``answer_start``) are skipped. test: they
are used, because scoring compares texts only. score: everything is used unchanged, as in the official scripts. predict:
as score, but answers are optional."""
Row = tuple[str, str, str, list[tuple[str, int]] | None, bool]
"""Id, question, paragraph, answers (None if they are not stated), and whether it is marked as unanswerable."""
WRONG = 0.001
"""Maximum fraction of misplaced answers."""
HINT = "--data.train and --data.dev accept your own files, such as train-v1.1.json and dev-v1.1.json"


@dataclass(frozen=True, kw_only=True)
class Question:
    """One question and its annotators' answers."""

    id: str
    text: str
    context: int
    """Index of the question's paragraph."""
    answers: tuple[tuple[str, int], ...]
    """Text and first character of each answer. Empty: the paragraph has no answer."""
    has_gold: bool = True
    """Whether the file states the answers, or that there is none. ``qa predict`` scores these questions only."""


@dataclass(frozen=True, kw_only=True)
class Questions:
    """Paragraphs and the questions on them."""

    contexts: tuple[str, ...]
    questions: tuple[Question, ...]
    source: str
    """Name of the source, for messages."""

    def __len__(self) -> int:
        return len(self.questions)

    def some(self, chosen: Iterable[Question]) -> "Questions":
        """Returns the given questions with all paragraphs."""
        return Questions(contexts=self.contexts, questions=tuple(chosen), source=self.source)


@dataclass(frozen=True, kw_only=True)
class Squad(Data):
    """Config of the questions, the windows of paragraphs, and the choice of answers."""

    version: Version = "1.1"
    """Version of SQuAD. 2.0 has unanswerable questions."""
    dev: str | None = field(default=None, metadata=role(Role.OWN_FILE))
    """File of test questions. Format of this and ``train``: the official JSON, or rows as JSON lines or Parquet,
    compressed or not."""
    generated: int = 12_000
    """Number of generated training questions. The test set has a tenth as many."""
    length: int = 384
    """Maximum number of tokens of question and window together, including special tokens."""
    question_length: int = 64
    """Maximum number of tokens of a question. The rest is truncated."""
    window_step: int | None = 128
    """Number of tokens from the start of one window to the start of the next (doc_stride of Google's code)."""
    window_overlap: int | None = None
    """Number of tokens shared by consecutive windows (doc_stride of run_qa). Set either this or ``window_step``."""
    windows: Literal["best", "all"] = "best"
    """Windows in which an answer may start at a token. best: only the one with the most context around the token
    (Google); all: every window that contains the token (run_qa)."""
    n_best: int = 20
    """Number of start and end positions considered per window, and maximum number of answers stored per question. Pairs
    with equal texts are one answer."""
    answer_length: int = 30
    """Maximum number of tokens of an answer."""
    null_threshold: float = 0.0
    """A question is left unanswered if the score of no answer exceeds that of the best answer by more than this (2.0
    only)."""

    @property
    def own(self) -> bool:
        """Whether the data are your own files instead of a data set of the hub."""
        return self.train is not None or self.dev is not None

    @property
    def unanswerable(self) -> bool:
        """Whether some questions have no answer."""
        return self.version == "2.0"

    def check(self) -> None:
        """Raises a ``WrongUseError`` for invalid settings."""
        super().check()
        if self.own and (self.train is None or self.dev is None):
            raise WrongUseError("expected both --data.train and --data.dev, or neither, with --data.hub")
        if (self.window_step is None) == (self.window_overlap is None):
            raise WrongUseError(
                "expected exactly one of data.window_step and data.window_overlap; set the other to none (such as "
                "--data.window-step none)"
            )
        if self.null_threshold and not self.unanswerable:
            raise WrongUseError("data.null_threshold applies only to squad2, which has unanswerable questions; omit it")
        for name in ("length", "question_length", "n_best", "answer_length"):
            if getattr(self, name) < 1:
                raise WrongUseError(f"data.{name}: expected at least 1, found {getattr(self, name)}")
        room = self.length - self.question_length - 3
        if room < 1:
            raise WrongUseError(
                f"data.length: expected more than data.question_length {self.question_length} and three special tokens "
                f"together, found {self.length}"
            )
        if self.window_step is not None and not self.window_step >= 1:
            raise WrongUseError(f"data.window_step: expected at least 1 token, found {self.window_step}")
        if self.window_overlap is not None and not 0 <= self.window_overlap < room:
            raise WrongUseError(f"data.window_overlap: expected 0 to {room - 1} tokens, found {self.window_overlap}")

    def load(self) -> tuple[dict[str, Questions], str]:
        """Returns the questions of train, validation and test, and their checksum.

        Raises:
            BadDataError: files are missing or damaged, or of another version; or a split is empty.
        """
        self.check()
        train, test = self._read("train"), self._read("dev")
        apart = [hash_text(context) / 2.0**64 < self.held_out for context in train.contexts]
        splits = {
            "train": train.some(each for each in train.questions if not apart[each.context]),
            "validation": train.some(each for each in train.questions if apart[each.context]),
            "test": test.some(self.sample_test(test.questions)),
        }
        for name, split in splits.items():
            if not split.questions:
                raise BadDataError(
                    f"{split.source}: expected questions, no question for {name}; {len(train):,} training questions "
                    f"were divided by data.held_out {self.held_out}"
                )
        return splits, with_sizes(checksum(splits.values()), list(splits.values()), self.is_generated)

    def _read(self, name: Literal["train", "dev"]) -> Questions:
        path: str | None = getattr(self, name)
        use: Use = "train" if name == "train" else "test"
        if path is not None:
            with named_by(f"--data.{name}", path, "a file of SQuAD, as JSON or Parquet") as file:
                return read(file, self.version, use)
        if self.hub is not None:
            source, _, config = self.hub.partition(":")
            rows = hub_rows(source, None, "train" if name == "train" else "validation", HINT, config=config or None)
            return from_rows(((f"{self.hub}, row {n}", row) for n, row in enumerate(rows)), self.version, self.hub, use)
        count = self.generated if name == "train" else self.generated // 10
        return from_json(
            world.squad(count, self.seed, name, unanswerable=self.unanswerable), self.version, f"generated {name}"
        )


def read(path: Path, version: Version, use: Use) -> Questions:
    """Returns the questions of a file: the official JSON, or rows of the hub as JSON lines or Parquet.

    Raises:
        BadDataError: see ``from_json`` and ``from_rows``.
    """
    kind = kind_of(path)
    if kind == ".jsonl":
        return from_rows(read_lines(path), version, str(path), use)
    if kind == ".parquet":
        return from_rows(read_parquet(path)[0], version, str(path), use)
    if kind != ".json":
        raise BadDataError(
            f"{path}: expected .json (official), .jsonl or .parquet (rows), uncompressed or with gzip or xz"
        )
    return from_json(read_json(path), version, str(path), use)


def from_json(values: Any, version: Version, source: str, use: Use = "train") -> Questions:
    """Returns the questions of SQuAD's own JSON: data, paragraphs, qas.

    Raises:
        BadDataError: the structure or the version is another one, or a question id is repeated; unless ``use`` is
            score, a paragraph is empty; for train and test, more than one answer in a thousand is misplaced. The
            message names the id.
    """
    return _build_questions(_iterate_json(values, source, use), version, source, use)


def from_rows(
    rows: Iterator[tuple[str, Mapping[str, Any]]], version: Version, source: str, use: Use = "train"
) -> Questions:
    """Returns the questions of rows in the hub's format: id, question, context, answers {text, answer_start}.

    Raises:
        BadDataError: see ``from_json``.
    """

    def iterate_rows() -> Iterator[Row]:
        for where, row in rows:
            found = None
            if _has_answers(row, use):
                answers = member(row, "answers", dict, where)
                texts, starts = member(answers, "text", list, where), member(answers, "answer_start", list, where)
                if len(texts) != len(starts) or any(type(start) is not int for start in starts):
                    raise BadDataError(f"{where}: expected an integer answer_start for each of {len(texts)} texts")
                found = list(zip(map(str, texts), starts, strict=True))
            name, question = member(row, "id", str, where), member(row, "question", str, where)
            yield name, question, member(row, "context", str, where), found, found == []

    return _build_questions(iterate_rows(), version, source, use)


def _has_answers(values: Mapping[str, Any], use: Use) -> bool:
    """Returns whether to read the answers of a question; if ``use`` is predict, they may be missing."""
    return use != "predict" or "answers" in values


def _read_answers(values: Mapping[str, Any], where: str) -> list[tuple[str, int]]:
    """Returns text and position of each answer in the official JSON."""
    answers = member(values, "answers", list, where)
    return [(member(each, "text", str, where), member(each, "answer_start", int, where)) for each in answers]


def _iterate_json(values: Any, source: str, use: Use) -> Iterator[Row]:
    if not isinstance(values, dict):
        raise BadDataError(f"{source}: expected an object with data, found {type(values).__name__}")
    for article in member(values, "data", list, source):
        for number, paragraph in enumerate(member(article, "paragraphs", list, source)):
            where = f"{source}, {article.get('title', 'article')!r}, paragraph {number}"
            context = member(paragraph, "context", str, where)
            for each in member(paragraph, "qas", list, where):
                name = member(each, "id", str, where)
                answers = _read_answers(each, f"{where}, {name}") if _has_answers(each, use) else None
                impossible = bool(each.get("is_impossible", False))
                yield name, member(each, "question", str, f"{where}, {name}"), context, answers, impossible


def _build_questions(found: Iterator[Row], version: Version, source: str, use: Use) -> Questions:
    contexts: dict[str, int] = {}
    questions: dict[str, Question] = {}
    wrong: list[str] = []
    total = 0
    for name, question, context, stated, impossible in found:
        answers = stated or []
        has_gold = bool(answers) or (version == "2.0" and (stated is not None or impossible))
        if name in questions:
            raise BadDataError(f"{source}: expected distinct question ids, found {name!r} twice")
        as_it_is = use in ("score", "predict")
        if not context.strip() and use != "score":
            raise BadDataError(f"{source}: question {name!r} has an empty paragraph")
        if (bad := _find_surrogate(context + question)) is not None:
            raise BadDataError(f"{source}: question {name!r}: expected text, found an unpaired surrogate ({bad})")
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
            continue  # already counted in ``wrong``
        questions[name] = Question(
            id=name, text=question.lstrip(), context=contexts.setdefault(context, len(contexts)), answers=tuple(kept),
            has_gold=has_gold,
        )  # fmt: skip
    if use in ("train", "test"):
        _report_misplaced(wrong, total, source, use)
    if not questions:
        raise BadDataError(f"{source}: expected questions, found none")
    if version == "2.0" and use in ("train", "test") and all(each.answers for each in questions.values()):
        raise BadDataError(f"{source}: every question has an answer, which is SQuAD 1.1, not 2.0; use squad1")
    return Questions(contexts=tuple(contexts), questions=tuple(questions.values()), source=source)


def _find_surrogate(text: str) -> str | None:
    """Returns the first unpaired surrogate of a text, or None."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return repr(text[error.start])
    return None


def _report_misplaced(wrong: Sequence[str], total: int, source: str, use: Use) -> None:
    """Prints the number of misplaced answers. Raises a ``BadDataError`` for too many."""
    if len(wrong) > WRONG * total:
        raise BadDataError(
            f"{source}: expected every answer at its answer_start in the paragraph (at most {WRONG:.1%} elsewhere), "
            f"found {len(wrong):,} of {total:,} elsewhere, the first is {wrong[0]}"
        )
    if wrong:
        outcome = "skipped" if use == "train" else "scored by their text"
        print(f"{source}: {len(wrong):,} answers are not at their answer_start: {outcome}", file=sys.stderr)


def checksum(splits: Iterable[Questions]) -> str:
    """Returns the sha256 of ids, questions, paragraphs and answers. It does not depend on the file format."""
    digest = hashlib.sha256()
    for split in splits:
        for each in split.questions:
            digest.update(json.dumps([each.id, each.text, split.contexts[each.context], each.answers]).encode())
    return digest.hexdigest()
