"""Scores of answers, by the rules of evaluate-v1.1.py and evaluate-v2.0.py; values worked out by hand from those."""

import json
import math
import re
import string
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqarena.common.errors import BadDataError, WrongUseError
from seqarena.qa import official
from seqarena.qa.data.squad import from_json
from seqarena.qa.scoring import best_threshold, exact_match, f1, normalize, score, summary_one, summary_two
from tests.qa.questions import asked, squad, written


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("The  Normans", "normans"),
        ("a.n.x", "anx"),  # punctuation goes first, articles afterwards, as whole words only
        ("A-the", "athe"),
        ("an apple, a day", "apple day"),
        ("theatre", "theatre"),
        ("U.S.", "us"),
        ("«Café»—x", "«café»—x"),  # only ASCII punctuation goes, accents stay
        ("\u00a0the\u2009x", "x"),  # any white space is white space
        ("a the an", ""),
        ("İ", "i̇"),
    ],
)
def test_what_is_left_of_an_answer(answer: str, expected: str) -> None:
    assert normalize(answer) == expected


def plain_f1(answer: str, gold: str, two: bool) -> float:
    """The official function, in its own order of steps."""

    def tokens(text: str) -> list[str]:
        text = "".join(letter for letter in text.lower() if letter not in set(string.punctuation))
        return re.sub(r"\b(a|an|the)\b", " ", text, flags=re.UNICODE).split()

    mine, theirs = tokens(answer), tokens(gold)
    same = sum((Counter(mine) & Counter(theirs)).values())
    if two and (not mine or not theirs):
        return float(mine == theirs)
    if same == 0:
        return 0.0
    precision, recall = same / len(mine), same / len(theirs)
    return 2 * precision * recall / (precision + recall)


WORDS = st.lists(st.sampled_from(["the", "a", "Norman", "norman.", "in", "France", "-", "é"]), max_size=5).map(" ".join)


@given(WORDS, WORDS, st.booleans())
def test_f1_is_the_official_one(answer: str, gold: str, two: bool) -> None:
    assert f1(answer, gold, empty_matches_empty=two) == pytest.approx(plain_f1(answer, gold, two), abs=1e-12)
    assert exact_match(answer, gold) == float(normalize(answer) == normalize(gold))


def test_the_best_gold_counts_and_in_one_a_missing_answer_is_wrong() -> None:
    questions = asked([["France", "Normans lived in France"], ["Normandy"], ["name"]])
    scores = score(questions, {"q0": "lived in France", "q1": "the normandy!", "q9": "x"}, unanswerable=False)
    assert scores.exact == {"q0": 0.0, "q1": 1.0}
    assert scores.f1 == {"q0": pytest.approx(6 / 7), "q1": 1.0}
    assert summary_one(questions, scores) == {
        "exact": pytest.approx(100 / 3), "f1": pytest.approx(100 * (6 / 7 + 1) / 3), "total": 3,
    }  # fmt: skip


def test_in_two_an_empty_answer_is_right_where_there_is_none_and_missing_ones_are_left_out() -> None:
    questions = asked([["France"], [], [], ["Normandy"]], version="2.0")
    answers = {"q0": "", "q1": "", "q2": "in France"}
    scores = score(questions, answers, unanswerable=True)
    assert scores.exact == {"q0": 0.0, "q1": 1.0, "q2": 0.0}
    found = summary_two(questions, scores, answers, None)
    assert found == {
        "exact": pytest.approx(100 / 3), "f1": pytest.approx(100 / 3), "total": 3,
        "HasAns_exact": 0.0, "HasAns_f1": 0.0, "HasAns_total": 1,
        "NoAns_exact": 50.0, "NoAns_f1": 50.0, "NoAns_total": 2,
    }  # fmt: skip


def test_odds_above_the_threshold_leave_a_question_unanswered_and_the_oracle_says_what_the_best_would_give() -> None:
    questions = asked([["France"], [], ["Normandy"]], version="2.0")
    answers = {"q0": "France", "q1": "Normandy", "q2": "cooks"}
    odds = {"q0": -2.0, "q1": 0.5, "q2": 3.0}
    scores = score(questions, answers, unanswerable=True)
    found = summary_two(questions, scores, answers, odds, 0.0)
    assert (found["exact"], found["HasAns_exact"], found["NoAns_exact"]) == (pytest.approx(200 / 3), 50.0, 100.0)
    assert (found["best_exact"], found["best_exact_thresh"]) == (pytest.approx(200 / 3), -2.0)
    assert summary_two(questions, scores, answers, odds)["NoAns_exact"] == 0.0  # their threshold is 1.0


