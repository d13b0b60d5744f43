"""From a run on VQA v2's files to a submission: what it answers, what it leaves, what it refuses."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from seqarena.common.errors import WrongUseError, run_command
from seqarena.common.training.optim import Stepped, rate
from seqarena.scripts.seqarena import dispatch
from seqarena.vqa.data import Layer, VqaData
from seqarena.vqa.data.scenes import Scenes
from seqarena.vqa.data.written import write_scenes
from seqarena.vqa.fusion import Fusion
from seqarena.vqa.model import Answerer, LastWord, Model
from seqarena.vqa.presets import BUTD, PRESETS
from tests.earlier import LATER

QUESTIONS = "v2_OpenEnded_mscoco_val2014_questions.json"
ANNOTATIONS = "v2_mscoco_val2014_annotations.json"
SMALL = Model(fusion=Fusion(kind="primary"), word_dim=4, question_dim=5, joint_dim=6, answer_dim=7,
              question_attention_dim=3)  # fmt: skip


def train(folder: Path, *more: str) -> list[str]:
    """Returns the command of a short run on the files of a folder."""
    return [
        "vqa", "vqa2", "--preset", "quick", "--data.path", str(folder), "--data.regions",
        *(str(folder / name) for name in "ABC"), "--data.least", "1", "--data.held-out", "0.3", "--train.steps", "4",
        "--train.batch-size", "12", "--train.eval-every", "2", "--optim.schedule.warmup", "1", "--attention", "dnas",
        "--runs", str(folder.parent / "runs"), "--out", str(folder.parent / "run"), *more,
    ]  # fmt: skip


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with files and a finished run on them; read it, never change it."""
    folder = tmp_path_factory.mktemp("trained")
    write_scenes(folder, 24).rename(folder / "files")
    assert run_command(dispatch, train(folder / "files")) == 0
    return folder


def submit(trained: Path, out: Path, *more: str, questions: Path | None = None) -> list[str]:
    asked = questions or trained / "files" / QUESTIONS
    return ["vqa", "submit", "--run", str(trained / "run"), "--questions", str(asked), "--out", str(out), *more]


