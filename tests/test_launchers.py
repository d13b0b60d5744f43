"""Several processes, launchers and trackers: slow to start, so they run with `make test-extras`."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from seqarena.common.training.checkpoint import load_state
from tests.pretraining.wiki import rhymes

pytestmark = pytest.mark.extras

FIELDS = (
    "listops --preset quick --model.dropout 0 --data.train 600 --data.validation 50 --data.test 70 "
    "--data.longer-than 3 --data.shorter-than 12 --data.max-depth 2 --model.dim 16 --model.ffn-dim 32 --model.layers 1 "
    "--train.batch-size 16 --train.steps 20 --train.eval-every 10 --train.log-every 1 --optim.schedule.warmup 5"
).split()


def run(
    launcher: list[str], out: Path, *more: str, check: bool = True, package: str = "seqarena.lra",
    fields: list[str] = FIELDS,
) -> subprocess.CompletedProcess[str]:  # fmt: skip
    folders = ["--out", str(out), "--data-folder", str(out.parent / "data")]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [*launcher, package, *fields, *folders, *more]
    told = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=out.parent)
    assert not check or told.returncode == 0, told.stderr
    return told


def losses(out: Path) -> list[float]:
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines if "loss" in line]


@pytest.mark.parametrize("attention", ["hnas", "average"])  # average ignores its queries: they have no gradient
def test_two_processes_follow_the_curve_of_one(attention: str, tmp_path: Path) -> None:
    """The batch is global and shared out; both processes must really have run."""
    variant = ["--attention", attention]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", "-m"]
    told = run(torchrun, tmp_path / "two", "--json", *variant)
    run([sys.executable, "-m"], tmp_path / "one", *variant)
    two, one = (json.loads((tmp_path / name / "result.json").read_text()) for name in ("two", "one"))
    assert (two["environment"]["processes"], one["environment"]["processes"]) == (2, 1)
    assert losses(tmp_path / "two") == pytest.approx(losses(tmp_path / "one"), abs=1e-5)
    assert len(losses(tmp_path / "one")) == 20
    assert len(two["example_scores"]) == len(one["example_scores"]) == 70
    del two["seal"]  # of the file
    assert json.loads(told.stdout.splitlines()[-1]) == two  # printed by one process only
    assert told.stdout.count('"example_scores"') == 1


HEADLINES = (
    "wire --preset quick --attention softmax --model.dropout 0 --model.attention-dropout 0 --model.dim 16 "
    "--model.ffn-dim 32 --model.heads 2 --data.generated 400 --data.validation-pairs 40 --train.batch-size 48 "
    "--train.steps 6 --train.eval-every 6 --train.log-every 1 --optim.schedule.warmup 2"
).split()


def test_three_processes_share_the_batches_of_one_unevenly(tmp_path: Path) -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "3", "-m"]
    run(torchrun, tmp_path / "three", package="seqarena.summarization", fields=HEADLINES)
    run([sys.executable, "-m"], tmp_path / "one", package="seqarena.summarization", fields=HEADLINES)
    assert losses(tmp_path / "three") == pytest.approx(losses(tmp_path / "one"), abs=1e-5)
    assert len(losses(tmp_path / "one")) == 6


PREPARING = """
import datetime, sys, time
from types import SimpleNamespace
from torch import distributed
from seqarena.common.training import runtime

distributed.init_process_group("gloo", timeout=datetime.timedelta(seconds=20))
is_main = distributed.get_rank() == 0
if sys.argv[1] == "plain":
    runtime.broadcast_patiently = lambda values: distributed.broadcast_object_list(values, src=0)

def prepare():
    time.sleep(30 if is_main else 0)
    return "prepared"

print(runtime.main_first(SimpleNamespace(is_main_process=is_main), prepare))
"""


@pytest.mark.parametrize("wait", ["plain", "patient"])
def test_processes_wait_for_data_that_take_longer_than_a_collective_may(wait: str, tmp_path: Path) -> None:
    """The main process prepares for 30 seconds, and the processes' own collectives give up after 20."""
    script = tmp_path / "preparing.py"
    script.write_text(PREPARING)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", str(script), wait]
    told = subprocess.run(
        torchrun, capture_output=True, text=True, check=False, env=os.environ | {"OMP_NUM_THREADS": "1"}
    )
    assert (told.returncode == 0) == (wait == "patient"), told.stderr[-2000:]
    assert (told.stdout.count("prepared") == 2) == (wait == "patient")