ROWS = st.lists(
    st.tuples(st.booleans(), st.sampled_from(["France", "Normandy", "the", ""]), st.integers(-3, 3).map(float)),
    min_size=1, max_size=8,
)  # fmt: skip


@given(ROWS)
def test_the_oracle_is_the_best_of_all_thresholds_and_its_threshold_gives_it(
    rows: list[tuple[bool, str, float]],
) -> None:
    """Odds of either sign, several questions of the same ones, answers that are an article alone."""
    questions = asked([["France"] if has else [] for has, _, _ in rows], version="2.0")
    answers = {f"q{number}": answer for number, (_, answer, _) in enumerate(rows)}
    odds = {f"q{number}": value for number, (_, _, value) in enumerate(rows)}
    scores = score(questions, answers, unanswerable=True)
    best, at = best_threshold(questions, scores.f1, odds)
    every = [summary_two(questions, scores, answers, odds, each)["f1"] for each in (-9.0, 0.0, *odds.values())]
    assert best == pytest.approx(max(every), abs=1e-9)
    assert summary_two(questions, scores, answers, odds, at)["f1"] == pytest.approx(best, abs=1e-9)


def test_to_answer_nothing_is_a_threshold_below_all_odds() -> None:
    """0 answers nothing if odds are probabilities, as the official script has it; not if they are log odds."""
    questions = asked([[], []], version="2.0")
    for odds, expected in (((0.2, 0.9), 0.0), ((-5.0, 3.0), -6.0), ((-1e300, 0.0), math.nextafter(-1e300, -math.inf))):
        of = dict(zip(("q0", "q1"), odds, strict=True))
        assert best_threshold(questions, {"q0": 0.0, "q1": 0.0}, of) == (100.0, expected)


