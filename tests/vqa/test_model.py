"""Fusion and Pythia: P2's formulas written out, padding, key masses, parameter counts, learning, runs that resume."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from seqarena.common.attention import PAPERS, find_attention
from seqarena.common.errors import WrongUseError, run_command
from seqarena.common.model.diagnostics import diagnose
from seqarena.common.training.runtime import make_accelerator
from seqarena.scripts.seqarena import dispatch
from seqarena.vqa.data import Arrays, VqaData
from seqarena.vqa.data.batches import PictureOrder
from seqarena.vqa.data.published import UNKNOWN
from seqarena.vqa.data.scenes import Scenes
from seqarena.vqa.evaluator import evaluate
from seqarena.vqa.fusion import Fusion, ViewFusion
from seqarena.vqa.masses import Masses, compute_key_masses
from seqarena.vqa.model import Answerer, Model
from seqarena.vqa.presets import MINI, PRESETS
from seqarena.vqa.run import Run
from seqarena.vqa.trainer import assemble, loss

WIDTH, BOXES = 6, 5
SMALL = Scenes(scenes=40, held_out=40)


def regions(pictures: int = 2, views: int = 3, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Boxes of which some are padding, in every view other ones."""
    generator = torch.Generator().manual_seed(seed)
    counts = torch.randint(2, BOXES + 1, (pictures, views), generator=generator)
    boxes = torch.randn(pictures, views, BOXES, WIDTH, generator=generator, dtype=torch.float64)
    return boxes, torch.arange(BOXES) < counts[..., None]


def fused(config: Fusion, name: str = "softmax", views: int = 3) -> ViewFusion:
    torch.manual_seed(1)
    return ViewFusion(config, find_attention(name), views, WIDTH).double()


@pytest.mark.parametrize("name", ["softmax", "dnas", "hnas"])
@pytest.mark.parametrize("keys", ["per_view", "joint"])
def test_fusion_is_the_formula(name: str, keys: str) -> None:
    """z_i = x_i + sum_m W_o sum_j pi_ij W_v y_j, box by box and view by view."""
    boxes, real = regions()
    module = fused(Fusion(keys=keys), name)  # type: ignore[arg-type]
    joined, seen = module(boxes, real)
    assert torch.equal(seen, real[:, 0])
    for picture in range(2):
        primary = boxes[picture, 0][real[picture, 0]]
        query = module.query(primary)
        others = [boxes[picture, view][real[picture, view]] for view in (1, 2)]
        mapped = [(module.key[m](each), module.value[m](each)) for m, each in enumerate(others)]
        groups = mapped if keys == "per_view" else [tuple(torch.cat(parts) for parts in zip(*mapped, strict=True))]
        expected = primary
        for number, (key, value) in enumerate(groups):
            exponents = (query @ key.T / math.sqrt(WIDTH)).exp()
            usual = exponents / exponents.sum(dim=1, keepdim=True)
            doubly = exponents / exponents.sum(dim=0)
            doubly = doubly / doubly.sum(dim=1, keepdim=True)
            weights = {"softmax": usual, "dnas": doubly, "hnas": (usual + doubly) / 2}[name]
            expected = expected + module.output[number](weights @ value)
        torch.testing.assert_close(joined[picture][real[picture, 0]], expected)


@pytest.mark.parametrize("name", [name for name, variant in PAPERS.items() if "none" in variant.orders])
@pytest.mark.parametrize("keys", ["per_view", "joint"])
def test_padding_moves_no_real_box(name: str, keys: str) -> None:
    boxes, real = regions(seed=3)
    module = fused(Fusion(keys=keys), name)  # type: ignore[arg-type]
    other = torch.where(real[..., None], boxes, 1e3 * torch.randn_like(boxes))
    here, there = module(boxes, real)[0], module(other, real)[0]
    torch.testing.assert_close(here[real[:, 0]], there[real[:, 0]])


@pytest.mark.parametrize("keys", ["per_view", "joint"])
def test_no_key_of_dnas_is_explained_away(keys: str) -> None:
    boxes, real = regions(pictures=4, seed=5)
    module = fused(Fusion(keys=keys, alike=5.0), "dnas")  # type: ignore[arg-type]
    inside = diagnose(module, lambda: module(boxes, real))
    bound = 1 / (real[:, 1:].sum(dim=2).max() if keys == "per_view" else real[:, 1:].sum(dim=(1, 2)).max())
    assert inside["key_mass_bound"] == [pytest.approx(float(bound))]
    assert inside["smallest_key_mass"][0] >= float(bound) - 1e-6
    usual = fused(Fusion(keys=keys, alike=5.0), "softmax")  # type: ignore[arg-type]
    assert diagnose(usual, lambda: usual(boxes, real))["smallest_key_mass"][0] < float(bound) / 10


