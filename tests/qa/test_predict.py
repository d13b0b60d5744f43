"""A finished run answers another file: the scores that it had on its own, files without answers, what it refuses."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from seqarena.common.errors import run_command
from seqarena.common.runs.results import Result
from seqarena.qa.data import entailment, world
from seqarena.qa.run import Run
from seqarena.scripts.seqarena import dispatch
from tests.earlier import LATER
from tests.qa.questions import written
from tests.qa.test_training import RUNS, measure


def dev(task: str) -> Any:
    """The test questions of the generated world, as the official JSON has them."""
    return world.squad(20, 0, "dev", unanswerable=task == "squad2")


def predicted(run: Path, file: Path, out: Path, *more: str) -> int:
    return run_command(dispatch, ["qa", "predict", str(run), "--file", str(file), "--out", str(out), "--json", *more])


def scores(capsys: pytest.CaptureFixture[str]) -> dict[str, float]:
    found: dict[str, float] = json.loads(capsys.readouterr().out.splitlines()[-1])["scores"]
    return found


@pytest.mark.parametrize("task", ["squad1", "squad2"])
def test_its_own_test_questions_score_what_they_did(
    task: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = measure(RUNS[task], tmp_path / "run")
    assert predicted(tmp_path / "run", written(tmp_path / "dev.json", dev(task)), tmp_path / "out") == 0
    found = scores(capsys)
    assert found["f1"] / 100 == pytest.approx(result.metrics["f1"])
    names = ["predictions.json", "nbest_predictions.json"]
    if task == "squad2":
        assert found["best_f1"] / 100 == pytest.approx(result.metrics["oracle_f1"])
        names += ["answers.json", "null_odds.json"]
    for name in names:
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "run" / "outputs" / name).read_bytes()
    some, asked = dev(task), iter(range(20))
    for paragraph in some["data"][0]["paragraphs"]:
        for each in paragraph["qas"]:
            if next(asked) % 3:
                each.pop("answers")
                each.pop("is_impossible", None)
    assert predicted(tmp_path / "run", written(tmp_path / "some.json", some), tmp_path / "some") == 0
    found = scores(capsys)
    assert result.example_scores is not None
    assert found["total"] == 7
    assert found["f1"] / 100 == pytest.approx(sum(result.example_scores[::3]) / 7), "a question without gold answers"
    assert len(json.loads((tmp_path / "some" / "predictions.json").read_text())) == 20


def test_how_an_answer_is_chosen_may_be_set_anew_and_nothing_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    measure(RUNS["squad2"], tmp_path / "run")
    file = written(tmp_path / "dev.json", dev("squad2"))
    assert predicted(tmp_path / "run", file, tmp_path / "out", "--data.null-threshold", "-1000") == 0
    found = scores(capsys)
    assert (found["HasAns_f1"], found["NoAns_f1"]) == (0.0, 100.0)
    assert predicted(tmp_path / "run", file, tmp_path / "more", "--data.length", "40") == 2
    assert "data.length: fixed when the run was trained" in capsys.readouterr().err
    assert predicted(tmp_path / "run", file, tmp_path / "out") == 2
    assert "expected a folder that is empty or not there yet" in capsys.readouterr().err


def test_questions_without_answers_are_answered_and_not_scored(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    measure(RUNS["squad1"], tmp_path / "run")
    questions = dev("squad1")
    for paragraph in questions["data"][0]["paragraphs"]:
        for each in paragraph["qas"]:
            del each["answers"]
    assert predicted(tmp_path / "run", written(tmp_path / "test.json", questions), tmp_path / "out") == 0
    assert scores(capsys) == {}
    assert len(json.loads((tmp_path / "out" / "predictions.json").read_text())) == 20


def pairs(path: Path, *, labelled: bool) -> Path:
    rows = [
        {"sentence1": premise, "sentence2": hypothesis} | ({"gold_label": label} if labelled else {})
        for premise, hypothesis, label in entailment.pairs(30, 0, 1)
    ]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def test_pairs_are_labelled_as_the_server_takes_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = measure(RUNS["mnli"], tmp_path / "run")
    assert predicted(tmp_path / "run", pairs(tmp_path / "dev.jsonl", labelled=True), tmp_path / "dev") == 0
    assert scores(capsys) == {"accuracy": pytest.approx(100 * result.metrics["accuracy"]), "total": 30}
    assert predicted(tmp_path / "run", pairs(tmp_path / "test.jsonl", labelled=False), tmp_path / "test") == 0
    assert scores(capsys) == {}
    table = (tmp_path / "test" / "predictions.tsv").read_text()
    assert table == (tmp_path / "dev" / "predictions.tsv").read_text()
    assert table.startswith("index\tprediction\n0\t")
    (tmp_path / "glue.tsv").write_text("index\tsentence1\tsentence2\n0\tall dogs run\tsome dogs run\n")
    assert predicted(tmp_path / "run", tmp_path / "glue.tsv", tmp_path / "glue") == 0
    assert len((tmp_path / "glue" / "predictions.tsv").read_text().splitlines()) == 2


def test_what_cannot_answer_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run: Run = replace(RUNS["squad1"], train=replace(RUNS["squad1"].train, steps=2, eval_every=2))
    measure(run, tmp_path / "run")
    file = written(tmp_path / "dev.json", dev("squad1"))
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    result = {name: value for name, value in result.items() if name not in LATER}
    result["format"] = 1

    capsys.readouterr()

    def refused(where: Path, file: Path, message: str) -> None:
        assert predicted(where, file, tmp_path / "out") in (1, 2)
        told = capsys.readouterr().err
        assert message in told
        assert told.count("\n") == 1
        assert not (tmp_path / "out").exists()

    refused(tmp_path, file, "expected the directory of a finished run of squad1 or squad2 or mnli; it contains no run")
    refused(
        tmp_path / "run", pairs(tmp_path / "pairs.jsonl", labelled=True), "line 1: expected id (str), found nothing"
    )
    refused(tmp_path / "run", tmp_path / "none.json", "does not exist")
    (tmp_path / "run" / "result.json").write_text(
        json.dumps(result | {"task": "wire", "package": "summarization", "run": result["run"] | {"task": "wire"}})
    )
    refused(tmp_path / "run", file, "found one of wire")
    (tmp_path / "run" / "result.json").write_text(
        json.dumps(result | {"status": "diverged", "score": None, "metrics": {}, "example_scores": []})
    )
    refused(tmp_path / "run", file, "this one diverged")
    (tmp_path / "run" / "result.json").unlink()
    refused(tmp_path / "run", file, "this one is not finished; repeat the command that began it to resume it")
    (tmp_path / "run" / "result.json").write_text(json.dumps(result))
    assert Result.read(tmp_path / "run") is not None
    words = tmp_path / "run" / "checkpoint" / "vocabulary" / "vocab.txt"
    whole = words.read_text()
    first, *others = whole.splitlines()
    words.write_text("\n".join([*others, first]))
    refused(tmp_path / "run", file, "vocab.txt is damaged or was changed: checksums.json has another sha256")
    words.write_text(whole)
    (weights,) = (tmp_path / "run" / "checkpoint").glob("chosen-*")
    weights.write_bytes(weights.read_bytes()[:-8])
    refused(tmp_path / "run", file, "is damaged: its bytes do not have the checksum in its name")
    (tmp_path / "run" / "run.json").unlink()
    (tmp_path / "run" / "checkpoint" / "vocabulary" / "tokenizer.json").unlink()
    words.unlink()
    refused(tmp_path / "run", file, "does not exist; expected a folder with one of spiece.model")
