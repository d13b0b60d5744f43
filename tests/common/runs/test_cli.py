"""What a person types, and what they read back."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from seqarena.common.errors import BadDataError, WrongUseError, damage, interrupt_advice, run_command
from seqarena.common.runs.cli import build_run, choose, main, run_package
from seqarena.common.runs.config import field_paths
from seqarena.common.runs.fields import set_fields
from seqarena.common.runs.help import list_fields
from seqarena.common.training.optim import fit_schedule
from seqarena.lra.__main__ import PACKAGE
from seqarena.lra.run import Run
from seqarena.scripts.packages import PACKAGES, find_package
from seqarena.scripts.seqarena import dispatch
from seqarena.vqa.formats import count

TINY = (
    "--data.train 300 --data.validation 20 --data.test 30 --data.longer-than 3 --data.shorter-than 12 "
    "--data.max-depth 2 --model.dim 8 --model.ffn-dim 8 --model.layers 1 --train.batch-size 8 --train.steps 3 "
    "--optim.schedule.warmup 1"
).split()


def parsed(*fields: str, attention: str | None = None, norm: str | None = None) -> Run:
    run = set_fields(choose(PACKAGE, "listops", "quick", attention, norm, 3), fields, "seqarena lra")
    assert isinstance(run, Run)
    return run


def test_any_field_is_set_by_its_path() -> None:
    run = parsed("--model.attention.scale", "8", "--optim.lr", "3e-4", "--train.batch_size=16", attention="x3")
    assert run.model.attention.scale == 8.0  # type: ignore[attr-defined]
    assert (run.optim.lr, run.train.batch_size, run.seed) == (3e-4, 16, 3)
    assert parsed("--optim.betas", "0.8", "0.9").optim.betas == (0.8, 0.9)
    assert parsed("--optim.clip", "None").optim.clip is None
    assert parsed("--optim.clip", "none").optim.clip is None
    assert parsed("--optim.clip=none", "--optim.lr", "1", "--optim.lr", "2").optim.lr == 2
    assert parsed("--train.compile").train.compile
    assert not parsed("--train.compile", "no").train.compile
    assert not parsed("--model.norm.no-final").model.norm.final  # type: ignore[attr-defined]
    assert parsed("--model.norm.tau", "0.5", norm="deescalated").model.norm.tau == 0.5  # type: ignore[attr-defined]
    assert parsed() == choose(PACKAGE, "listops", "quick", None, None, 3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("lra listop", "unknown task 'listop' of lra; nearest: listops"),
        ("lar listops", "unknown package or command 'lar'; nearest: lra"),
        ("lra listops --attention dnass", "unknown attention 'dnass'; nearest: dnas"),
        ("lra listops --norm prr", "unknown norm 'prr'; nearest: pre"),
        ("lra listops --sede 1", "unknown field --sede; nearest: --seed"),
        ("sweep lra listops --sedes 0 1", "unknown field --sedes; nearest: --seeds"),
        ("leaderboard --overveiw", "unknown option --overveiw; nearest: --overview; see seqarena leaderboard --help"),
        ("verify softmax --checks", "unknown option --checks; see seqarena verify --help"),
        ("report --runz=x", "unknown option --runz; nearest: --runs; see seqarena report --help"),
        ("leaderboard results", "unexpected results; the folder of runs is named by --runs results; see seqarena"),
        ("lra listops --norm pre-norm", "unknown norm 'pre-norm'; nearest: pre"),
        (
            "lra listops --attention mine.py",
            "attention mine.py: expected FILE.py:CLASS or PACKAGE.MODULE:CLASS, as in mine.py:MyAttention",
        ),
        ("lra listops --attention mine.Offset", "PACKAGE.MODULE:CLASS, as in mine:Offset"),
        ("lra listops --norm mine.py", "as in mine.py:MyNorm"),
        ("lra listops --atention dnas", "unknown field --atention; nearest: --attention"),
        ("lra listops --preset quik", "unknown preset 'quik' of lra listops; nearest: quick"),
        ("lra listops --optm.lr 3", "unknown field --optm.lr; nearest: --optim.lr"),
        (
            "lra listops --model.norm.tau 1",
            "unknown field --model.norm.tau; tau is a field of deescalated; add --norm deescalated",
        ),
        (
            "lra listops --model.attention.u 1",
            "unknown field --model.attention.u; u is a field of hnas; add --attention hnas",
        ),
        ("lra listops --model.attention.scale 1", "scale is a field of x1, x2, x3 and 14 more; add --attention x1"),
        ("lra listops --task other", "unknown field --task"),
        ("lra listops --optim.lr abc", "--optim.lr abc: expected a number"),
        ("lra listops --optim.lr none", "--optim.lr none: expected a number;"),
        ("lra listops --train.steps 1.5", "expected a whole number;"),
        ("lra listops --train.compile maybe", "expected true or false;"),
        (
            "lra listops --optim.name adamww",
            "expected one of adamw, bert_adam, adam, adamax, lamb (nearest: adamw); see",
        ),
        ("lra listops --optim.lr", "--optim.lr: expected one value, a number"),
        ("lra listops --optim.lr 1 2", "expected one value, a number"),
        ("lra listops --optim.betas 1", "expected 2 values"),
        ("lra listops --train 1", "unknown field --train; it is a group of fields: --train.steps, --train.batch-size"),
        ("lra listops --optim.lr.x 1", "unknown field --optim.lr.x"),
        ("lra listops --optim.no-lr", "unknown field --optim.no-lr"),
        (
            "lra listops --train.steps 9 --optim.betas 0.9 x --optim.lr 1",
            "seqarena: --optim.betas 0.9 x: expected a number",
        ),
        ("lra listops --train.no-steps", "unknown field --train.no-steps"),
        ("lra listops --seed x", "seqarena: --seed: expected a whole number, found 'x'; see seqarena lra --help"),
        (
            "lra listops --attention hnas --model.attention.u 3",
            "seqarena: --model.attention.u 3: expected a number from 0 to 1, found 3.0",
        ),
        ("lra listops more", "unexpected 'more'"),
        ("lra --optim.lr 3e-4 listops", "the task comes first: seqarena lra TASK --optim.lr"),
        ("lra --hlep", "see seqarena lra --help"),
        ("lra listops --model.attention dnas", "a whole variant is chosen by --attention"),
        ("lra listops --optim.lr nan", "optim.lr: expected a finite number, found nan"),
        ("lra text --data.path a\x1b[2Jb", r"data.path: expected text without control characters, found 'a\x1b[2Jb'"),
        ("pretraining mlm --data.path=", "data.path: expected a name, found none"),
        ("qa squad2 --model.init=", "model.init: expected a name, found none"),
        ("qa squad2 --model.init a\x1bb", "model.init: expected text without control characters"),
        ("summarization wire --model.encoder-init=", "model.encoder_init: expected a name, found none"),
        ("vqa vqa2 --data.fc7=", "data.fc7: expected a name, found none"),
        ("pretraining mlm --data.path=https://host/a.txt", "found the address https://host/a.txt; download it"),
        (
            "qa squad2 --model.init=s3://bucket/bert",
            "model.init: expected the name of a local file or folder",
        ),
        (
            "lra listops --train.batch-size 99999999999999999999",
            "train.batch_size: expected a whole number up to 2,147",
        ),
        ("lra listops --train.length-pool 9223372036854775808", "train.length_pool: expected a whole number up to"),
        ("lra listops --model.dim 2147483648", "model.dim: expected a whole number up to 2,147,483,647, found 214748"),
        ("pretraining mlm --model.vocabulary 99999999999999999999999", "model.vocabulary: expected a whole number up"),
        ("lra listops --model.max-length 99999999999999999999999", "model.max_length: expected a whole number up to"),
        ("lra listops --model.layers 9223372036854775808", "model.layers: expected a whole number up to"),
        (
            "vqa vqa2 --preset pythia-3x100 --optim.schedule.milestones 9223372036854775808",
            "milestones: expected a whole",
        ),
        (
            "lra image --data.seed 9223372036854775808",
            "data.seed: expected a whole number up to 9,223,372,036,854,775,8",
        ),
        ("lra listops --optim.eps -1", "optim.eps: expected a number above 0, found -1.0"),
        ("lra listops --optim.lr 0", "optim.lr: expected a number above 0, found 0.0"),
        ("lra listops --optim.weight-decay -1", "optim.weight_decay: expected a number of at least 0, found -1.0"),
        ("lra listops --model.classes 5", "model.classes: expected at least the task's 10, found 5"),
        ("lra listops --model.heads 0", "model.heads: expected at least 1, found 0"),
        ("lra listops --seed 99999999999999999999", "seed: expected a whole number from 0"),
        (
            "lra listops --attention x3 --model.attention.scale nan",
            "--model.attention.scale nan: expected power >= 1 and scale > 0",
        ),
        ("lra", "no task given; choices: associative-recall, cifar10-patches, image"),
        ("lra listops --attention recency", "'recency' is not defined for order 'none'"),
        ("lra listops --norm deescalated --model.norm.where block_output", "exactly 0"),
        (
            "lra listops --norm deescalated --model.norm.tau 9",
            "--model.norm.tau 9: expected a number above 0 and up to",
        ),
        ("lra listops --train.steps 0", "train.steps: expected at least 1, found 0"),
        ("lra listops --optim.schedule.warmup 5000", "does not fit into train.steps"),
        (
            "lra listops --preset xiong2021 --train.steps 2",
            "optim.schedule.shape one_cycle: expected train.steps of at least 3, found 2",
        ),
        ("lra listops --optim.schedule.cycle-betas", "cycle_betas belongs to shape one_cycle; shape is linear"),
        ("lra listops --legacy.zero-is-padding", "legacy.zero_is_padding applies only to image, pathfinder and pathx"),
        ("lra listops --train.checkpoint-seconds -1", "train.checkpoint_seconds: expected at least 0, found -1.0"),
        ("lra listops --data.path x --data.train 9", "seqarena: data.train has no effect with data.path; omit it"),
        (
            "qa squad1 --data.train a --data.dev b --data.tokenizer c --data.seed 1",
            "data.seed has no effect with files of your own; omit it",
        ),
        (
            "summarization wire --decoding.alpha 1 --decoding.normalization none",
            "decoding.alpha has no effect with decoding.normalization none; omit it",
        ),
        ("pretraining mlm --data.masking.geometric 0.5", "no effect with data.masking.law inverse; omit it"),
        ("pretraining mlm --data.tokenizer x --data.vocabulary 99", "no effect with data.tokenizer; omit it"),
        ("pretraining wikitext2 --data.pieces 300", "data.pieces has no effect with data.kind word; omit it"),
        (
            "vqa vqa2 --preset pythia-3x100 --data.path d --data.regions a b c --data.generated 200",
            "data.generated has no effect with data.path; omit it",
        ),
        ("lra cifar10-patches --augmentation.magnitude 3", "no effect with augmentation.policy none; omit it"),
        ("qa squad1 --data.path x", "the files of squad1 are named by --data.train, --data.dev"),
        ("qa squad1 --data.version 2.0", "data.version: expected 1.1 for squad1, found 2.0; run squad2 instead"),
        ("sweep lra", "task: expected a value, found none; see seqarena sweep --help"),
        ("leaderboard --runs", "--runs: expected one value, found none"),
        ("sweep lra listops --seed 1", "unknown field --seed; a single run takes --seed, a sweep --seeds"),
        ("leaderboard --runs nowhere", "no folder nowhere"),
        ("leaderboard --format html", "--format: expected one of terminal, markdown, latex, csv, json, found 'html'"),
        ("sweep lra listops --attention softmax x9", "unknown attention 'x9'"),
        ("sweep lra listops --attention softmax x3 --model.attention.scale 8", "unknown field --model.attention.scale"),
        ("benchmark stp", "unknown benchmark 'stp'; nearest: step"),
        ("benchmark step lra listops --repeats 0", "--repeats: expected at least 1"),
    ],
)
def test_wrong_use_is_one_message_and_exit_code_2(
    arguments: str, message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_command(dispatch, arguments.split()) == 2
    told = capsys.readouterr()
    assert message in told.err
    assert told.err.count("\n") == 1
    assert not told.out
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "arguments",
    [
        ["lra", "listops", "--optim.lr", "a\nb"],
        ["lra", "listops", "--a\nb", "1"],
        ["leaderboard", "--runs", "a\nb"],
        ["leaderboard", "a\nb"],
        ["report", "--runs", "a\u2028b"],
    ],
)
def test_a_message_about_a_value_with_a_line_break_is_one_line(
    arguments: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_command(dispatch, arguments) == 2
    told = capsys.readouterr().err
    assert len(told.splitlines()) == 1
    assert "a b" in told


@pytest.mark.parametrize(
    "use",
    [
        lambda: np.empty(2**50),
        lambda: torch.empty(2**50),
        lambda: torch.empty(2**31, 2**31, 2),
        lambda: torch.nn.Linear(2**30, 2**30),
    ],
)
def test_out_of_memory_is_one_message(use: Callable[[], object], capsys: pytest.CaptureFixture[str]) -> None:
    def command(_: object) -> int:
        use()
        return 0

    assert run_command(command, []) == 1
    told = capsys.readouterr().err
    assert told.startswith("seqarena: out of memory (")
    assert "make the batch, the sequences or the model smaller; --train.micro-batch-size" in told
    assert told.count("\n") == 1


def test_a_missing_file_is_not_called_damaged(tmp_path: Path) -> None:
    with pytest.raises(BadDataError, match=r"missing\.tsv does not exist; expected: file in format tsv$"):
        count(tmp_path / "missing.tsv", "tsv", trust=False)
    with (
        pytest.raises(BadDataError, match=r"not a whole folder .*\(.*part'\); make it again"),
        damage(tmp_path, "folder", "make it again"),
    ):
        (tmp_path / "part").read_bytes()


def test_other_failures_are_exit_code_1(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    missing = ["lra", "listops", "--data.path", str(tmp_path / "no"), "--runs", str(tmp_path)]
    assert run_command(dispatch, missing) == 1
    assert "no such file or folder" in capsys.readouterr().err

    def fail(error: BaseException):
        def command(arguments: object) -> int:
            raise error

        return command

    assert run_command(fail(BadDataError("file, line 3")), []) == 1
    assert run_command(fail(KeyboardInterrupt()), []) == 1
    assert run_command(fail(RuntimeError("a defect")), []) == 1
    told = capsys.readouterr().err
    assert "seqarena: file, line 3\n" in told
    assert "seqarena: interrupted\n" in told
    with pytest.raises(KeyboardInterrupt) as interrupt, interrupt_advice(lambda: "do this"):
        raise KeyboardInterrupt
    run_command(fail(interrupt.value), [])
    assert capsys.readouterr().err == "seqarena: interrupted; do this\n"
    assert "Traceback" in told
    assert run_command(fail(WrongUseError("so")), []) == 2


def test_help_shows_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert dispatch(["lra", "--help"]) == 0
    shown = capsys.readouterr().out
    for name in ("listops", "xiong2021", "lra-jax", "dnas", "x3-14", "deescalated"):
        assert name in shown
    assert dispatch(["lra", "listops", "--attention", "hnas", "--help"]) == 0
    shown = capsys.readouterr().out
    assert "--model.attention.u" in shown
    assert "0.5)" in shown  # the default
    assert "--task" not in shown
    assert "expected:  softmax" in shown
    assert "cost:      a quarter of a minute to seven minutes" in shown
    assert "data:      generated; expressions distinct" in shown


def test_help_fits_the_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A line goes on below its second column."""
    monkeypatch.setenv("COLUMNS", "60")
    assert dispatch(["lra", "--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 60
    listops = next(number for number, line in enumerate(lines) if line.startswith("  listops "))
    assert lines[listops] == "  listops            the value, 0 to 9, of a nested"
    assert lines[listops + 1] == "                     expression of MIN, MAX, MED and SM over"


def test_the_help_of_a_task_has_one_usage_and_its_cost_near_the_top(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert dispatch(["lra", "listops", "--preset", "xiong2021", "--help"]) == 0
    shown = capsys.readouterr().out
    lines = shown.splitlines()
    assert lines[0].startswith("usage: seqarena lra listops [--preset PRESET]")
    assert shown.count("usage:") == 1
    assert lines[2].startswith("lra listops: the value, 0 to 9, of a nested expression")
    assert lines[5].startswith("  cost:      ")
    assert "retrieval" not in shown
    assert "--model.attention-dim INT or none" in shown
    groups = [line for line in lines if line.endswith(":") and not line.startswith(" ")]
    assert groups[-2:] == ["legacy:", "where to read and write:"]


def test_the_help_of_a_package_says_each_formula_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert dispatch(["lra", "--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "  x3             pi_ij = s_ij^3 / sqrt(N)" in lines
    assert "  x1-14          pi_ij = s_ij / 14" in lines
    assert "  relu           pi_ij = relu(s_ij) / sqrt(N)" in lines
    said = [line.split(maxsplit=1)[1] for line in lines if line.startswith("  ") and "pi_ij" in line]
    assert len(said) == len(set(said))


def test_every_field_of_every_preset_has_a_sentence_and_the_values_that_it_takes() -> None:
    for name in PACKAGES:
        for presets in find_package(name).presets.values():
            for preset in presets.values():
                fields = list_fields(preset.run)
                assert {field.path for field in fields} >= set(field_paths(preset.run))
                assert all(field.sentence and field.metavar for field in fields)


def test_results_go_to_standard_output_and_progress_to_standard_error(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    arguments = [
        "listops",
        "--attention",
        "hnas",
        "--runs",
        str(tmp_path / "runs"),
        "--data-folder",
        str(tmp_path),
        *TINY,
    ]
    assert main(PACKAGE, [*arguments, "--json"]) == 0
    told = capsys.readouterr()
    result = json.loads(told.out.splitlines()[-1])
    assert result["command"].startswith("python -m seqarena.lra listops --attention hnas")
    assert "step 3/3" in told.err
    assert main(PACKAGE, arguments) == 0  # finished: printed, not run again
    told = capsys.readouterr()
    assert "step 3/3" not in told.err
    assert f"test accuracy {result['score']:.4f} on 30 examples" in told.out
    assert "floors: majority class" in told.out
    assert "attention.kernel.u: 0." in told.out
    assert "modified: " in told.out
    wild = [*arguments, "--optim.lr", "1e30", "--optim.clip", "None"]
    assert run_package(PACKAGE, wild, "seqarena lra") == 1
    assert "diverged" in capsys.readouterr().out


def test_fewer_steps_shorten_the_warm_up() -> None:
    short = build_run(PACKAGE, "listops", None, None, None, 0, ["--train.steps", "40"], "")
    assert 0 < short.optim.schedule.warmup < 40
    with pytest.raises(WrongUseError, match=r"warmup 50 does not fit into train.steps 40: expected 0 to 39"):
        build_run(PACKAGE, "listops", None, None, None, 0,
                  ["--train.steps", "40", "--optim.schedule.warmup", "50"], "")  # fmt: skip


@pytest.mark.parametrize("steps", [10, 50])
def test_every_preset_has_a_schedule_for_fewer_steps(steps: int) -> None:
    for name in PACKAGES:
        for presets in find_package(name).presets.values():
            for preset in presets.values():
                fit_schedule(preset.run.optim.schedule, preset.run.train.steps, steps).check(steps)