@pytest.mark.parametrize("keys", ["per_view", "joint"])
def test_key_masses_are_column_sums_of_real_boxes(keys: str) -> None:
    boxes, real = regions(seed=7)
    module = fused(Fusion(keys=keys, alike=3.0), "dnas")  # type: ignore[arg-type]
    masses = module.key_masses(boxes, real)
    assert torch.equal(masses > 0, real[:, 1:])
    inside = diagnose(module, lambda: module(boxes, real))
    assert masses[real[:, 1:]].min().item() == pytest.approx(inside["smallest_key_mass"][0], rel=1e-5)
    attentions = 2 if keys == "per_view" else 1
    assert masses.sum().item() == pytest.approx(attentions * real[:, 0].sum().item())  # each query gives away 1


def test_baselines_are_what_they_say() -> None:
    boxes, real = regions()
    for kind, expected, seen in (
        ("primary", boxes[:, 0], real[:, 0]), ("boxes", boxes.flatten(1, 2), real.flatten(1, 2)),
        ("channels", torch.cat(boxes.unbind(1), dim=-1), real[:, 0]),
    ):  # fmt: skip
        joined, kept = fused(Fusion(kind=kind))(boxes, real)  # type: ignore[arg-type]
        assert torch.equal(joined, expected)
        assert torch.equal(kept, seen)
    module = fused(Fusion(kind="mean"))
    joined, _ = module(boxes, real)
    means = [boxes[0, view][real[0, view]].mean(dim=0) for view in (1, 2)]
    added = sum(module.output[m](module.value[m](mean)) for m, mean in enumerate(means))
    torch.testing.assert_close(joined[0], boxes[0, 0] + added)
    alone, _ = fused(Fusion(residual=False, layer_norm=True))(boxes, real)
    torch.testing.assert_close(alone.mean(dim=-1), torch.zeros(2, BOXES, dtype=torch.float64), atol=1e-6, rtol=0)


def test_queries_and_keys_can_begin_alike() -> None:
    module = fused(Fusion(alike=2.0))
    for each in (module.query, *module.key):
        assert torch.equal(each.weight, 2 * torch.eye(WIDTH, dtype=torch.float64))
        assert not each.bias.any()
    assert sum(parameter.numel() for parameter in module.kernel.parameters()) == 0


def large() -> VqaData:
    """Boxes and answers of the published size."""
    boxes = np.zeros((1, 1, 100, 2_048), dtype=np.float16)
    views = Arrays(features=boxes, centres=boxes[..., :2], saw=np.zeros((1, 0, 100), dtype=np.int64))
    split = replace(SMALL.split(0, 4), views=views)
    names = [str(each) for each in range(20_000)]
    return VqaData(splits={"train": split}, answers=names[:3_129], words=names, checksum="")


def test_pythia_has_the_published_sizes() -> None:
    """LSTM 5.43, question attention 0.53, box attention 20.5, product 20.5, classifier 43.1 million: 90.0."""
    with torch.device("meta"):
        model = Answerer(Model(fusion=Fusion(kind="primary")), large())
    parts = {
        "LSTM": [model.question.reader], "question attention": [model.question.weigh],
        "boxes": [model.box_in, model.question_in, model.box_score],
        "product": [model.picture_out, model.question_out], "classifier": [model.branches],
    }  # fmt: skip
    found = {
        name: sum(parameter.numel() for part in some for parameter in part.parameters()) / 1e6
        for name, some in parts.items()
    }
    expected = {"LSTM": 5.43, "question attention": 0.53, "boxes": 20.5, "product": 20.5, "classifier": 43.1}
    assert found == pytest.approx(expected, abs=0.06)
    assert sum(found.values()) == pytest.approx(90.0, abs=0.06)
    with torch.device("meta"):
        trained = Answerer(Model(fusion=Fusion(kind="primary"), fc7=2_048), large())
    assert sum(each.numel() for each in trained.fc7.parameters()) == 2_048 * 2_049


def run_of(**changes: object) -> Run:
    preset = PRESETS["scenes"]["quick"].run
    optim = replace(preset.optim, schedule=replace(preset.optim.schedule, warmup=1))
    train = replace(preset.train, steps=4, batch_size=12, eval_every=2)
    return replace(preset, data=SMALL, optim=optim, train=train, **changes)  # type: ignore[arg-type]


