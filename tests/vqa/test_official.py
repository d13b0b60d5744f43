"""VQA's accuracy: the official normalisation by its vectors, the mean over people by a count, files and commands."""

import json
from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqarena.common.errors import BadDataError, WrongUseError, run_command
from seqarena.scripts.seqarena import dispatch
from seqarena.vqa.answers import ceiling, priors, vocabulary
from seqarena.vqa.data.published import Annotation, Question, read_answers, read_questions, require_complete
from seqarena.vqa.official import CONTRACTIONS, MARKS, accuracy, normalize
from seqarena.vqa.score import consistency, score

VECTORS = {
    "The dog.": "dog", "2.5": "2.5", "5.": "5", "U.S.A.": "usa", "no.1": "no.1", "1. 2": "1 2", "1,000": "1000",
    "10,000 people": "10000 people", "red,white": "red white", "t-shirt": "t shirt", "left one": "left 1", "none": "0",
    "dont know": "don't know", "whats that": "what's that", "$5.00": "$5.00", "3:30": "3:30", "two-three": "2 3",
    "the": "", "somebody'd": "somebodyd", "Im here": "im here", "yes, sir": "yes sir", "a." * 40: "a" * 32 + "a." * 8,
}  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), VECTORS.items())
def test_answers_are_normalised_as_the_server_does(text: str, expected: str) -> None:
    assert normalize(text) == expected


def test_the_tables_have_the_server_s_sizes() -> None:
    assert len(CONTRACTIONS) == 120
    assert sum(key != key.lower() for key in CONTRACTIONS) == 4
    assert len(MARKS) == len(set(MARKS)) == 21
    for wrong, right in CONTRACTIONS.items():
        assert wrong.replace("'", "") == right.replace("'", "")


@given(st.integers(0, 10))
def test_accuracy_is_the_mean_of_leaving_each_person_out(matching: int) -> None:
    references = ["cat"] * matching + [f"dog {number}" for number in range(10 - matching)]
    nines = list(combinations(references, 9))
    expected = sum(min(1.0, nine.count("cat") / 3) for nine in nines) / 10
    assert accuracy("cat", references) == pytest.approx(expected, abs=1e-12)
    assert accuracy("cat", references) == pytest.approx(min(1.0, 0.3 * matching), abs=1e-12)


def test_nothing_is_normalised_where_all_agree() -> None:
    """GT-Vision-Lab/VQA issue 14: "Yes" against ten "yes" is wrong; before 2021 the answer alone was normalised."""
    assert accuracy("Yes", ["yes"] * 10) == 0.0
    assert accuracy("Yes", ["yes"] * 10, "legacy") == 1.0
    assert accuracy("yes", ["yes"] * 9 + ["Yes."]) == 1.0
    assert accuracy("a dog\n", ["dog"] * 5 + ["the dog"] * 5) == 1.0
    assert accuracy("a dog", ["the dog"] * 5 + ["dog"] * 5, "legacy") == 1.0
    assert accuracy("a dog", ["the dog"] * 8 + ["cat"] * 2, "legacy") == 0.0  # references kept their articles
    assert accuracy("a dog", ["the dog"] * 8 + ["cat"] * 2) == 1.0
    assert accuracy("t-shirt", ["t-shirt"] * 8 + ["cat"] * 2, "legacy") == 1.0  # but not their marks


def annotation(number: int, answers: list[str], question_type: str = "what", answer_type: str = "other") -> Annotation:
    return Annotation(
        id=number, question_type=question_type, answer_type=answer_type, answers=tuple(answers),
        common=max(answers, key=answers.count),
    )  # fmt: skip


def test_types_and_pairs_are_told_apart() -> None:
    known = [
        annotation(1, ["yes"] * 10, "is", "yes/no"), annotation(2, ["no"] * 8 + ["yes"] * 2, "is", "yes/no"),
        annotation(3, ["red"] * 5 + ["blue"] * 5),
    ]  # fmt: skip
    answers = {1: "yes", 2: "yes", 3: "red"}
    assert score(answers, known) == {
        "overall": round(100 * (1 + 0.6 + 1) / 3, 2), "per_answer_type": {"other": 100.0, "yes/no": 80.0},
        "per_question_type": {"is": 80.0, "what": 100.0},
    }  # fmt: skip
    assert consistency(answers, known, [(1, 2), (1, 9)], "official") == 100.0
    assert consistency({**answers, 2: "maybe"}, known, [(1, 2), (1, 3)], "official") == 50.0
    with pytest.raises(BadDataError, match="none of the 1 pairs"):
        consistency(answers, known, [(8, 9)], "official")


def test_a_list_of_answers_is_made_and_judged() -> None:
    known = [annotation(each, ["The dog."] * 10) for each in range(9)] + [annotation(9, ["cat"] * 8 + ["dog"] * 2)]
    assert vocabulary(known) == ["dog"]
    assert vocabulary(known, least=1) == ["dog", "cat"]
    assert ceiling(known, ["The dog.", "cat"]) == 1.0
    assert ceiling(known, ["dog"]) == pytest.approx(0.06)  # unanimous references are not normalised
    assert ceiling(known, ["Dog"]) == pytest.approx(0.06)  # as the run's targets are
    assert ceiling(known, ["bird"]) == 0.0
    assert priors(known, known)["most frequent of its question type"] == pytest.approx(0.06)


