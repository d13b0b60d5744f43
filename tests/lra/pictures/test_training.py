"""Runs on pictures end to end: they learn, go on after a kill with the same bits, and pair the variants of a seed."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch

from seqarena.common.attention import ATTENTIONS
from seqarena.common.errors import WrongUseError
from seqarena.common.runs.results import Result
from seqarena.common.runs.session import Session, execute
from seqarena.common.training.runtime import make_accelerator
from seqarena.lra.__main__ import PACKAGE
from seqarena.lra.pictures import trainer
from seqarena.lra.pictures.augmentation import Augmentation
from seqarena.lra.pictures.data.drawn import DrawnDigits
from seqarena.lra.pictures.data.store import PictureSplit
from seqarena.lra.pictures.floors import floors
from seqarena.lra.pictures.library import LibraryConfig
from seqarena.lra.pictures.presets import PRESETS
from seqarena.lra.pictures.run import PictureRun
from tests.interruption import stops_after

BASE = PRESETS["cifar10-patches"]["quick"].run
TINY = replace(
    BASE,
    data=DrawnDigits(side=12, train=200, held_out=30, test=40),
    model=replace(BASE.model, side=12, dim=16, ffn_dim=16, layers=1),
    augmentation=Augmentation(crop="padded", flip=True, policy="rand", mixup=0.2, cutmix=1.0),
    optim=replace(BASE.optim, schedule=replace(BASE.optim.schedule, warmup=2)),
    train=replace(BASE.train, steps=6, batch_size=16, eval_every=3, checkpoint_seconds=0.0),
)


def measure(run: PictureRun, folder: Path) -> Result:
    return execute(PACKAGE, run, Session(runs=folder / "runs", data=folder / "data"))


@pytest.mark.parametrize("crop", ["padded", "resized"])
def test_an_interrupted_run_goes_on_with_the_same_bits(crop: str, tmp_path: Path) -> None:
    run = replace(TINY, augmentation=replace(TINY.augmentation, crop=crop))  # type: ignore[arg-type]
    whole = measure(run, tmp_path / "whole")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainer, "loss", stops_after(4, trainer.loss))
        with pytest.raises(KeyboardInterrupt):
            measure(run, tmp_path / "stopped")
    resumed = measure(run, tmp_path / "stopped")
    assert (resumed.score, resumed.validation) == (whole.score, whole.validation)
    assert resumed.metrics == whole.metrics
    assert resumed.example_scores == whole.example_scores


class Bordered(PictureSplit):
    """Pictures of 8 x 8 pixels, black inside; the brightness of the border is that of their class."""

    def __getitem__(self, index: int) -> npt.NDArray[np.uint8]:
        """Returns a picture."""
        picture = np.full((8, 8, 3), 100 * int(self.labels[index]), np.uint8)
        picture[2:6, 2:6] = 0
        return picture


def test_a_floor_reads_only_the_centre_that_a_model_reads() -> None:
    nothing, labels = np.zeros(0, np.uint8), np.tile(np.arange(2), 5)
    split = Bordered(
        file=Path("none"), pixels=nothing, offsets=labels, shapes=labels, checks=labels.astype(np.uint32),
        numbers=np.arange(10), labels=labels,
    )  # fmt: skip
    splits = {"train": split, "test": split}
    rules = ("colours", "nearest training example")
    assert [floors(splits, 8)[each] for each in rules] == [1.0, 1.0]
    assert [floors(splits, 4)[each] for each in rules] == [0.5, 0.5]


def test_a_result_has_its_floors_and_sources(tmp_path: Path) -> None:
    result = measure(TINY, tmp_path)
    assert set(result.floors) == {"majority class", "colours", "nearest training example"}
    assert len(result.example_scores) == 40
    assert {"lra/pictures/augmentation.py", "lra/pictures/model.py", "lra/pictures/data/drawn.py"} <= set(
        result.sources
    )
    assert not [
        path for path in result.sources if path.endswith(("listops/__init__.py", "xcit.py", "pictures/library.py"))
    ]


def test_variants_of_a_seed_see_the_same_changed_pictures(tmp_path: Path) -> None:
    seen = []
    for name in ("softmax", "hnas", "x3"):
        run = replace(TINY, model=replace(TINY.model, attention=ATTENTIONS[name], dropout=0.1))
        assembly = trainer.assemble(run, tmp_path, make_accelerator("float32"))
        pictures: list[torch.Tensor] = []
        assembly.model.register_forward_pre_hook(lambda _, inputs, pictures=pictures: pictures.append(inputs[0]))
        for step in range(3):
            assembly.loss(assembly.model, assembly.batches[step])
        seen.append(torch.stack(pictures))
    assert all(torch.equal(each, seen[0]) for each in seen[1:])


@pytest.mark.usefixtures("unchecked_shapes")
def test_it_learns_to_read_digits(tmp_path: Path) -> None:
    run = replace(
        BASE,
        data=DrawnDigits(side=10, train=2_000, held_out=100, test=200),
        model=replace(BASE.model, side=10, patch=5, layers=1),
        train=replace(BASE.train, steps=700, eval_every=700),
    )
    result = measure(run, tmp_path)
    assert result.score > max(result.floors.values()) + 0.1


def test_a_file_is_refused_where_pictures_are_drawn() -> None:
    with pytest.raises(WrongUseError, match=r"data.path: expected none, for the quick preset draws its pictures"):
        replace(TINY, data=replace(TINY.data, path="x")).check()


def test_a_length_pool_is_refused() -> None:
    with pytest.raises(WrongUseError, match=r"train.length_pool applies only to sequences of different lengths"):
        replace(TINY, train=replace(TINY.train, length_pool=8)).check()


@pytest.mark.parametrize(
    ("task", "name"),
    [
        pytest.param(task, name, marks=pytest.mark.extras if isinstance(preset.run.model, LibraryConfig) else ())
        for task, some in PRESETS.items()
        for name, preset in some.items()
    ],
)
def test_every_preset_is_complete(task: str, name: str) -> None:
    run = PRESETS[task][name].run
    run.check()
    assert (run.task, run.preset) == (task, name)
