"""The benchmark beside the authors' LRA code, with a stand-in for that code."""

import json
import sys
from pathlib import Path

import pytest
import torch

from seqarena.common.errors import WrongUseError
from seqarena.lra.benchmark import compare, parse, their_model
from seqarena.scripts.benchmark import run

STAND_IN = '''
import torch
from kept import KEPT

class ModelForSC(torch.nn.Module):
    """Logits are a table's row for the number of real tokens."""

    def __init__(self, config):
        super().__init__()
        from late import check

        check(config)
        KEPT.append(config)
        self.made = tuple(KEPT)
        self.length = config["max_seq_len"]
        self.table = torch.nn.Embedding(self.length + 1, config["num_classes"])

    def forward(self, tokens, mask, labels):
        assert mask.dtype == torch.float32 and tokens.shape[1] == mask.shape[1] == self.length
        logits = self.table(mask.sum(dim=1).long())
        return {"loss": torch.nn.functional.cross_entropy(logits, labels, reduction="none")}
'''
SMALL = """--data.train 300 --data.validation 20 --data.test 20 --data.max-depth 2 --data.longer-than 3
           --data.shorter-than 12 --model.dim 8 --model.ffn-dim 8 --train.batch-size 8 --steps 8 --seeds 2""".split()


@pytest.fixture
def code(tmp_path: Path) -> Path:
    """A folder like the authors'."""
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "model_wrapper.py").write_text(STAND_IN)
    (folder / "kept.py").write_text("KEPT = []\n")
    (folder / "late.py").write_text("def check(config):\n    assert config['attn_type'] != 'performer', 'not\\nhere'\n")
    return folder


def test_both_are_trained_and_compared(code: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["lra-code", "--code", str(code), "--data-folder", str(tmp_path), *SMALL, "--attention", "softmax"]
    before = list(sys.path)
    assert run([*words, "linformer", "--json"]) == 0
    assert sys.path == before
    found = json.loads(capsys.readouterr().out)
    assert list(found) == ["softmax", "linformer"]
    for each in found.values():
        assert len(each["losses"]) == 2
        assert all(len(losses) == 8 and min(losses) > 0 for pair in each["losses"] for losses in pair)
        assert min(each["seconds"]) > 0
    ours, theirs = zip(*(found[name]["losses"][0] for name in found), strict=True)
    assert theirs[0] == theirs[1]  # the stand-in has no attention: the batches are the same
    assert ours[0] != ours[1]
    assert run(words) == 0
    shown = capsys.readouterr().out
    assert all(word in shown for word in ("softmax", "seed noise", "the last 2 of 8 steps"))
    words[words.index("--steps") + 1] = "7"  # parts of 1, 2, 2 and 2 steps
    assert run(words) == 0
    assert "the last 2 of 7 steps" in capsys.readouterr().out
    losses = [[[float(step) for step in range(7)]] * 2] * 2
    assert compare({"losses": losses}, 3)[0] == [5.5, 5.5]


def test_sizes_of_the_other_model_are_those_of_ours(code: Path) -> None:
    runs = parse(["--code", str(code)])[1]
    sizes = {"softmax": {}, "nystromformer": {"num_landmarks": 8}, "linformer": {"linformer_k": 32},
             "performer": {"rp_dim": 32}}  # fmt: skip
    assert list(runs) == list(sizes)
    for name in ("softmax", "nystromformer", "linformer"):
        model = runs[name][0].model
        made = their_model(code, model, name)
        (config,) = made.made  # no state is left of the model before
        expected = {"transformer_dim": 64, "num_head": 2, "head_dim": 32, "transformer_hidden_dim": 128,
                    "num_layers": 2, "max_seq_len": 32, "dropout_prob": 0.1, "attention_dropout": 0.1}  # fmt: skip
        assert (expected | sizes[name]).items() <= config.items()
        assert not {"model_wrapper", "kept", "late"} & set(sys.modules)
    assert (runs["nystromformer"][0].model.attention.landmarks, runs["linformer"][0].model.attention.rank) == (8, 32)
    assert runs["performer"][2].model.attention.features == 32
    assert [each.seed for each in runs["performer"]] == [0, 1, 2]
    long = parse(["--code", str(code), "--preset", "xiong2021"])[1]
    assert (long["nystromformer"][0].model.attention.landmarks, long["linformer"][0].model.attention.rank) == (64, 256)


def test_the_difference_is_in_units_of_the_noise() -> None:
    losses = [([9.0, 9.0, 9.0, own], [9.0, 9.0, 9.0, other]) for own, other in ((1.0, 4.0), (3.0, 6.0))]
    ours, theirs, difference = compare({"losses": losses}, 3)
    assert (ours, theirs) == ([1.0, 3.0], [4.0, 6.0])
    assert difference == pytest.approx(-3 / 2**0.5)
    assert compare({"losses": losses}, 0)[2] == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--steps 3", "--steps: expected at least 4, found 3"),
        ("--seeds 1", "--seeds: expected at least 2, found 1"),
        ("--attention dnas", "variant of the authors"),
        ("--preset qick", "nearest: quick"),
        ("--preset lra-jax", "expected the model of preset xiong2021"),
        ("--model.positions sinusoidal", "only its sizes may differ"),
        ("--model.max-length 8", "expected at least 30"),
        ("--optm.lr 1", "unknown field"),
    ],
)
def test_bad_input_is_one_error(words: str, message: str, code: Path) -> None:
    with pytest.raises(WrongUseError, match=message):
        parse(["--code", str(code), *words.split()])


def test_code_that_is_missing_or_fails_is_one_error_before_training(
    code: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["lra-code", *SMALL, "--data-folder", str(tmp_path / "data"), "--code"]
    with pytest.raises(WrongUseError, match=r"no performer of LRA/code .*\(AssertionError: not\)$"):
        run([*words, str(code)])
    with pytest.raises(WrongUseError, match=r"No module named 'model_wrapper'"):
        run([*words, str(tmp_path)])
    (code / "model_wrapper.py").write_text("import torch\nclass ModelForSC(torch.nn.Module):\n    pass\n")
    with pytest.raises(WrongUseError, match="no softmax of LRA/code"):
        run([*words, str(code)])
    assert capsys.readouterr().err == ""
    assert not (tmp_path / "data").exists()
    assert torch.is_grad_enabled()
