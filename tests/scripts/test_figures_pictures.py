"""Figures of runs of pictures: what is drawn is what the runs recorded and what their weights compute."""

import json
import math
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from seqarena.common.attention import find_attention
from seqarena.common.attention.base import AttentionConfig, Kernel
from seqarena.common.attention.elementwise import Elementwise
from seqarena.common.errors import BadDataError, WrongUseError, run_command
from seqarena.common.model.norms import find_norm
from seqarena.common.runs.results import Result
from seqarena.common.runs.session import Session, execute
from seqarena.common.training.optim import Schedule
from seqarena.lra.__main__ import PACKAGE
from seqarena.lra.pictures.data.drawn import DrawnDigits
from seqarena.lra.pictures.model import VisionTransformerConfig
from seqarena.lra.pictures.presets import QUICK
from seqarena.lra.pictures.run import PictureRun
from seqarena.scripts.figures import p1_picture, p1_runs, p1_training, p3_losses, picture_runs
from seqarena.scripts.figures.drawing import FigureOptions, Line, Matrix, MissingError, Panel, PatchGrid, Photo, draw
from seqarena.scripts.figures.picture_runs import RunFolder
from seqarena.scripts.seqarena import dispatch

BASE = replace(
    QUICK.run,
    data=DrawnDigits(train=48, held_out=8, test=12),
    model=replace(QUICK.run.model, dim=16, heads=2, ffn_dim=16),
    train=replace(QUICK.run.train, steps=4, batch_size=8, eval_every=2, diagnostics=True),
    optim=replace(QUICK.run.optim, schedule=Schedule(shape="cosine", warmup=1)),
)


def run_of(attention: str | AttentionConfig, seed: int = 0, **model: Any) -> PictureRun:
    config = find_attention(attention) if isinstance(attention, str) else attention
    return replace(BASE, seed=seed, model=replace(BASE.model, attention=config, **model))


RUNS = {
    "softmax": run_of("softmax"), "x1": run_of("x1"), "x3-raw": run_of("x3-raw"), "x3": run_of("x3"),
    "x3, seed 1": run_of("x3", seed=1), "x3, 5 tokens": run_of("x3", patch=8),
    "x3-raw, 5 tokens": run_of("x3-raw", patch=8),
    "x3-8": run_of(Elementwise(power=3, scale=8.0)), "mean": run_of("softmax", pooling="mean"),
    "post": run_of("softmax", norm=QUICK.run.model.norm, layers=1),
}  # fmt: skip


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Finished runs in folders of their names, with the prepared data beside them."""
    folder = tmp_path_factory.mktemp("runs")
    for name, run in RUNS.items():
        execute(PACKAGE, run, Session(runs=folder, data=folder / "data", out=folder / name))
    return folder


@dataclass(frozen=True, kw_only=True)
class Rectangle(VisionTransformerConfig):
    """A model whose tokens are no square."""

    @property
    def longest(self) -> int:
        return 19


def options(runs: Path, *names: str, **fields: Any) -> FigureOptions:
    return FigureOptions(runs=tuple(runs / name for name in names), data=runs / "data", **fields)


def panel(panels: Sequence[object], title: str) -> Panel:
    (found,) = [each for each in panels if isinstance(each, Panel) and each.title == title]
    return found


def lines(panels: Sequence[object], title: str) -> dict[str, Line]:
    return {line.label: line for line in panel(panels, title).lines}


def records(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def softmax_of_last_layer(runs: Path, name: str, numbers: Sequence[int]) -> torch.Tensor:
    """Returns weights (B H N N), computed from the last layer's queries and keys."""
    settings = options(runs, name)
    (run,) = picture_runs.find_runs(settings, "test")
    model = run.run.model.build().eval()
    run.trained().load(model)
    seen: list[torch.Tensor] = []
    for part in model.modules():
        if isinstance(part, Kernel):
            part.register_forward_hook(
                lambda _, given, __: seen.append(given[0] @ given[1].mT / given[0].shape[3] ** 0.5)
            )
    pixels, _ = picture_runs.load_pictures(run, settings, numbers)
    with torch.no_grad():
        model(pixels)
    return seen[-1].softmax(dim=-1)