def official(folder: Path) -> list[str]:
    questions = [{"question_id": each, "image_id": each // 10, "question": "what is it?"} for each in (10, 11, 20)]
    people = [{"answer": "cat", "answer_id": 1 + each} for each in range(10)]
    annotations = [
        {"question_id": each["question_id"], "question_type": "what is", "answer_type": "other", "answers": people,
         "multiple_choice_answer": "cat"} for each in questions
    ]  # fmt: skip
    answers = [{"question_id": 10, "answer": "cat"}, {"question_id": 11, "answer": "dog"},
               {"question_id": 20, "answer": "cat"}]  # fmt: skip
    for name, values in (("q", {"questions": questions}), ("n", {"annotations": annotations}), ("a", answers)):
        (folder / f"{name}.json").write_text(json.dumps(values))
    options = {"--answers": "a.json", "--annotations": "n.json", "--questions": "q.json"}
    return ["vqa", "evaluate", *(part for name, file in options.items() for part in (name, str(folder / file)))]


def test_a_submission_is_scored_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = official(tmp_path)
    assert run_command(dispatch, [*command, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found == {"overall": 66.67, "per_answer_type": {"other": 66.67}, "per_question_type": {"what is": 66.67}}
    assert run_command(dispatch, command) == 0
    assert "accuracy 66.67 on 3 questions" in capsys.readouterr().out
    assert run_command(dispatch, [*command, "--rules", "leagcy"]) == 2
    assert "legacy" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "values", "words"),
    [
        ("a", [{"question_id": 10, "answer": "cat"}], "expected an answer to each of 3 questions; 2 have none"),
        ("a", [{"question_id": each, "answer": "cat"} for each in (10, 11, 20, 30)], "1 are of other questions"),
        ("a", [{"question_id": each, "answer": "<unk>"} for each in (10, 11, 20)], "found <unk> for 3 questions"),
        ("a", [{"question_id": 10, "answer": "cat"}] * 2, "expected distinct question ids, found 10 twice"),
        ("a", {"10": "cat"}, "expected a list of {question_id, answer}, found dict"),
        ("a", [{"question_id": 10, "answer": 3}], "a.json[0]: expected answer (str), found int"),
        ("n", {"annotations": []}, "expected VQA's format {'annotations': [...]} with entries"),
        (
            "n",
            {"annotations": [{"question_id": 10, "answers": [{"answer": "cat"}]}]},
            "an annotation for every question, 2 have none",
        ),
        ("q", [], "expected VQA's format {'questions': [...]}"),
        ("q", {"questions": [{"question_id": 1, "question": "?"}]}, "expected image_id (int), found nothing"),
    ],
)
def test_what_is_wrong_with_files_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, values: object, words: str
) -> None:
    command = official(tmp_path)
    (tmp_path / f"{name}.json").write_text(json.dumps(values))
    assert run_command(dispatch, command) == 1
    assert words in capsys.readouterr().err


def test_lists_that_go_around_are_read_and_pickles_are_not(tmp_path: Path) -> None:
    (tmp_path / "ans2label.json").write_text(json.dumps({"cat": 1, "": 0, "dog": 2}))
    assert read_answers(tmp_path / "ans2label.json") == ["", "cat", "dog"]
    (tmp_path / "list.txt").write_text("cat\ndog\n")
    assert read_answers(tmp_path / "list.txt") == ["cat", "dog"]
    for name, content, words in (
        ("ans.pkl", "x", "pickles may run code"), ("gap.json", '{"cat": 1}', "from 0 to 0"),
        ("twice.json", '["cat", "cat"]', "found 'cat' twice"), ("none.json", "[]", "expected a list of answers"),
    ):  # fmt: skip
        (tmp_path / name).write_text(content)
        with pytest.raises(BadDataError, match=words):
            read_answers(tmp_path / name)


def test_answers_are_counted_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    official(tmp_path)
    command = [
        "vqa",
        "answers",
        "--annotations",
        str(tmp_path / "n.json"),
        "--least",
        "1",
        "--out",
        str(tmp_path / "l.json"),
    ]
    assert run_command(dispatch, command) == 0
    assert "ceiling 100.00 on 3 questions" in capsys.readouterr().out
    assert read_answers(tmp_path / "l.json") == ["cat"]


def test_questions_are_read_in_their_order(tmp_path: Path) -> None:
    official(tmp_path)
    found = read_questions(tmp_path / "q.json")
    assert found[2] == Question(id=20, picture=2, text="what is it?")
    require_complete({10: "a", 11: "b", 20: "c"}, [each.id for each in found], "here")


def test_the_metric_is_the_score_of_a_submission() -> None:
    from seqarena.vqa.metric import VqaMetric  # noqa: PLC0415  # takes a second

    references = [
        {"question_id": 1, "answers": ["yes"] * 10, "question_type": "is", "answer_type": "yes/no"},
        {"question_id": 2, "answers": ["red"] * 2 + ["blue"] * 8, "question_type": "what", "answer_type": "other"},
    ]
    predictions = [{"question_id": 1, "answer": "Yes"}, {"question_id": 2, "answer": "red"}]
    found = VqaMetric("official").compute(predictions=predictions, references=references)
    assert found == {"overall": 30.0, "per_answer_type": {"other": 60.0, "yes/no": 0.0},
                     "per_question_type": {"is": 0.0, "what": 60.0}}  # fmt: skip
    assert VqaMetric("legacy").compute(predictions=predictions, references=references)["overall"] == 80.0
    predictions[1]["question_id"] = 3
    with pytest.raises(WrongUseError, match="and 1 without a prediction, and 1 other predictions"):
        VqaMetric("official").compute(predictions=predictions, references=references)
    with pytest.raises(WrongUseError, match="expected official or legacy"):
        VqaMetric("offical")