AVERAGING = """
import sys
from pathlib import Path
from torch import nn
from tests.common.runs import toy

class Model(toy.ToyModel):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(4)  # over the batch, of which each process has its own share

    def forward(self, inputs):
        return super().forward(self.norm(inputs))

def evaluate(model):
    print(f"mean {model.norm.running_mean.tolist()}", flush=True)
    return {"loss": 0.0}

toy.ToyModel, toy.toy_evaluate = Model, evaluate
toy.toy_fit(Path(sys.argv[1]))
"""


def test_all_processes_evaluate_the_same_batch_normalisation(tmp_path: Path) -> None:
    script = tmp_path / "averaging.py"
    script.write_text(AVERAGING)
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[1])}
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", str(script), str(tmp_path)]
    told = subprocess.run(torchrun, capture_output=True, text=True, check=False, env=environment)
    assert told.returncode == 0, told.stderr
    means = re.findall(r"mean \[.*?\]", told.stdout)
    assert len(means) == 6  # three evaluations by two processes
    assert len(set(means)) == 3


def test_a_batch_that_three_processes_cannot_share_is_refused(tmp_path: Path) -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "3", "-m"]
    told = run(torchrun, tmp_path / "three", check=False)
    assert told.returncode != 0
    assert "train.batch_size 16 cannot be shared out evenly to 3 processes" in told.stderr


def test_what_one_process_refuses_all_refuse_in_the_same_words(tmp_path: Path) -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", "-m"]
    for fields, wrong, message in (
        (FIELDS, ("--legacy.drop-tail", "--train.batch-size", "64"), "seqarena: legacy.drop_tail: expected at least"),
        (FIELDS[:3], ("--data.path", "nowhere"), "seqarena: --data.path nowhere: no such file or folder"),
    ):
        told = run(torchrun, tmp_path / "two", *wrong, check=False, fields=fields)
        assert told.returncode != 0
        assert message in told.stderr
        assert "main_first" not in told.stderr  # no trace of ours
        assert not (tmp_path / "two" / "run.json").exists()  # a corrected command may use the directory


def test_processes_that_were_started_differently_are_refused(tmp_path: Path) -> None:
    """Each process gets its own command line, as on two machines where one was mistyped."""
    script = tmp_path / "differ.py"
    script.write_text(
        "import os, sys\nfrom seqarena.lra.__main__ import PACKAGE\nfrom seqarena.common.runs.cli import main\n"
        "sys.exit(main(PACKAGE, [each.replace('RANK', os.environ['RANK']) for each in sys.argv[1:]]))\n"
    )
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", str(script)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    data = ("--data-folder", str(tmp_path / "data"))
    for own, message in (
        (("--out", "one", "--seed", "RANK"), "were started differently: seed is 0 in one process, 1 in another"),
        (("--out", "two", "--optim.lr", "1e-RANK"), "optim.lr is 1.0 in one process, 0.1 in another"),
        (("--out", "rRANK"), "out is r0 in one process, r1 in another"),
    ):
        told = subprocess.run([*torchrun, *FIELDS, *data, *own], capture_output=True, text=True, check=False,
                              env=environment, cwd=tmp_path)  # fmt: skip
        assert told.returncode != 0
        assert message in told.stderr
    assert not [each for each in tmp_path.iterdir() if each.is_dir() and each.name != "data"]


WORDS = (
    "wikitext2 --preset quick --attention hnas --norm deescalated --model.norm.mean running --model.vocabulary 9 "
    "--model.cutoffs 5 --model.dim 16 --model.heads 2 --model.ffn-dim 24 --train.batch-size 4 --train.steps 40 "
    "--train.eval-every 10 --train.log-every 1 --optim.schedule.warmup 5 --segments.length 8 --segments.memory 8 "
    "--validation.length 8 --validation.streams 3 --final.length 8 --train.checkpoint-seconds 0"
).split()
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", "-m"]


def language(launcher: list[str], out: Path) -> list[str]:
    folders = ["--out", str(out), "--data-folder", str(out.parent / "data")]
    return [*launcher, "seqarena.pretraining", *WORDS, "--data.path", str(out.parent / "wiki"), *folders]


