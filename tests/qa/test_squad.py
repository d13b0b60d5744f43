"""Questions read from files and rows, paragraphs cut into windows, answers mapped to tokens."""

import gzip
import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqarena.common.data.counter import hash_text
from seqarena.common.data.tokenization import Tokenizer, train_tokenizer
from seqarena.common.errors import BadDataError, WrongUseError
from seqarena.qa.data.squad import Questions, Squad, checksum, from_json, from_rows, read
from seqarena.qa.data.windows import CLS, answer_tokens, best_ranges, cut, windows_of
from tests.qa.questions import PARAGRAPH, asked, squad, written


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    texts = [PARAGRAPH, "what about it?", "the quick brown fox jumps over lazy dogs"]
    return train_tokenizer(texts * 3, "wordpiece", 120)


def rows(questions: Questions) -> list[dict[str, Any]]:
    """As the hub has them."""
    return [
        {"id": each.id, "title": "x", "context": questions.contexts[each.context], "question": each.text,
         "answers": {"text": [text for text, _ in each.answers], "answer_start": [at for _, at in each.answers]}}
        for each in questions.questions
    ]  # fmt: skip


@pytest.mark.parametrize("version", ["1.1", "2.0"])
def test_every_form_says_the_same(tmp_path: Path, version: str) -> None:
    golds = [["France", "in France"], ["Normandy"], *([[]] if version == "2.0" else [])]
    values = squad(golds, version=version)
    (tmp_path / "a.json").write_text(json.dumps(values))
    (tmp_path / "b.json.gz").write_bytes(gzip.compress(json.dumps(values).encode()))
    flat = rows(from_json(values, version, "x"))  # type: ignore[arg-type]
    (tmp_path / "c.jsonl").write_text("\n".join(json.dumps(row) for row in flat))
    pyarrow.parquet.write_table(pa.Table.from_pylist(flat), tmp_path / "d.parquet")
    found = [read(path, version, "train") for path in sorted(tmp_path.iterdir())]  # type: ignore[arg-type]
    assert len({checksum([each]) for each in found}) == 1
    assert [each.questions for each in found] == [found[0].questions] * 4
    assert found[0].questions[0].text == "What about 0?"  # questions lose the blanks in front
    assert found[0].contexts == (PARAGRAPH,)  # paragraphs never


def test_the_checksum_covers_the_border_between_two_splits(tmp_path: Path) -> None:
    """The last validation question of one set is the first test question of the other."""
    values = [squad([["France"]], context=f"{PARAGRAPH} Paragraph {number}.") for number in range(40)]
    for number, each in enumerate(values):
        each["data"][0]["paragraphs"][0]["qas"][0]["id"] = str(number)
    out = [hash_text(each["data"][0]["paragraphs"][0]["context"]) / 2.0**64 < 0.5 for each in values]
    held = [each for each, is_out in zip(values, out, strict=True) if is_out]
    train = [each for each, is_out in zip(values, out, strict=True) if not is_out]
    sums = set()
    for border in (3, 4):
        parts = {"train": train + held[:border], "dev": held[border:]}
        paths = {
            name: str(written(tmp_path / f"{name}{border}.json", {"data": [each["data"][0] for each in some]}))
            for name, some in parts.items()
        }
        sums.add(Squad(**paths, held_out=0.5).load()[1])
    assert len(sums) == 2


def test_two_does_not_train_or_test_on_one(tmp_path: Path) -> None:
    path = written(tmp_path / "one.json", squad([["France"]]))
    for use in ("train", "test"):
        with pytest.raises(BadDataError, match=r"which is SQuAD 1\.1, not 2\.0; use squad1"):
            read(path, "2.0", use)  # type: ignore[arg-type]


def test_plausible_answers_are_no_answers() -> None:
    values = squad([[]], version="2.0", plausible_answers=[{"text": "France", "answer_start": 23}])
    assert from_json(values, "2.0", "x").questions[0].answers == ()