def test_a_grid_is_the_class_token_s_row_of_weights(runs: Path) -> None:
    drawn = p1_picture.make(options(runs, "softmax", "x1", pictures=(3, 7)))
    assert [type(each) for each in drawn.panels] == [Photo, PatchGrid, PatchGrid] * 2
    assert drawn.columns == 3
    weights = softmax_of_last_layer(runs, "softmax", (3, 7))[:, :, 0, 1:]
    for row, expected in enumerate(weights.mean(dim=1).view(2, 4, 4)):
        grid = drawn.panels[3 * row + 1]
        assert grid.title.startswith("softmax\nlayer 2 of 2, mean over heads")
        torch.testing.assert_close(torch.tensor(grid.values), expected)  # type: ignore[union-attr]
    assert any(value < 0 for each in drawn.panels if "x1" in each.title for row in each.values for value in row)  # type: ignore[union-attr]
    one = p1_picture.make(options(runs, "softmax", pictures=(3,), heads=(2,))).panels[1]
    assert one.title.startswith("softmax\nlayer 2 of 2, head 2")
    torch.testing.assert_close(torch.tensor(one.values), weights[0, 1].view(4, 4))  # type: ignore[union-attr]
    draw(p1_picture.DRAWING, drawn)


def test_a_patch_of_the_picture_is_the_cell_at_its_position(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the first layer the weights x of the class token on a patch depend on this patch alone."""

    def cells() -> torch.Tensor:
        return torch.tensor(p1_picture.make(options(runs, "x1", pictures=(0,), layers=(1,))).panels[1].values)  # type: ignore[union-attr]

    before, load = cells(), picture_runs.load_pictures

    def altered(*arguments: Any) -> tuple[torch.Tensor, list[int]]:
        pixels, classes = load(*arguments)
        pixels = pixels.clone()
        pixels[:, :, 4:8, 8:12] += 0.5  # row 1, column 2
        return pixels, classes

    monkeypatch.setattr(p1_picture, "load_pictures", altered)
    assert (cells() - before).abs().gt(1e-7).nonzero().tolist() == [[1, 2]]


def test_without_a_class_token_the_mean_over_queries_is_drawn(runs: Path) -> None:
    drawn = p1_picture.make(options(runs, "mean", pictures=(0,)))
    expected = softmax_of_last_layer(runs, "mean", (0,)).mean(dim=(1, 2)).view(4, 4)
    torch.testing.assert_close(torch.tensor(drawn.panels[1].values), expected)  # type: ignore[union-attr]
    assert "from all patches (their mean; the models have no class token) to" in drawn.shows
    both = p1_picture.make(options(runs, "mean", "softmax", pictures=(0,)))
    assert "the class token (in models without one: from all patches, their mean) to" in both.shows
    assert [each.title.split("\n")[0] for each in both.panels[1:]] == ["softmax, 16 tokens", "softmax, 17 tokens"]


def test_heads_are_means_over_test_pictures(runs: Path) -> None:
    drawn = p1_training.heads(options(runs, "softmax", "x3-raw", layers=(1, 2), heads=(1, 2)))
    titles = [each.title.split(":")[0] for each in drawn.panels]
    names = ("softmax", "x3-raw")
    assert titles == [f"{name}, layer {each}, head {each}" for each in (1, 2) for name in names]
    expected = softmax_of_last_layer(runs, "softmax", range(12))[:, 1].mean(dim=0)
    third = drawn.panels[2]
    assert isinstance(third, Matrix)
    torch.testing.assert_close(torch.tensor(third.values), expected)


def test_norms_are_those_that_the_runs_recorded(runs: Path) -> None:
    drawn = p1_training.norms(options(runs, "softmax", "x3", "x3, seed 1", "x3-raw", layers=(2,)))
    seeds = [records(runs / name) for name in ("x3", "x3, seed 1")]
    for title, field in (("attention", "attention_norm"), ("derivative by the scores", "attention_jacobian_norm")):
        found = lines(drawn.panels, f"{title}, layer 2 of 2")
        assert list(found) == ["softmax", "x3", "x3-raw"]
        assert found["x3"].x == [2, 4]
        values = [[each["diagnostics"][field][1] for each in some if "diagnostics" in each] for some in seeds]
        assert found["x3"].y == pytest.approx([math.sqrt(one * other) for one, other in zip(*values, strict=True)])
    accuracy = lines(drawn.panels, "validation pictures")["softmax"]
    last = [each["validation"]["accuracy"] for each in records(runs / "softmax") if "validation" in each]
    assert list(accuracy.y) == last
    assert not any("layer 1" in each.title for each in drawn.panels)
    assert {each.claim for each in drawn.findings} == {
        f"x3-raw: {quantity} is several times as large as with x3" for quantity in ("attention", "its derivative")
    }
    draw(p1_training.DRAWINGS[0], drawn)


def test_what_is_said_of_norms_of_runs_follows_the_numbers() -> None:
    def said(raw: float, scaled: float) -> list[bool]:
        found = {
            name: [
                (
                    RunFolder(folder=Path(name), run=RUNS[name]),
                    {panel: {"layer 1": [(1.0, 9.0), (2.0, size)]} for panel in (p1_runs.NORM, p1_runs.SLOPE)},
                )
            ]
            for name, size in (("x3-raw", raw), ("x3", scaled), ("softmax", 1.0), ("x3, 5 tokens", 0.1))
        }
        return [each.agrees for each in p1_runs._norm_findings(found)]  # type: ignore[arg-type]

    assert said(7.0, 2.0) == [True, True]
    assert said(5.0, 2.0) == [False, False]


def test_accuracy_is_drawn_by_the_divisor_for_each_length(runs: Path) -> None:
    names = ("softmax", "x3", "x3, seed 1", "x3-raw", "x3-8", "x3, 5 tokens", "x3-raw, 5 tokens", "x1")
    drawn = p1_training.scales(options(runs, *names))
    found = lines(drawn.panels, "test pictures")
    assert set(found) == {"x^3, 17 tokens", "x^3, 5 tokens", "x, 17 tokens"}
    whole = found["x^3, 17 tokens"]
    assert whole.x == pytest.approx([1, 17**0.5, 8])
    scores = {name: Result.read(runs / name).metrics["accuracy"] for name in names}  # type: ignore[union-attr]
    means = [scores["x3-raw"], (scores["x3"] + scores["x3, seed 1"]) / 2, scores["x3-8"]]
    assert whole.y == pytest.approx(means)
    best = lines(drawn.panels, "divisor of the best accuracy")
    assert best["x^3"].x == [5, 17]
    short = 5**0.5 if scores["x3, 5 tokens"] > scores["x3-raw, 5 tokens"] else 1
    assert best["x^3"].y == pytest.approx([short, whole.x[means.index(max(means))]])
    assert "x" not in best  # one divisor alone is not the best
    assert best["sqrt N"].y == pytest.approx([5**0.5, 17**0.5])
    assert [each.claim for each in drawn.findings] == ["x^3: longer sequences need a larger divisor"]


def test_what_is_said_of_scales_follows_the_numbers() -> None:
    def said(at_8: float, best: dict[int, float]) -> list[bool]:
        accuracy = {"x^3, 65 tokens": {1.0: [0.3], 8.0: [at_8], 20.0: [0.5, 0.5], 64.0: [0.1]}}
        return [each.agrees for each in p1_runs._scale_findings(accuracy, {"x^3": best})]

    assert said(0.49, {5: 4.0, 65: 8.0}) == [True, True]
    assert said(0.47, {5: 8.0, 65: 8.0}) == [False, False]
    assert said(0.49, {65: 8.0}) == [True]


def test_losses_are_means_over_seeds_of_what_all_recorded(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = p3_losses.make(options(runs, "softmax", "x3", "x3, seed 1"))
    found = lines(drawn.panels, "validation loss")
    by_seed = [
        [each["validation"]["loss"] for each in records(runs / name) if "validation" in each]
        for name in ("x3", "x3, seed 1")
    ]
    assert found["x3"].y == pytest.approx([sum(each) / 2 for each in zip(*by_seed, strict=True)])
    assert found["softmax"].spread is None
    monkeypatch.setattr(picture_runs, "POINTS", 2)
    seeds = [
        {"loss": {"training": [(float(step), factor * step * 1.0) for step in range(1, 6 + factor)]}}
        for factor in (1, 3)
    ]
    line = picture_runs.mean_line("name", seeds, "loss", "training")  # type: ignore[arg-type]
    assert line is not None
    assert (line.x, line.y) == ([3, 6], [4, 10])
    assert picture_runs.mean_line("name", [{}, seeds[0]], "loss", "training") is None  # type: ignore[list-item]


def test_names_have_what_differs(runs: Path) -> None:
    some = picture_runs.find_runs(options(runs, "softmax", "post", "x3"), "test")
    assert set(picture_runs.grouped(some, "test", seeds=True)) == {
        "softmax, 2 layers", "softmax, 1 layers", "x3, 2 layers"
    }  # fmt: skip


def test_runs_that_cannot_be_drawn_are_refused(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = tmp_path / "other" / "run.json"
    other.parent.mkdir()
    other.write_text(json.dumps({"task": "listops"}))
    twin = tmp_path / "twin"
    twin.symlink_to(runs / "x3")
    begun = tmp_path / "begun" / "run.json"
    begun.parent.mkdir()
    begun.write_text((runs / "x3" / "run.json").read_text())
    for arguments, words in (
        (["p1-picture", "--runs", str(other.parent)], "no run of cifar10-patches, tiny-imagenet, imagenet in"),
        (["p1-norms", "--runs", str(tmp_path / "nowhere")], "no run of cifar10-patches"),
        (["p1-picture", "--runs", str(begun.parent)], "this one is not finished"),
        (["p1-norms", "--runs", str(begun.parent)], "none of the 1 runs of pictures recorded norms of attention"),
        (["p1-scales", "--runs", str(runs / "softmax")], "no finished run of an elementwise variant"),
        (["p1-heads", "--runs", str(runs / "x3"), str(twin)], "would both be x3"),
        (["p1-picture", "--runs", str(runs)], "at most 6 fit beside a picture"),
        (["p1-picture", "--runs", str(runs / "x3"), "--layers", "3"], "has layers 1 to 2"),
        (["p1-heads", "--runs", str(runs / "x3"), "--layers", "0"], "has layers 1 to 2"),
        (["p1-heads", "--runs", str(runs / "x3"), "--layers", "2", "2"], "expected each layer once, found 2 2"),
        (["p1-heads", "--runs", str(runs / "x3"), "--heads", "1", "2", "1"], "one for each of 2 layers"),
        (["p1-picture", "--runs", str(runs / "x3"), "--heads", "3"], "--heads 3: expected 1 to 2"),
        (["p1-picture", "--runs", str(runs / "x3"), "--pictures", "12"], "have numbers 0 to 11"),
    ):
        command = ["figures", *arguments, "--out", str(tmp_path / "out"), "--data-folder", str(runs / "data")]
        assert run_command(dispatch, command) == 2, arguments
        assert words in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    begun.write_text("{")
    with pytest.raises(BadDataError, match="not a run that can be read here"):
        picture_runs.find_runs(options(begun.parent, "."), "test")


def test_what_does_not_go_together_is_refused(runs: Path, tmp_path: Path) -> None:
    changed = replace(RUNS["softmax"], data=replace(BASE.data, seed=1))
    execute(PACKAGE, changed, Session(runs=tmp_path, data=tmp_path / "data", out=tmp_path / "changed"))
    some = FigureOptions(runs=(runs / "x3", tmp_path / "changed"), data=tmp_path / "data")
    with pytest.raises(WrongUseError, match="read different pictures"):
        p1_picture.make(some)
    one, two = (RunFolder(folder=Path(task), run=replace(BASE, task=task)) for task in ("cifar10-patches", "imagenet"))
    with pytest.raises(MissingError, match="different tasks or presets"):
        picture_runs.require_one_task([one, two], "test")
    odd = Rectangle(**{each.name: getattr(BASE.model, each.name) for each in fields(BASE.model)})
    with pytest.raises(WrongUseError, match="expected a square of patches"):
        picture_runs.grid_of(RunFolder(folder=Path("run"), run=replace(BASE, model=odd)))


@pytest.mark.parametrize("make", [p1_runs.scales, p3_losses.make])
def test_a_finished_run_without_recorded_losses_is_named(runs: Path, tmp_path: Path, make: Any) -> None:
    shutil.copytree(runs / "x3", tmp_path / "x3")
    (tmp_path / "x3" / "metrics.jsonl").unlink()
    with pytest.raises(MissingError, match=r"x3: expected training losses in metrics.jsonl, found none; copy"):
        make(options(tmp_path, "x3"))
    (tmp_path / "x3" / "result.json").unlink()
    if make is p3_losses.make:  # a run that has only just begun is left out
        assert not lines(make(options(tmp_path, "x3")).panels, "training loss")


def test_seeds_of_two_versions_of_the_code_are_not_averaged(tmp_path: Path) -> None:
    for name, digest in (("a", "1"), ("b", "1"), ("c", "2")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "sources.json").write_text(json.dumps({"common/training/optim.py": digest}))
    runs = [RunFolder(folder=tmp_path / name, run=replace(QUICK.run, seed=seed)) for seed, name in enumerate("abc")]
    picture_runs.require_seeds(runs[:2], "p3-losses", "x3")
    with pytest.raises(MissingError, match=r"would both be x3, but common/training/optim.py changed between them"):
        picture_runs.require_seeds(runs, "p3-losses", "x3")


def test_only_seeds_of_one_run_are_averaged() -> None:
    first = RunFolder(folder=Path("a"), run=QUICK.run)
    picture_runs.require_seeds([first, RunFolder(folder=Path("b"), run=replace(QUICK.run, seed=1))], "p1-scales", "x3")
    longer = replace(QUICK.run, seed=1, train=replace(QUICK.run.train, steps=7))
    with pytest.raises(MissingError, match=r"p1-scales: a and b would both be x3 \(they differ in train.steps\)"):
        picture_runs.require_seeds([first, RunFolder(folder=Path("b"), run=longer)], "p1-scales", "x3")
    model = replace(QUICK.run.model, norm=find_norm("post"))
    faster = replace(QUICK.run, model=model, optim=replace(QUICK.run.optim, lr=0.5))
    with pytest.raises(
        MissingError, match=r"p3-losses: a and d differ in optim.lr, which the figure does not show; choose"
    ):
        picture_runs.require_same_settings([first, RunFolder(folder=Path("d"), run=faster)], "p3-losses", ("model.",))
    with pytest.raises(MissingError, match=r"p1-scales: a and d differ in model.norm, optim.lr, which"):
        picture_runs.require_same_settings([first, RunFolder(folder=Path("d"), run=faster)], "p1-scales", ("model.at",))
    seen = replace(QUICK.run, train=replace(QUICK.run.train, diagnostics=True))  # changes no number
    picture_runs.require_same_settings([first, RunFolder(folder=Path("e"), run=seen)], "p1-scales", ("model.at",))
    other = RunFolder(folder=Path("f"), run=replace(QUICK.run, task="imagenet"))
    with pytest.raises(MissingError, match="p3-losses: a and f are of different tasks; name"):
        picture_runs.require_one_task([first, other], "p3-losses", presets=False)
    with pytest.raises(MissingError, match=r"p1-scales: a and c would both be x3; name one of them by --runs"):
        picture_runs.require_seeds([first, RunFolder(folder=Path("c"), run=QUICK.run)], "p1-scales", "x3")
