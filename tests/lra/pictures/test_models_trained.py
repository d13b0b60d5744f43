"""XCiT, DeiT and Swin of tiny sizes in whole runs: they learn, resume with the same bits, and are diagnosed."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from seqarena.common.attention import ATTENTIONS
from seqarena.common.runs.results import Result
from seqarena.common.runs.session import Session, execute
from seqarena.common.training.runtime import make_accelerator, seed_torch
from seqarena.lra.__main__ import PACKAGE
from seqarena.lra.pictures import trainer
from seqarena.lra.pictures.augmentation import Augmentation
from seqarena.lra.pictures.data.drawn import DrawnDigits
from seqarena.lra.pictures.library import DeiTConfig, SwinConfig
from seqarena.lra.pictures.model import PictureModel
from seqarena.lra.pictures.presets import PRESETS
from seqarena.lra.pictures.run import PictureRun
from seqarena.lra.pictures.xcit import XCiTConfig
from tests.interruption import stops_after

BASE = PRESETS["imagenet"]["quick"].run
MODELS: dict[str, PictureModel] = {
    "xcit": XCiTConfig(side=16, classes=10, patch=4, layers=2, dim=32, heads=2, ffn_dim=32),
    "deit": DeiTConfig(side=16, classes=10, patch=4, layers=2, dim=32, heads=2, ffn_dim=32),
    "swin": SwinConfig(side=16, classes=10, patch=2, layers=(2, 1), dim=16, heads=(2, 4), window=4, ffn_ratio=2),
}
LAYERS = {"xcit": 2, "deit": 2, "swin": 3}
EVERY = [pytest.param(name, marks=() if name == "xcit" else pytest.mark.extras) for name in MODELS]


def tiny(name: str, attention: str = "softmax") -> PictureRun:
    """A run of six steps with every random change of pictures, and a checkpoint after each step."""
    return replace(
        BASE,
        data=DrawnDigits(train=200, held_out=30, test=40),
        model=replace(MODELS[name], attention=ATTENTIONS[attention]),
        augmentation=Augmentation(crop="resized", flip=True, policy="rand", mixup=0.2, cutmix=1.0),
        optim=replace(BASE.optim, schedule=replace(BASE.optim.schedule, warmup=2)),
        train=replace(BASE.train, steps=6, batch_size=16, micro_batch_size=8, eval_every=3, checkpoint_seconds=0.0),
    )


def measure(run: PictureRun, folder: Path) -> Result:
    return execute(PACKAGE, run, Session(runs=folder / "runs", data=folder / "data", out=folder / "out"))


@pytest.mark.parametrize("name", EVERY)
def test_the_loss_of_a_few_batches_falls(name: str, tmp_path: Path) -> None:
    run = replace(tiny(name, "hnas"), augmentation=Augmentation(), train=replace(BASE.train, batch_size=32))
    accelerator = make_accelerator("float32")
    seed_torch(run.seed, 0)
    assembly = trainer.assemble(run, tmp_path, accelerator)
    optim = replace(run.optim, schedule=replace(run.optim.schedule, warmup=2), clip=None)
    stepper = run.train.stepper(assembly.model, assembly.loss, optim, run.seed, accelerator)
    losses = [float(stepper.take(stepper.share(assembly.batches[step % 2]), step)[0]) for step in range(80)]
    assert sum(losses[-2:]) < 0.8 * sum(losses[:2])


@pytest.mark.parametrize("attention", ["hnas", "x3-14"])
@pytest.mark.parametrize("name", EVERY)
def test_an_interrupted_run_goes_on_with_the_same_bits(name: str, attention: str, tmp_path: Path) -> None:
    run = tiny(name, attention)
    whole = measure(run, tmp_path / "whole")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainer, "loss", stops_after(7, trainer.loss))  # two parts per step
        with pytest.raises(KeyboardInterrupt):
            measure(run, tmp_path / "stopped")
    resumed = measure(run, tmp_path / "stopped")
    assert (resumed.score, resumed.validation, resumed.metrics) == (whole.score, whole.validation, whole.metrics)
    assert (resumed.example_scores, resumed.bounded) == (whole.example_scores, whole.bounded)
    weights = [
        load_file(next((tmp_path / each / "out" / "checkpoint").glob("chosen-*.safetensors")))
        for each in ("whole", "stopped")
    ]
    assert all(torch.equal(value, weights[1][path]) for path, value in weights[0].items())
    assert len(whole.bounded) == (LAYERS[name] if attention == "hnas" else 0)


@pytest.mark.parametrize("attention", ["softmax", "hnas", "x3-14"])
@pytest.mark.parametrize("name", EVERY)
def test_diagnostics_change_no_bit(name: str, attention: str, tmp_path: Path) -> None:
    run = tiny(name, attention)
    plain = measure(run, tmp_path / "plain")
    diagnosed = measure(replace(run, train=replace(run.train, diagnostics=True)), tmp_path / "diagnosed")
    assert (plain.metrics, plain.example_scores) == (diagnosed.metrics, diagnosed.example_scores)
    lines = (tmp_path / "diagnosed" / "out" / "metrics.jsonl").read_text().splitlines()
    found = [each["diagnostics"] for each in map(json.loads, lines) if "diagnostics" in each]
    if name != "swin":  # its weights, under a mask over pairs, are not diagnosed
        assert len(found) == 2
        assert all(len(each["attention_norm"]) == LAYERS[name] for each in found)
    if attention == "hnas":
        assert len(found) == 2
        assert all(len(each["hybrid_weight"]) == LAYERS[name] for each in found)