def changed(values: dict[str, Any], **question: Any) -> dict[str, Any]:
    values["data"][0]["paragraphs"][0]["qas"][0] |= question
    return values


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([], "expected an object with data, found list"),
        ({"data": 3}, r"expected data \(list\), found int"),
        ({"data": [{"title": "T"}]}, r"expected paragraphs \(list\), found nothing"),
        (squad([["France"], ["Normandy"]], context=" \n"), "question 'q0' has an empty paragraph"),
        (changed(squad([["France"]]), id=3), r"'Normans', paragraph 0: expected id \(str\), found int"),
        (changed(squad([["France"], ["name"]]), id="q1"), "expected distinct question ids, found 'q1' twice"),
        (changed(squad([["France"]]), answers=[{"text": "France", "answer_start": 5}]),
         "found 1 of 1 elsewhere, .* 'q0': 'France' at 5"),
        (squad([[]]), "question 'q0' has no answer, which is SQuAD 2.0"),
        (squad([["France"]], is_impossible=True), "use squad2"),
        ({"data": []}, "expected questions, found none"),
        ({"data": [1]}, "expected an object with paragraphs, found int"),
        (squad([["France"]], context="France \ud800"), "found an unpaired surrogate"),
        (changed(squad([["France"]]), answers=[{"text": "h", "answer_start": True}]), r"expected answer_start \(int\)"),
        ({"data": [{"paragraphs": [{"context": "a", "qas": ["x"]}]}]}, "expected an object with id, found str"),
    ],
)  # fmt: skip
def test_bad_files_are_one_message(tmp_path: Path, values: Any, message: str) -> None:
    with pytest.raises(BadDataError, match=message):
        read(written(tmp_path / "train.json", values), "1.1", "train")


def test_one_wrong_answer_in_a_thousand_is_left_out_and_told(capsys: pytest.CaptureFixture[str]) -> None:
    values = squad([["France"]] * 1_200)
    questions = from_json(changed(values, answers=[{"text": "France", "answer_start": 0}]), "1.1", "x")
    assert len(questions) == 1_199
    assert len(from_json(values, "1.1", "x", "test")) == 1_200  # what is tested stays whole
    assert "1 answers are not at their answer_start: skipped" in capsys.readouterr().err


def test_files_that_are_no_files(tmp_path: Path) -> None:
    (tmp_path / "x.json.gz").write_bytes(b"\x1f\x8b broken")
    (tmp_path / "x.json").write_text("{")
    (tmp_path / "deep.json").write_text("[" * 9_000)
    (tmp_path / "x.jsonl").write_text('[]\n{"id": "a"}\n')
    (tmp_path / "x.csv").write_text("a")
    for name, message in (
        ("x.json.gz", "cannot be read"), ("x.json", "expected JSON"),
        ("deep.json", "expected JSON"), ("x.jsonl", "line 1: expected an object"),
        ("x.csv", "expected .json"), ("y.json", "does not exist"),
    ):  # fmt: skip
        with pytest.raises(BadDataError, match=message):
            read(tmp_path / name, "1.1", "train")
    rows = {"id": "a"}, {"id": "a", "answers": {"text": ["b"], "answer_start": [1.5]}}
    for row, message in zip(rows, ("line 1: expected answers", "line 1: expected an integer"), strict=True):
        with pytest.raises(BadDataError, match=message):
            from_rows(iter([("line 1", row)]), "1.1", "x")


def google(count: int, room: int, step: int) -> list[tuple[int, int]]:
    """The loop of run_squad.py."""
    spans, start = [], 0
    while start < count:
        length = min(count - start, room)
        spans.append((start, start + length))
        if start + length == count:
            break
        start += min(length, step)
    return spans


@given(st.integers(1, 60), st.integers(2, 30), st.integers(1, 40))
def test_windows_go_on_by_googles_step(count: int, room: int, step: int) -> None:
    assert cut(count, room, Squad(window_step=step)) == google(count, room, step)


@given(st.integers(1, 60), st.integers(2, 30), st.integers(0, 28))
def test_windows_share_the_overlap_of_run_qa(count: int, room: int, overlap: int) -> None:
    if overlap >= room:
        return
    found = cut(count, room, Squad(window_step=None, window_overlap=overlap))
    assert (found[0][0], found[-1][1]) == (0, count)
    assert all(stop - first == room for first, stop in found[:-1])
    assert all(before[1] - after[0] == overlap for before, after in itertools.pairwise(found))