def test_a_run_leaves_what_the_server_would_score(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its accuracy, its answers' by the evaluator, and those of a submission are the same."""
    result = json.loads((trained / "run" / "result.json").read_text())
    outputs = trained / "run" / "outputs"
    told = json.loads((outputs / "accuracy.json").read_text())
    assert told["overall"] == pytest.approx(100 * result["score"], abs=0.005)
    scored = ["vqa", "evaluate", "--questions", str(trained / "files" / QUESTIONS), "--annotations",
              str(trained / "files" / ANNOTATIONS), "--json"]  # fmt: skip
    assert run_command(dispatch, [*scored, "--answers", str(outputs / "answers.json")]) == 0
    assert json.loads(capsys.readouterr().out) == told
    assert run_command(dispatch, submit(trained, tmp_path / "answers.json")) == 0
    assert "12 answers on 4 pictures" in capsys.readouterr().out
    assert json.loads((tmp_path / "answers.json").read_text()) == json.loads((outputs / "answers.json").read_text())
    masses = json.loads((outputs / "key_masses.json").read_text())
    assert masses["pictures"] == 4
    for view in ("view 2", "view 3"):
        assert sum(masses[view]["histogram"]) == 4 * 8
        assert masses[view]["keys_below_bound"] == 0
        assert 1 / 8 <= masses[view]["key_mass_least"] <= masses[view]["key_mass_median"]
        assert 0 < masses[view]["keys_used"] <= 1
    assert {"yes/no", "other", "key_mass_seen"} <= set(result["metrics"])
    assert set(result["floors"]) == {
        "most frequent answer", "most frequent of its answer type", "most frequent of its question type",
        "nearest training example",
    }  # fmt: skip


def test_submissions_that_cannot_be_are_refused(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "answers.json"
    files = trained / "files"
    others = ["--regions", *(str(files / name) for name in "ACB")]
    broken = tmp_path / "broken.json"
    questions = json.loads((files / QUESTIONS).read_text())
    questions["questions"][0]["image_id"] = 9_999
    broken.write_text(json.dumps(questions))
    for command, words in (
        (
            submit(trained, out, *others),
            "found regions of scenes A, scenes C, scenes B",
        ),
        (submit(trained, out, questions=broken), "1 of 5 pictures have no regions, such as 9999"),
        (submit(trained, tmp_path / "no" / "answers.json"), "expected a file in an existing folder"),
        (submit(trained, out, "--missing", "-1"), "--missing: expected at least 0"),
        (
            [*submit(trained, out), "--run", str(tmp_path)],
            "expected the directory of a finished run of vqa2; it contains no run",
        ),
    ):
        assert run_command(dispatch, command) in {1, 2}
        assert words in capsys.readouterr().err
    assert not out.exists()
    assert run_command(dispatch, submit(trained, out, "--missing", "1", questions=broken)) == 0


def test_files_that_changed_are_refused_by_a_run_and_its_submission(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Another text of a question is not what the model knows."""
    shutil.copytree(trained, tmp_path / "copy")
    files = tmp_path / "copy" / "files"
    questions = json.loads((files / QUESTIONS).read_text())
    questions["questions"][0]["question"] += " really"
    (files / QUESTIONS).write_text(json.dumps(questions))
    run = tmp_path / "copy" / "run"
    values = json.loads((run / "result.json").read_text())
    values["run"]["data"] |= {"path": str(files), "regions": [str(files / name) for name in "ABC"]}
    values = {name: value for name, value in values.items() if name not in LATER}
    (run / "result.json").write_text(json.dumps(values | {"format": 1}))
    assert run_command(dispatch, submit(tmp_path / "copy", tmp_path / "answers.json")) == 1
    assert "was trained on data of sha256" in capsys.readouterr().err
    assert run_command(dispatch, train(files)) == 2
    assert "holds another run: data.path is" in capsys.readouterr().err
    (run / "result.json").unlink()
    (run / "run.json").write_text(json.dumps(values["run"]))
    assert run_command(dispatch, train(files)) == 1
    assert "this run began on data of sha256" in capsys.readouterr().err


def loaded(tmp_path: Path, **changes: Any) -> VqaData:
    made = Scenes(scenes=6, held_out=4).load(tmp_path)
    return VqaData(
        splits=made.splits, answers=made.answers, words=made.words, checksum=made.checksum, **changes
    )  # fmt: skip


def test_what_the_data_bring_is_where_training_begins(tmp_path: Path) -> None:
    """Words' vectors, and detectors' layers with a tenth of the rate."""
    generator = np.random.default_rng(0)
    words = len(loaded(tmp_path).words)
    vectors = generator.standard_normal((words, 4)).astype(np.float32)
    layers = [Layer(weight=generator.standard_normal((9, 18)).astype(np.float32), bias=np.full(9, view, np.float32))
              for view in range(3)]  # fmt: skip
    config = Model(**{**SMALL.__dict__, "fc7": 9})
    model = Answerer(config, loaded(tmp_path, vectors=vectors, fc7=layers))
    np.testing.assert_array_equal(model.embedding.weight.detach(), vectors)
    features = torch.randn(2, 3, 8, 18)
    seen = model.box_inputs(features, torch.zeros(2, 3, 8, 2))
    for view, layer in enumerate(layers):
        expected = (features[:, view] @ torch.from_numpy(layer.weight).T + torch.from_numpy(layer.bias)).relu()
        torch.testing.assert_close(seen[:, view], expected)
    assert [each.multiplier for each in model.fc7] == [0.1] * 3
    slower = Answerer(replace(config, fc7_lr_multiplier=0.5), loaded(tmp_path, vectors=vectors, fc7=layers))
    assert [each.multiplier for each in slower.fc7] == [0.5] * 3
    assert [each.multiplier for each in Answerer(config, loaded(tmp_path)).fc7] == [1.0] * 3
    for wrong, words_of_it in (
        ({"vectors": vectors[:, :3]}, "model.word_dim: expected 3, the width of data.glove, found 4"),
        ({"fc7": layers[:2]}, "data.fc7 has 2 layers"),
        ({"fc7": [Layer(weight=np.zeros((8, 18), np.float32), bias=np.zeros(8, np.float32))] * 3}, "data.fc7, view 0"),
    ):
        with pytest.raises(WrongUseError, match=words_of_it):
            Answerer(config, loaded(tmp_path, **wrong))


def test_butd_is_the_formula(tmp_path: Path) -> None:
    """Question by question; dropout off. The GRU is read at the last word, whatever pads behind it."""
    torch.manual_seed(0)
    config = Model(backbone="butd", fusion=Fusion(kind="primary"), word_dim=4, question_dim=5, joint_dim=6,
                   answer_dim=7, attention_dropout=0.2, answer_dropout=0.5)  # fmt: skip
    model = Answerer(config, loaded(tmp_path)).double().eval()
    features, real = torch.randn(2, 3, 4, 18, dtype=torch.float64), torch.ones(2, 3, 4, dtype=torch.bool)
    words, picture = torch.tensor([[3, 4, 0, 0], [1, 2, 3, 4]]), torch.tensor([1, 0])
    logits = model(words, picture, features, torch.zeros(2, 3, 4, 2, dtype=torch.float64), real)
    assert isinstance(model.question, LastWord)
    for question, count in enumerate((2, 4)):
        known = model.embedding(words[question, :count])[None]
        asking = model.question.reader(known)[1][0, 0]
        boxes = features[picture[question], 0]
        product = model.box_in(boxes).relu() * model.question_in(asking).relu()
        looked = model.box_score(product)[:, 0].softmax(dim=0) @ boxes
        joint = model.picture_out(looked).relu() * model.question_out(asking).relu()
        (branch,) = model.branches
        torch.testing.assert_close(logits[question], branch[3](branch[0](joint).relu()))
    model.train()
    assert not torch.equal(*(model(words, picture, features, torch.zeros(2, 3, 4, 2, dtype=torch.float64), real)
                             for _ in range(2)))  # fmt: skip


def test_published_presets_are_the_recipe() -> None:
    pythia, butd = (PRESETS["vqa2"][name].run for name in ("pythia-3x100", "butd-small"))
    assert (pythia.train.steps, pythia.train.batch_size) == (22_000, 512)
    assert (pythia.optim.name, pythia.optim.lr, pythia.optim.clip, pythia.optim.eps) == ("adamax", 0.01, 0.25, 1e-8)
    assert isinstance(pythia.optim.schedule, Stepped)
    assert [rate(pythia.optim.schedule, step, 22_000) for step in (0, 1_000, 15_000)] == pytest.approx([0.2, 1, 0.1])
    assert (pythia.data.boxes, pythia.data.width, pythia.data.answer_count) == (100, 2_048, 3_129)  # type: ignore[attr-defined]
    assert (pythia.model.question_dim, pythia.model.joint_dim, pythia.model.answer_dim) == (1_024, 5_000, 300)
    assert (butd.model.attention_dropout, butd.model.answer_dropout, butd.optim.lr) == (0.2, 0.5, 0.002)
    assert butd.data.boxes == 36  # type: ignore[attr-defined]
    assert BUTD.joint_dim == 1_024
    assert butd.optim.bounded_lr_multiplier == pythia.optim.bounded_lr_multiplier == 1.0
    assert pythia.optim.schedule.milestones == (15_000, 18_000, 20_000, 21_000)
    alone = replace(pythia, data=replace(pythia.data, path="vqa", regions=("one",)))  # type: ignore[call-arg]
    with pytest.raises(WrongUseError, match=r"attention needs at least two detectors, data.regions has 1"):
        alone.check()
    replace(alone, model=replace(alone.model, fusion=Fusion(kind="primary"))).check()
    with pytest.raises(WrongUseError, match=r"apply only to pythia; omit for butd"):
        Model(backbone="butd", glimpses=1).check_data(pythia.data)
    with pytest.raises(WrongUseError, match=r"model.attention_dropout and model.answer_dropout"):
        Model(answer_dropout=1.0).check_data(pythia.data)
