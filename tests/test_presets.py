"""Every preset is a run that can be made, says where it comes from, and builds its model."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from common.attention import ATTENTIONS
from common.blocks import NORMS
from common.run import changed_from, row_name
from lra.model import Classifier
from lra.presets import PRESETS
from lra.run import Run
from lra.tasks import TASKS
from scripts.packages import PACKAGES, find_package

EVERY = [
    (package.name, task, name)
    for package in map(find_package, PACKAGES)
    for task in package.tasks
    for name in package.presets[task]
]


@pytest.mark.parametrize(("package", "task", "name"), EVERY)
def test_a_preset_is_whole(package: str, task: str, name: str) -> None:
    preset = find_package(package).presets[task][name]
    run = preset.run
    assert (run.task, run.preset, run.seed) == (task, name, 0)
    assert preset.source
    assert preset.expected
    assert preset.cost
    run.check()
    assert changed_from(preset, run) == {}
    for norm in NORMS.values():
        for attention in ATTENTIONS.values():
            if "none" in attention.orders:
                varied = replace(run, model=replace(run.model, attention=attention, norm=norm))
                varied.check()
                assert changed_from(preset, varied) == {}
    assert row_name(run, preset) == "softmax"
    assert (
        row_name(replace(run, model=replace(run.model, layers=9, norm=NORMS["post"])), preset)
        == "softmax, post, 9 layers"
    )


@pytest.mark.parametrize(("package", "task", "name"), EVERY)
def test_a_preset_builds_its_model_and_takes_a_step(package: str, task: str, name: str) -> None:
    run = find_package(package).presets[task][name].run
    assert isinstance(run, Run)
    model = Classifier(run.model, run.data.sequences)
    shape = (2, 20) if run.data.sequences == 1 else (2, run.data.sequences, 20)
    tokens = torch.randint(1, run.data.vocabulary, shape)
    logits = model(tokens, torch.ones_like(tokens, dtype=torch.bool))
    assert logits.shape == (2, run.data.classes)
    logits.sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_every_package_has_a_quick_preset_and_every_task_is_a_record() -> None:
    for package in map(find_package, PACKAGES):
        for name, task in package.tasks.items():
            assert "quick" in package.presets[name]
            assert (task.package, task.name) == (package.name, name)
            assert task.title
            assert task.source
            assert task.licence
            assert task.splits
            assert 0 < task.chance < 1
            assert set(task.checksums) <= set(package.presets[name])
            assert all(figure.source for figure in task.published)
    assert TASKS


@pytest.mark.parametrize("task", [name for name, task in TASKS.items() if "quick" in task.checksums])
def test_quick_data_have_their_bytes(task: str, tmp_path: Path) -> None:
    """Whoever changes them must raise the generator's version and the task's."""
    run = PRESETS[task]["quick"].run
    assert isinstance(run, Run)
    assert run.data.load(tmp_path)[1] == TASKS[task].checksums["quick"]


def test_every_data_set_that_is_always_the_same_has_a_checksum() -> None:
    absent = [(task, name) for _, task, name in EVERY if name not in TASKS[task].checksums]
    # The test set is in them twice; papers are the user's own; Path-X takes an hour to draw.
    assert set(absent) <= {(task, name) for task in ("text-legacy", "retrieval", "pathx")
                           for name in ("xiong2021", "lra-jax")}  # fmt: skip