@given(st.integers(1, 60), st.integers(2, 30), st.integers(1, 30))
def test_each_token_belongs_to_the_window_where_google_says(count: int, room: int, step: int) -> None:
    windows = cut(count, room, Squad(window_step=step))
    ranges = best_ranges(windows)
    for token in range(count):
        scores = [
            min(token - first, stop - 1 - token) + 0.01 * (stop - first) if first <= token < stop else -1
            for first, stop in windows
        ]
        owners = [number for number, (first, stop) in enumerate(ranges) if first <= token < stop]
        assert owners == [scores.index(max(scores))]


def test_answers_are_mapped_by_the_characters_they_share(tokenizer: Tokenizer) -> None:
    (tokens, places), *_ = tokenizer.encode_with_offsets([PARAGRAPH])
    assert len(tokens) == len(places)
    for text in ("France", "Norman", "Japan", "ave their na", "gave their name to Normandy; J"):
        start = PARAGRAPH.index(text)
        found = answer_tokens(places, text, start)
        assert found is not None
        first, last = found
        shares = [begin < start + len(text) and end > start for begin, end in places.tolist()]
        assert [number for number, shared in enumerate(shares) if shared] == list(range(first, last + 1))
    assert answer_tokens(places, "  ", 0) is None


@given(st.integers(9, 40), st.integers(1, 12), st.booleans())
def test_a_window_holds_what_it_says(tokenizer: Tokenizer, length: int, step: int, overlapping: bool) -> None:
    questions = asked([["France"], ["Normandy; Japanese"], []], version="2.0")
    steps = {"window_step": None, "window_overlap": 0} if overlapping else {"window_step": step}
    data = Squad(version="2.0", length=length, question_length=4, **steps)  # type: ignore[arg-type]
    windows = windows_of(questions, data, tokenizer, all_windows=False)
    assert (windows.lengths <= length).all()
    batch = windows.batch(np.arange(len(windows)))
    cls, sep, pad = (tokenizer.id(name) for name in ("[CLS]", "[SEP]", "[PAD]"))
    for row in range(len(windows)):
        question = int(windows.question[row])
        real = batch.tokens[row][batch.real[row]].tolist()
        asked_tokens = windows.question_tokens[question].tolist()
        window = windows.context_tokens[0][windows.first[row] : windows.stop[row]].tolist()
        assert real == [cls, *asked_tokens, sep, *window, sep]
        assert batch.tokens[row][batch.context[row]].tolist() == window
        assert (batch.tokens[row][~batch.real[row]] == pad).all()
        assert batch.types[row].sum() == len(window) + 1
        start, end = int(batch.start[row]), int(batch.end[row])
        if (start, end) != (CLS, CLS):
            first, last = (place + windows.first[row] - windows.opening[row] for place in (start, end))
            text, at = questions.questions[question].answers[0]
            assert windows.places[0][first, 0] <= at < windows.places[0][first, 1]
            assert windows.places[0][last, 0] < at + len(text) <= windows.places[0][last, 1]
    opened = sum(int(batch.opens[row].sum()) for row in range(len(windows)) if windows.question[row] == 0)
    assert opened == len(windows.context_tokens[0])  # each token may begin an answer in one window


def test_long_questions_are_cut_and_counted(tokenizer: Tokenizer, capsys: pytest.CaptureFixture[str]) -> None:
    windows = windows_of(asked([["France"]]), Squad(length=40, question_length=2), tokenizer, all_windows=True)
    assert len(windows.question_tokens[0]) == 2
    assert "1 questions are truncated to 2 tokens" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"window_overlap": 3}, "expected exactly one of data.window_step and data.window_overlap"),
        ({"window_step": None}, "expected exactly one of data.window_step and data.window_overlap"),
        ({"window_step": None, "window_overlap": 400}, "data.window_overlap: expected 0 to 316"),
        ({"length": 66}, "data.length: expected more than .* found 66"),
        ({"train": "x"}, "expected both --data.train and --data.dev"),
        ({"train": "x", "hub": "rajpurkar/squad"}, "expected both --data.train and --data.dev"),
        ({"n_best": 0}, "data.n_best: expected at least 1"),
        ({"held_out": 0.0}, "data.held_out"),
    ],
)
def test_settings_that_cannot_be_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(WrongUseError, match=message):
        Squad(**changes).check()


def test_a_split_without_a_question_is_refused(tmp_path: Path) -> None:
    path = str(written(tmp_path / "x.json", squad([["France"]])))
    with pytest.raises(BadDataError, match="no question for validation"):
        Squad(train=path, dev=path).load()