def test_a_question_is_about_its_own_picture(tmp_path: Path) -> None:
    """Changing another picture's boxes moves no answer; grouped and single batches agree."""
    assembly = assemble(run_of(), tmp_path, make_accelerator("float32"))
    unread, model = assembly.batches[0], assembly.model.eval()
    batch = unread.to(torch.device("cpu"))
    with torch.no_grad():
        whole = model(batch.words, batch.picture, batch.features, batch.centres, batch.real)
        for question in range(len(batch)):
            one = unread.rows(question, question + 1).to(torch.device("cpu"))
            alone = model(one.words, one.picture, one.features, one.centres, one.real)
            torch.testing.assert_close(alone[0], whole[question], atol=1e-5, rtol=1e-5)
    value = loss(model, batch)
    each = torch.nn.functional.binary_cross_entropy_with_logits(whole, batch.targets, reduction="none").sum(dim=1)
    torch.testing.assert_close(value, each.mean())


def test_pythia_is_the_formula() -> None:
    """Question by question, on float64, with padded boxes that hold anything."""
    torch.manual_seed(0)
    data = replace(SMALL, boxes=5, width=4)
    config = replace(MINI, fusion=Fusion(kind="primary"), place_frequencies=2, joint_dim=7, answer_dim=5)
    loaded = data.load(Path())
    model = Answerer(config, loaded).double()
    generator = torch.Generator().manual_seed(1)
    features = torch.randn(2, 3, 5, 4, generator=generator, dtype=torch.float64)
    centres = torch.rand(2, 3, 5, 2, generator=generator, dtype=torch.float64)
    counts, picture = torch.tensor([3, 5]), torch.tensor([1, 0, 0])
    words = torch.randint(1, len(loaded.words), (3, 6), generator=generator)
    real = (torch.arange(5) < counts[:, None])[:, None].expand(2, 3, 5)
    features[0, :, 3:] = 1e3
    logits = model(words, picture, features, centres, real)
    for question, row in enumerate(picture.tolist()):
        boxes = features[row, 0, : counts[row]]
        x, y = centres[row, 0, : counts[row]].unbind(-1)
        turns = [math.pi * each * rate for each in (x, y) for rate in (1, 2)]
        place = torch.stack([x - 0.5, y - 0.5, *(each.sin() for each in turns), *(each.cos() for each in turns)], dim=1)
        boxes = torch.cat([boxes, 2.0 * place], dim=1)
        outputs = model.question.reader(model.embedding(words[question : question + 1]))[0][0]
        glimpses = model.question.weigh(outputs).softmax(dim=0)
        asking = torch.cat([glimpses[:, 0] @ outputs, glimpses[:, 1] @ outputs])
        product = model.box_in(boxes).relu() * model.question_in(asking).relu()
        looked = model.box_score(product)[:, 0].softmax(dim=0) @ boxes
        joint = model.picture_out(looked).relu() * model.question_out(asking).relu()
        expected = torch.zeros(len(data.answers), dtype=torch.float64)
        for branch in model.branches:
            expected = expected + branch[-1](branch[0](joint).relu())
        torch.testing.assert_close(logits[question], expected)


