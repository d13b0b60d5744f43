"""Presets of Long Range Arena: they build, their data are the same bytes for everybody, their settings the papers'."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from seqarena.common.errors import WrongUseError
from seqarena.common.model.norms import NORMS
from seqarena.common.runs.help import provenance
from seqarena.lra.data import image, listops, pathfinder, retrieval, text
from seqarena.lra.data.pathfinder.small import SmallPathfinder
from seqarena.lra.model import Classifier
from seqarena.lra.presets import PRESETS
from seqarena.lra.run import Legacy
from seqarena.lra.tasks import SEQUENCE_TASKS as TASKS

EVERY = [(task, name) for task, presets in PRESETS.items() for name in presets]


@pytest.mark.parametrize(("task", "name"), EVERY)
def test_a_preset_builds_its_model_and_takes_a_step(task: str, name: str) -> None:
    run = PRESETS[task][name].run
    model = Classifier(run.model, run.data.sequences)
    shape = (2, 20) if run.data.sequences == 1 else (2, run.data.sequences, 20)
    tokens = torch.randint(1, run.data.vocabulary, shape)
    logits = model(tokens, torch.ones_like(tokens, dtype=torch.bool))
    assert logits.shape == (2, run.data.classes)
    logits.sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of prepared data: what two tasks share is made once."""
    return tmp_path_factory.mktemp("data")


SLOW = ("pathfinder", "pathx")
"""Their quick set is one, of half a minute: with the extras. A few of its images are below."""


@pytest.mark.parametrize(
    "task",
    [
        pytest.param(name, marks=[pytest.mark.extras] if name in SLOW else [])
        for name, task in TASKS.items()
        if "quick" in task.checksums
    ],
)
def test_quick_data_have_their_bytes(task: str, folder: Path) -> None:
    """Whoever changes them raises the generator's version; another checksum is another protocol."""
    run = PRESETS[task]["quick"].run
    assert run.data.load(folder)[1] == TASKS[task].checksums["quick"]


def test_a_few_small_pathfinder_images_have_their_bytes(tmp_path: Path) -> None:
    few = SmallPathfinder(train=20, validation=4, test=4)
    assert few.load(tmp_path)[1] == "e83d692e4351fba28b2fca0f8b8f75e5f84fd54b14eb3d666cf8e335283b940c"


def test_records_say_what_the_code_does() -> None:
    assert TASKS["listops"].revision == f"generator {listops.GENERATOR_VERSION}"
    assert TASKS["pathfinder"].revision == TASKS["pathx"].revision == f"generator {pathfinder.GENERATOR_VERSION}"
    assert f"the {text.VALIDATION:,} training reviews with the smallest hashes" in TASKS["text"].splits
    assert f"the {image.VALIDATION:,} training images with the smallest hashes" in TASKS["image"].splits
    train, validation, test = retrieval.Retrieval().rows
    assert f"{train:,} / {validation:,} / {test:,} pairs" in TASKS["retrieval"].splits
    data = listops.ListOps()
    assert f"{data.train:,} / {data.validation:,} / {data.test:,}" in TASKS["listops"].splits


def test_every_data_set_that_is_always_the_same_has_a_checksum() -> None:
    absent = [(task, name) for task, name in EVERY if name not in TASKS[task].checksums]
    # Papers are the user's own; Path-X takes an hour to draw.
    assert {task for task, name in absent} == {"retrieval", "pathx"}
    assert "quick" not in {name for _, name in absent}


XIONG = {  # lra.md section 2.1: batch, warm-up, steps, evaluations, positions
    "listops": (32, 1_000, 5_000, 50, 2_048),
    "text": (32, 8_000, 20_000, 500, 4_096),
    "retrieval": (32, 800, 30_000, 300, 4_096),
    "image": (256, 175, 35_000, 175, 1_024),
    "pathfinder": (256, 312, 62_400, 312, 1_024),
}
JAX = {  # lra.md section 2.2: batch, warm-up, steps, peak rate after the warm-up, dim, attention, ffn, heads, layers
    "listops": (32, 1_000, 5_000, 1.58e-3, 512, 512, 1_024, 8, 4, "cls", 0.1, 0.1, "sinusoidal", 0.1),
    "text": (32, 8_000, 20_000, 5.59e-4, 256, 256, 1_024, 4, 4, "cls", 0.1, 0.1, "sinusoidal", 0.1),
    "retrieval": (32, 8_000, 5_000, 5.59e-4, 128, 128, 512, 4, 4, "first", 0.1, 0.1, "sinusoidal", 0.1),
    "image": (256, 175, 35_000, 5e-4, 128, 64, 128, 8, 1, "cls", 0.3, 0.2, "learned", 0.0),
    "pathfinder": (512, 312, 62_400, 1e-3, 32, 16, 32, 4, 4, "mean", 0.2, 0.1, "sinusoidal", 0.0),
    "pathx": (64, 2_500, 500_000, 1e-3, 32, 16, 32, 2, 1, "mean", 0.1, 0.1, "learned", 0.0),
}