def killed(out: Path, step: int) -> None:
    """Runs two processes until there is a checkpoint of that step or a later one."""
    state = None
    command, environment = language(TORCHRUN, out), os.environ | {"OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, env=environment, start_new_session=True) as process:
        while state is None or state["progress"]["step"] < step:
            time.sleep(0.05)
            assert process.poll() is None
            state = load_state(out / "checkpoint" / "last.pt")
        os.killpg(process.pid, signal.SIGKILL)
    assert sorted(state["loss"]) == [0, 1, 2, 3]


def test_two_processes_remember_their_streams_and_one_goes_on_from_both(tmp_path: Path) -> None:
    """Two, killed between evaluations, and once more after going on; then one, which needs the memory of either."""
    rhymes(tmp_path / "wiki")
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    subprocess.run(language([sys.executable, "-m"], tmp_path / "one"), check=True, env=environment)
    subprocess.run(language(TORCHRUN, tmp_path / "two"), check=True, env=environment)
    killed(tmp_path / "cut", 3)
    killed(tmp_path / "cut", 14)
    assert not (tmp_path / "cut" / "result.json").exists()
    subprocess.run(language([sys.executable, "-m"], tmp_path / "cut"), check=True, env=environment)
    for name in ("two", "cut"):
        assert losses(tmp_path / name) == pytest.approx(losses(tmp_path / "one"), abs=1e-4)
    scores = [json.loads((tmp_path / name / "result.json").read_text())["score"] for name in ("one", "two", "cut")]
    assert scores == pytest.approx([scores[0]] * 3, abs=1e-4)


def test_accelerate_launch_runs_it(tmp_path: Path) -> None:
    launch = [sys.executable, "-m", "accelerate.commands.launch", "--cpu", "--num_processes", "1", "-m"]
    run(launch, tmp_path / "run")
    assert json.loads((tmp_path / "run" / "result.json").read_text())["status"] == "finished"


def test_tensorboard_gets_the_metrics(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # noqa: PLC0415

    run([sys.executable, "-m"], tmp_path / "run", "--tracker", "tensorboard")
    (events,) = {path.parent for path in tmp_path.rglob("events.out.tfevents*") if "seqarena" in path.parent.parts[-1]}
    accumulator = EventAccumulator(str(events)).Reload()
    assert {"loss", "validation/accuracy"} <= set(accumulator.Tags()["scalars"])
    assert [event.step for event in accumulator.Scalars("validation/accuracy")] == [10, 20]


FEW = "--train.batch-size 12 --train.steps 6 --train.eval-every 3 --train.log-every 1 --optim.schedule.warmup 2"
SMALL = f"--model.layers 1 --model.dim 16 --model.heads 2 --model.ffn-dim 16 {FEW}"


@pytest.mark.parametrize(
    ("package", "given", "examples"),
    [
        ("pretraining", f"mlm --data.building order --data.length 32 --data.evaluated 90 {SMALL}", 90),
        ("qa", f"squad2 --model.head conditioned --data.generated 700 {SMALL}", 70),
        ("qa", f"mnli --data.generated 700 {SMALL}", 70),
        ("vqa", f"vqa2 --attention hnas --data.generated 100 --data.least 1 {FEW}", 48),
    ],
)
def test_two_processes_train_as_one(package: str, given: str, examples: int, tmp_path: Path) -> None:
    """Targets differ in number from example to example: shares must weigh by them. Evaluations are shared out too."""
    fields = given.split()
    results = []
    for name, launcher in (("two", ["-m", "torch.distributed.run", "--nproc_per_node", "2"]), ("one", [])):
        folders = ["--out", str(tmp_path / name), "--data-folder", str(tmp_path / "data")]
        command = [sys.executable, *launcher, "-m", f"seqarena.{package}", *fields, *folders]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        subprocess.run(command, capture_output=True, text=True, check=True, env=environment, cwd=tmp_path)
        results.append(json.loads((tmp_path / name / "result.json").read_text()))
    two, one = results
    assert (two["environment"]["processes"], one["environment"]["processes"]) == (2, 1)
    assert losses(tmp_path / "two") == pytest.approx(losses(tmp_path / "one"), abs=1e-5)
    assert len(two["example_scores"]) == len(one["example_scores"]) == examples
    for metric, value in one["metrics"].items():
        assert two["metrics"][metric] == pytest.approx(value, rel=1e-4), metric