def test_scores_and_groups_are_counted_apart() -> None:
    """Of a model that always gives one answer: 0.3 for each who agrees, at most 1, in all and in each part."""
    split = replace(SMALL, scenes=120).split(0, 120)

    class Same(torch.nn.Module):
        def forward(self, words: torch.Tensor, *rest: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.one_hot(torch.full((len(words),), 2), 12).float()

    found = evaluate(Same(), split, SMALL.answers, make_accelerator("float32")).evaluation
    scores = [
        min(1.0, 0.3 * sum(int(count) for each, count in zip(options, people, strict=True) if each == 2))
        for options, people in zip(split.options, split.people, strict=True)
    ]
    kinds = split.parts["kind"].of
    assert found.examples == pytest.approx(scores)
    assert found.metrics["accuracy"] == pytest.approx(sum(scores) / len(scores))
    for name, part in {"material": kinds == 0, "there": kinds == 2, **split.groups}.items():
        own = [score for score, inside in zip(scores, part, strict=True) if inside]
        assert found.metrics[name] == pytest.approx(sum(own) / len(own))
    assert found.metrics["there"] == 0.0
    assert "key_mass_least" not in found.metrics


def test_unknown_is_never_answered_and_pairs_must_both_be_right() -> None:
    """Consistency counts pairs both of whose accuracies are above a half; the same by hand."""
    split = replace(SMALL, scenes=120).split(0, 120)
    pairs = np.arange(2, len(split), 3).reshape(-1, 2)  # is there a thing
    answers = [UNKNOWN, *SMALL.answers[1:]]

    class Likes(torch.nn.Module):
        def forward(self, words: torch.Tensor, *rest: torch.Tensor) -> torch.Tensor:
            wanted = torch.zeros(len(words), 12)
            wanted[:, 0], wanted[:, 10] = 9.0, 1.0 + words[:, 0] * 0.0
            return wanted

    found = evaluate(Likes(), replace(split, pairs=pairs), answers, make_accelerator("float32"))
    assert set(found.guesses.tolist()) == {10}
    scores = split.score(np.full(len(split), 10))
    both = [min(scores[one], scores[other]) > 0.5 for one, other in pairs]
    assert found.evaluation.metrics["consistency"] == pytest.approx(sum(both) / len(both))
    either = [max(scores[one], scores[other]) > 0.5 for one, other in pairs]
    low = [min(scores[one], scores[other]) > 0.2 for one, other in pairs]
    assert sum(both) not in {sum(either), sum(low)}


def masses(mass: list[list[list[float]]], real: list[list[list[int]]], bound: float, *, normalized: bool) -> Masses:
    kept = np.array(real, dtype=bool)
    saw = np.where(kept, np.arange(kept.shape[2]) % 2, -1)
    bounds = np.full((*kept.shape[:2], 1), bound)
    return Masses(mass=np.array(mass), bound=bounds, real=kept, is_normalized=normalized, saw=saw)


def test_masses_are_told_by_hand(tmp_path: Path) -> None:
    """Two views of one picture; padding has no part. keys_used: exp of the entropy of shares, over their number."""
    told = masses(
        [[[0.05, 0.2, 1.0, 9.0], [2.0, 2.0, 0.3, 0.3]]], [[[1, 1, 1, 0], [1, 1, 0, 0]]], 0.15, normalized=True
    )
    found = told.metrics()
    kept = np.array([0.05, 0.2, 1.0, 2.0, 2.0])
    low, middle = np.quantile(kept, [0.01, 0.5])
    shares = np.array([0.05, 0.2, 1.0]) / 1.25
    used = (np.exp(-(shares * np.log(shares)).sum()) / 3 + 1.0) / 2
    expected = {"key_mass_least": 0.05, "key_mass_1_percent": low, "key_mass_median": middle, "keys_below_a_tenth": 0.2,
                "keys_below_bound": 0.2, "keys_used": used, "key_mass_missed": (0.05 + 1.0 + 2.0) / 3,
                "key_mass_seen": 1.1}  # fmt: skip
    assert found == pytest.approx(expected)
    told.write(tmp_path)
    file = json.loads((tmp_path / "key_masses.json").read_text())
    assert file["view 3"]["histogram"] == [0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0]
    signed = masses([[[-1.0, 5.0, 500.0]]], [[[1, 1, 1]]], 0.3, normalized=False)
    assert not {"keys_used", "keys_below_bound"} & set(signed.metrics())
    signed.write(tmp_path)
    assert json.loads((tmp_path / "key_masses.json").read_text())["view 2"]["histogram"] == [1, *[0] * 8, 1, 0, 1]


@pytest.mark.parametrize(("keys", "bound"), [("per_view", 1 / 8), ("joint", 1 / 16)])
def test_bounds_are_of_the_softmax_that_a_key_is_in(keys: str, bound: float) -> None:
    model = Answerer(replace(MINI, fusion=Fusion(keys=keys)), SMALL.load(Path()))  # type: ignore[arg-type]
    found = compute_key_masses(model, SMALL.split(0, 6), make_accelerator("float32"))
    assert found is not None
    assert (found.bound == bound).all()
    assert found.is_normalized
    x3 = Answerer(replace(MINI, attention=find_attention("x3")), SMALL.load(Path()))
    plain = compute_key_masses(x3, SMALL.split(0, 6), make_accelerator("float32"))
    assert plain is not None
    assert not plain.is_normalized


def test_runs_of_a_seed_see_one_order_and_others_another(tmp_path: Path) -> None:
    one, other = (assemble(replace(run_of(), seed=seed), tmp_path, make_accelerator("float32")) for seed in (0, 1))
    assert not torch.equal(one.batches[0].pictures, other.batches[0].pictures)  # type: ignore[attr-defined]
    order = PictureOrder(pictures=np.arange(40) // 2, batch_size=40, seed=0)
    assert (order[0] != order[1]).any()
    assert (order[0] != PictureOrder(pictures=np.arange(40) // 2, batch_size=40, seed=1)[0]).any()


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (replace(MINI, fusion=Fusion(heads=5)), "model.fusion.heads: expected a divisor"),
        (
            replace(MINI, fusion=Fusion(kind="boxes"), attention=find_attention("dnas")),
            "has no attention; omit --attention",
        ),
        (replace(MINI, fusion=Fusion(alike=0.0)), "model.fusion.alike"),
        (replace(MINI, fusion=Fusion(kind="mean", keys="joint")), "has no keys, heads or layer_norm"),
        (replace(MINI, fusion=Fusion(kind="channels")), "it needs data.aligned"),
        (replace(MINI, joint_dim=0), "model.joint_dim"),
        (replace(MINI, fc7=-1), "model.place_frequencies and model.fc7"),
    ],
)
def test_models_that_cannot_be_are_refused(model: Model, words: str) -> None:
    with pytest.raises(WrongUseError, match=words):
        run_of(model=model).check()


@pytest.mark.parametrize("name", ["softmax", "dnas", "x3"])
@pytest.mark.usefixtures("unchecked_shapes")
def test_an_answerer_learns_colours_that_are_there(name: str, tmp_path: Path) -> None:
    """Every variant fits a few scenes' questions by heart."""
    accelerator = make_accelerator("float32")
    run = run_of(model=replace(MINI, attention=find_attention(name)))
    run = replace(run, train=replace(run.train, steps=120, batch_size=24))
    assembly = assemble(run, tmp_path, accelerator)
    stepper = run.train.stepper(assembly.model, assembly.loss, run.optim, 0, accelerator)
    losses = [float(stepper.take(stepper.share(assembly.batches[step]), step)[0]) for step in range(120)]
    assert sum(losses[-10:]) < 0.7 * sum(losses[:10])


def test_a_run_ends_with_its_groups_told_and_norms_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["vqa", "scenes", "--runs", str(tmp_path), "--data.scenes", "40", "--data.held-out", "40",
               "--train.steps", "4", "--train.eval-every", "2", "--optim.schedule.warmup", "1"]  # fmt: skip
    assert run_command(dispatch, [*command, "--attention", "hnas", "--json"]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert {"accuracy", "material", "shape", "there", "material_missed", "material_seen"} <= set(found["metrics"])
    masses = [found["metrics"][f"key_mass_{name}"] for name in ("least", "1_percent", "median")]
    assert 0 < masses[0] <= masses[1] <= masses[2]
    assert 0 <= found["metrics"]["keys_below_a_tenth"] <= 1
    assert found["norm"] == "none"
    assert list(found["bounded"]) == ["fused.kernel.u"]
    assert found["score"] == pytest.approx(sum(found["example_scores"]) / 120)
    assert run_command(dispatch, [*command, "--norm", "pre"]) == 2
    assert "vqa scenes has no block normalisation" in capsys.readouterr().err


def test_a_machine_without_recurrent_layers_in_a_precision_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as a processor with AVX2 alone in bfloat16."""

    def without(*_: object) -> None:
        raise RuntimeError("could not create a primitive descriptor for the LSTM forward propagation primitive")

    monkeypatch.setattr(torch.nn.LSTM, "forward", without)
    with pytest.raises(WrongUseError, match=r"train\.precision float32: PyTorch has no recurrent layers"):
        assemble(run_of(), tmp_path, make_accelerator("float32"))


def test_batches_by_picture_are_measured_beside_single_ones(capsys: pytest.CaptureFixture[str]) -> None:
    """Both have the same loss, which the benchmark itself demands."""
    command = ["benchmark", "views", "--questions", "6", "--each", "3", "--boxes", "4", "--width", "8", "--joint-dim",
               "16", "--repeats", "1"]  # fmt: skip
    assert run_command(dispatch, command) == 0
    told = capsys.readouterr().out
    assert "grouped" in told
    assert "3 x 4 x 8 features on disk" in told
    assert run_command(dispatch, [*command[:-1], "0"]) == 2
    assert "--repeats: expected at least 1" in capsys.readouterr().err


def test_there_are_no_key_masses_without_weights() -> None:
    data = SMALL.split(0, 6)
    model = Answerer(replace(MINI, attention=find_attention("linear")), SMALL.load(Path()))
    assert compute_key_masses(model, data, make_accelerator("float32")) is None