@pytest.mark.parametrize("task", XIONG)
def test_xiongs_settings_are_theirs(task: str) -> None:
    run = PRESETS[task]["xiong2021"].run
    model, optim, train = run.model, run.optim, run.train
    assert (
        train.batch_size, optim.schedule.warmup, train.steps, train.eval_every, model.max_length
    ) == XIONG[task]  # fmt: skip
    assert (optim.name, optim.lr, optim.betas, optim.eps, optim.weight_decay, optim.clip, optim.schedule.shape) == (
        "adamw", 1e-4, (0.9, 0.999), 1e-6, 0.0, None, "one_cycle"
    )  # fmt: skip
    assert (model.layers, model.dim, model.heads, model.ffn_dim, model.dropout, model.attention_dropout) == (
        2, 64, 2, 128, 0.1, 0.1
    )  # fmt: skip
    assert (model.pooling, model.positions, model.embedding_std, model.norm, model.activation, train.select) == (
        "mean", "learned", 0.02, NORMS["pre"], "gelu", "best"
    )  # fmt: skip


@pytest.mark.parametrize("task", JAX)
def test_the_settings_of_lra_are_theirs(task: str) -> None:
    run = PRESETS[task]["lra-jax"].run
    model, optim, train = run.model, run.optim, run.train
    found = (
        train.batch_size, optim.schedule.warmup, train.steps, float(f"{optim.lr:.3g}"), model.dim,
        model.attention_dim or model.dim, model.ffn_dim, model.heads, model.layers, model.pooling, model.dropout,
        model.attention_dropout, model.positions, optim.weight_decay,
    )  # fmt: skip
    assert found == JAX[task]
    assert (optim.name, optim.betas, optim.eps, train.select) == ("adamw", (0.9, 0.98), 1e-9, "last")
    assert (optim.clip, optim.schedule.shape) == (
        1.0 if task == "pathx" else None, "rsqrt" if optim.weight_decay else "cosine"
    )  # fmt: skip
    assert (model.projection_bias, model.embedding_std, model.norm) == (False, 1.0, NORMS["pre"])


def test_help_tells_where_a_presets_own_data_come_from() -> None:
    for task, presets in PRESETS.items():
        told = provenance(TASKS[task], presets["quick"])
        assert TASKS[task].source not in told
        assert "IMDB" not in told
        assert TASKS[task].source in provenance(TASKS[task], presets["xiong2021"])


def test_legacy_presets_have_the_traps() -> None:
    for task, vocabulary in (("listops", 32), ("text-legacy", 512), ("retrieval", 512), ("image", 512)):
        run, ours = (PRESETS[task][name].run for name in ("xiong2021-legacy", "xiong2021"))
        assert (run.legacy.padded_pooling, run.legacy.drop_tail) == (True, True)
        assert run.legacy.zero_is_padding == (task == "image")
        assert run.optim == replace(ours.optim, schedule=replace(ours.optim.schedule, cycle_betas=True))
        assert run.model == replace(ours.model, vocabulary=vocabulary)
    assert PRESETS["pathfinder"]["lra-jax-legacy"].run.legacy == Legacy(zero_is_padding=True)


def test_a_test_set_that_validates_is_another_task() -> None:
    text, legacy = (PRESETS[task]["xiong2021"].run for task in ("text", "text-legacy"))
    for wrong in (replace(text, data=legacy.data), replace(legacy, data=text.data)):
        with pytest.raises(
            WrongUseError, match=r"data.validation: expected held-out for the task text and test for text-legacy"
        ):
            wrong.check()