def test_thresholds_are_not_searched_on_predictions_that_one_has_emptied(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gold = written(tmp_path / "gold.json", squad([["France"], [], ["Normandy"]], version="2.0"))
    odds = written(tmp_path / "null_odds.json", {"q0": -1.25, "q1": 0.5, "q2": 1 / 3})
    emptied = written(tmp_path / "predictions.json", {"q0": "France", "q1": "", "q2": ""})
    answers = written(tmp_path / "answers.json", {"q0": "France", "q1": "name", "q2": "Normandy"})
    command = ["squad2", "--gold", str(gold), "--null-odds", str(odds), "--predictions"]
    with pytest.raises(WrongUseError, match=f"own threshold has already emptied.*--predictions {answers}"):
        official.run([*command, str(emptied)])
    assert official.run([*command, str(answers)]) == 0
    assert f"best_f1_thresh       {1 / 3!r}" in capsys.readouterr().out  # a rounded one would be another


def test_any_predictions_file_is_scored(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gold = written(tmp_path / "gold.json", squad([["France"], ["Normandy"]]))
    predictions = written(tmp_path / "p.json", {"q0": "France", "other": "x"})
    command = ["squad1", "--gold", str(gold), "--predictions", str(predictions)]
    assert official.run([*command, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"exact": 50.0, "f1": 50.0, "total": 2, "missing": 1}
    assert official.run(command) == 0
    shown = capsys.readouterr().out
    assert "1 questions have no prediction: counted as wrong" in shown
    assert "1 predictions are for other questions" in shown


@pytest.mark.parametrize(
    ("task", "version", "predictions", "more", "message"),
    [
        (
            "squad1",
            "2.0",
            {"q0": "x"},
            [],
            "has no answer, which is SQuAD 2.0, not 1.1; use squad2 (evaluate squad2)",
        ),
        ("squad2", "2.0", {"q0": "x"}, ["--threshold", "nan"], "--threshold: expected a number"),
        ("squad1", "1.1", {"q0": 3}, [], "question 'q0': expected text, found int"),
        ("squad1", "1.1", ["x"], [], "expected an object of question id -> text, found list"),
        ("squad1", "1.1", {"z": "x"}, [], "expected ids of questions in"),
        ("squad3", "1.1", {"q0": "x"}, [], "unknown SQuAD task 'squad3'"),
        ("squad1", "1.1", {"q0": "x"}, ["--threshold", "0"], "evaluate squad2"),
    ],
)
def test_what_cannot_be_scored_is_one_message(
    tmp_path: Path, task: str, version: str, predictions: object, more: list[str], message: str
) -> None:
    golds = [["France"], []] if version == "2.0" else [["France"]]
    gold = written(tmp_path / "gold.json", squad(golds, version=version))
    given = written(tmp_path / "p.json", predictions)
    with pytest.raises((BadDataError, WrongUseError), match=re.escape(message)):
        official.run([task, "--gold", str(gold), "--predictions", str(given), *more])


def test_golds_are_scored_as_they_stand(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The official scripts look at the texts alone: neither at where they stand nor at is_impossible."""
    values = squad([["France"], ["name"]], version="2.0")
    for each in values["data"][0]["paragraphs"][0]["qas"]:
        each["answers"][0]["answer_start"] = 1
        each["is_impossible"] = True
    gold = written(tmp_path / "gold.json", values)
    predictions = written(tmp_path / "p.json", {"q0": "France", "q1": ""})
    odds = written(tmp_path / "o.json", {"q0": 0, "q1": 1.5})
    command = ["squad2", "--gold", str(gold), "--predictions", str(predictions), "--null-odds", str(odds), "--json"]
    assert official.run(command) == 0
    shown = capsys.readouterr()
    found = json.loads(shown.out)
    assert (found["exact"], found["HasAns_total"], "NoAns_total" in found) == (50.0, 2, False)
    assert "for SQuAD 1.1 use evaluate squad1" in shown.err
    for value, message in ((float("nan"), "finite number"), (10**400, "too large")):
        written(odds, {"q0": value, "q1": 0})
        with pytest.raises(BadDataError, match=message):
            official.run(command)


def test_ties_of_thresholds_are_broken_by_the_official_last_bit() -> None:
    """0.8 + 0.2 - 1 is above 0 if F1 is 2 p r / (p + r), and is not if it is 2 shared / (both lengths)."""
    context = " ".join([*"w" * 8, *"x" * 7])
    golds = [[], ["w " * 8 + "x x"], ["w w " + "x " * 7]]
    values = squad([[], ["w"], ["w"]], version="2.0", context=context)
    for each, texts in zip(values["data"][0]["paragraphs"][0]["qas"], golds, strict=True):
        each["answers"] = [{"text": text, "answer_start": 0} for text in texts]
    questions = from_json(values, "2.0", "here", "score")
    answers = {"q0": "y", "q1": "w " * 8 + "y y", "q2": "w w " + "y " * 9}
    scores = score(questions, answers, unanswerable=True)
    assert best_threshold(questions, scores.f1, {"q0": 0.0, "q1": 1.0, "q2": 2.0})[1] == 2.0


def test_as_a_metric_of_the_evaluate_library() -> None:
    from seqarena.qa.metric import SquadMetric  # noqa: PLC0415  # takes four seconds

    references = [{"id": "a", "answers": {"text": ["the Paris"], "answer_start": [3]}},
                  {"id": "b", "answers": {"text": [], "answer_start": []}}]  # fmt: skip
    predictions = [{"id": "a", "prediction_text": "Paris", "no_answer_probability": 0.1},
                   {"id": "b", "prediction_text": "Rome", "no_answer_probability": 0.9}]  # fmt: skip
    found = SquadMetric("squad2").compute(predictions=predictions, references=references)
    assert (found["exact"], found["HasAns_f1"], found["NoAns_f1"], found["best_f1"]) == (50.0, 100.0, 0.0, 100.0)
    assert found["best_f1_thresh"] == 0.1
    at_half = SquadMetric("squad2").compute(predictions=predictions, references=references, no_answer_threshold=0.5)
    assert at_half["exact"] == 100.0
    plain = [{name: each[name] for name in ("id", "prediction_text")} for each in predictions[:1]]
    assert SquadMetric("squad1").compute(predictions=plain, references=references[:1])["f1"] == 100.0
    with pytest.raises(WrongUseError, match="answers to each question of squad1, b has none"):
        SquadMetric("squad1").compute(
            predictions=[*plain, {"id": "b", "prediction_text": "Rome"}], references=references
        )
    with pytest.raises(WrongUseError, match="predictions: expected every id once, a occurs twice"):
        SquadMetric("squad2").compute(predictions=[predictions[0]] * 2, references=references)
    predictions[1]["no_answer_probability"] = math.nan
    with pytest.raises(WrongUseError, match="found none for b"):
        SquadMetric("squad2").compute(predictions=predictions, references=references)
    with pytest.raises(WrongUseError, match="expected squad1 or squad2"):
        SquadMetric("squad")
