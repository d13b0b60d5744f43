"""The laboratory's figures of trained models: the vision transformer, what is kept, runs and checkpoints of others."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from seqarena.common.attention import attention_name, find_attention
from seqarena.common.attention.elementwise import Elementwise
from seqarena.common.errors import BadDataError, run_command
from seqarena.lra.presets import PRESETS
from seqarena.scripts.figures import depth, p1_training, p2_recall, p2_runs, p3_removal, vision
from seqarena.scripts.figures.drawing import FigureOptions, Matrix, MissingError
from seqarena.scripts.figures.p3_checkpoint import attentions, measure
from seqarena.scripts.figures.trainings import cached, curve, end_of
from seqarena.scripts.figures.vision import Pictures, TrainingRecord, Trial, VisionTransformer
from seqarena.scripts.seqarena import dispatch

TRIAL = Trial(seed=0, steps=100, layers=2, dim=32, looks=2, data="stripes")


@pytest.fixture(scope="module")
def stripes() -> Pictures:
    """Pictures with stripes across or down: of any phase, so that no rule on single pixels tells them apart."""
    generator = torch.Generator().manual_seed(0)
    classes = torch.randint(2, (256,), generator=generator)
    phases = torch.randint(8, (256,), generator=generator)
    bright = (torch.arange(32) + phases[:, None]) // 4 % 2  # picture row
    pixels = torch.randint(60, (256, 32, 32), generator=generator) + 150 * bright[:, :, None]
    pixels = torch.where(classes[:, None, None] == 1, pixels, pixels.transpose(1, 2))
    half = slice(None, 128), slice(128, None)
    return Pictures(
        train=pixels[half[0]], train_classes=classes[half[0]], test=pixels[half[1]], test_classes=classes[half[1]],
        checksum="stripes",
    )  # fmt: skip


def test_u_is_judged_by_the_figure_of_its_task() -> None:
    """P2's Figure 3 for VQA, Figure 4 for pretraining."""
    falling = p2_runs.weight_findings("hnas", (0.9, 0.8, 0.6, 0.5), is_pretraining=True)
    assert [each.agrees for each in falling] == [True, True]
    rising = p2_runs.weight_findings("hnas", (0.5, 0.4, 0.9), is_pretraining=True)
    assert [each.agrees for each in rising] == [False, False]
    (claim,) = p2_runs.weight_findings("hnas", (0.95, 0.99), is_pretraining=False)
    assert claim.agrees
    assert "Figure 3" in claim.claim


@pytest.mark.parametrize("name", ["softmax", "x3", "dnas"])
@pytest.mark.usefixtures("unchecked_shapes")
def test_the_vision_transformer_tells_stripes_apart(stripes: Pictures, name: str) -> None:
    trial = replace(TRIAL, attention=find_attention(name), patch=(8, 8))
    course = vision.train(trial, stripes)
    assert len(course.losses) == 100
    assert course.looked == [1, 50, 100]
    assert course.accuracy[-1] > 0.95
    assert {len(each) for each in (*course.norm, *course.jacobian)} == {2}
    assert [(len(head), len(head[0])) for head in course.heads] == [(16, 16), (16, 16)]
    assert course == vision.train(trial, stripes)
    if name == "softmax":
        assert all(sum(row) == pytest.approx(1, abs=1e-5) for head in course.heads for row in head)
        assert all(1 - 1e-5 <= value <= math.sqrt(16) for each in course.norm for value in each)


def test_a_training_that_diverges_is_told_and_ends(stripes: Pictures) -> None:
    course = vision.train(replace(TRIAL, attention=Elementwise(power=3, scale=1e-25)), stripes)
    assert len(course.losses) < 100
    assert not math.isfinite(course.losses[-1])
    assert course.end == math.inf


def test_a_patch_is_a_rectangle_of_neighbours() -> None:
    """The first patch changes the first token alone, row by row of patches."""
    model = VisionTransformer(replace(TRIAL, patch=(8, 16)))
    seen: list[torch.Tensor] = []
    model.embedding.register_forward_hook(lambda _, given, __: seen.append(given[0]))
    picture = torch.arange(1024).view(1, 32, 32)
    with torch.no_grad():
        model(picture)
    assert seen[0].shape == (1, 8, 128)
    pixels = ((seen[0][0] + 1) * 127.5).round().long()
    assert torch.equal(pixels[0], picture[0, :8, :16].flatten())
    assert torch.equal(pixels[1], picture[0, :8, 16:].flatten())
    assert torch.equal(pixels[2], picture[0, 8:16, :16].flatten())


def made(norm: float, accuracy: float) -> TrainingRecord:
    return TrainingRecord(
        losses=[2.0, 1.0], looked=[1, 2], accuracy=[0.1, accuracy], norm=[[1.0], [norm]], jacobian=[[1.0], [norm]],
        heads=[[[1.0]]] * 2,
    )  # fmt: skip


def test_what_is_said_of_norms_follows_the_numbers() -> None:
    """All agree where unscaled powers are large and learn less; each claim differs when its number does."""
    numbers = {"softmax": (1.0, 0.5), "x^3 / sqrt N": (2.0, 0.5), "x / sqrt N": (2.0, 0.4)}
    numbers |= {"x^3, unscaled": (50.0, 0.3), "x, unscaled": (9.0, 0.3)}

    def said(**changed: tuple[float, float]) -> list[bool]:
        courses = {name: [made(*pair)] * 2 for name, pair in (numbers | changed).items()}
        return [each.agrees for each in p1_training._findings(courses)]

    assert said() == [True] * 8  # sizes of attention, of its derivative by x^3 alone, accuracies
    assert said(**{"x, unscaled": (2.5, 0.3)}) == [False] + [True] * 7
    assert said(**{"x^3 / sqrt N": (9.0, 0.5)}) == [True, False] + [True] * 6
    assert said(**{"x^3 / sqrt N": (17.0, 0.5)}) == [False, False, True, False, False] + [True] * 3
    assert said(**{"x^3, unscaled": (50.0, 0.6)}) == [True] * 5 + [False, True, True]
    assert said(softmax=(1.0, 0.9)) == [True] * 7 + [False]


def test_shares_of_negative_weights_are_told(
    stripes: Pictures, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(vision, "load", lambda _: stripes)
    signs = {"softmax": [[0.5, 0.5]], "x3": [[-0.5, 0.5]], "x1": [[-0.5, 0.1]]}

    def pretended(trial: Trial, _: Pictures) -> TrainingRecord:
        return replace(made(1.0, 0.5), heads=[signs.get(attention_name(trial.attention), [[1.0]])] * 2)

    monkeypatch.setattr(vision, "train", pretended)
    drawn = p1_training.heads(FigureOptions(trainings=tmp_path))
    assert drawn.findings[0].agrees
    assert drawn.findings[0].found == (
        "negative in the first and the last layer: softmax 0% and 0%, x^3 / sqrt N 50% and 50%, x / sqrt N 50% and 50%"
    )
    signs["softmax"] = [[-0.5, 0.5]]
    assert not p1_training.heads(FigureOptions(trainings=tmp_path / "other")).findings[0].agrees


def test_the_best_scale_of_each_length_is_the_one_of_least_loss(
    stripes: Pictures, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Trainings that end best where the scale is the root of the length are read as such."""
    monkeypatch.setattr(vision, "load", lambda _: stripes)

    def pretended(trial: Trial, _: Pictures) -> TrainingRecord:
        assert isinstance(trial.attention, Elementwise)
        assert trial.attention.scale is not None
        loss = 1 + abs(math.log2(trial.attention.scale) - math.log2(trial.length) / 2)
        return replace(made(1.0, 0.5), losses=[loss] * 10)

    monkeypatch.setattr(vision, "train", pretended)
    drawn = p1_training.scales(FigureOptions(trainings=tmp_path))
    mean = drawn.panels[0].lines[1]  # type: ignore[union-attr]
    assert list(mean.x) == [8, 16, 64, 256]
    assert mean.y[1:] == pytest.approx([4, 8, 16])
    assert all(each.agrees for each in drawn.findings)


@dataclass(frozen=True, kw_only=True)
class QuestionBatch:
    """A training that is no training."""

    seed: int


@dataclass(frozen=True, kw_only=True)
class Told:
    """What comes of it."""

    losses: Sequence[float]


def test_a_training_is_kept_and_not_repeated(tmp_path: Path) -> None:
    calls: list[int] = []

    def told(seed: int) -> Told:
        def train() -> Told:
            calls.append(seed)
            return Told(losses=[1.0, math.nan])

        return cached(tmp_path, "name", QuestionBatch(seed=seed), Told, train)

    first, again, other = told(0), told(0), told(1)
    assert calls == [0, 1]
    for course in (first, again, other):
        assert course.losses[0] == 1.0
        assert math.isnan(course.losses[1])
    for path in tmp_path.glob("*.json"):
        path.write_text(path.read_text()[:20])
    with pytest.raises(BadDataError, match=r"is damaged .*; delete it to train again"):
        told(0)


def a_run(
    folder: Path, attention: str, seed: int, masses: list[float], bound: float, weights: list[float],
    task: str = "listops", **optim: float,
) -> None:  # fmt: skip
    from seqarena.common.runs.config import to_json  # noqa: PLC0415

    folder.mkdir(parents=True)
    run = to_json(PRESETS[task]["quick"].run) | {"seed": seed}
    run |= {"model": run["model"] | {"attention": to_json(find_attention(attention))}, "optim": run["optim"] | optim}
    (folder / "run.json").write_text(json.dumps(run))
    lines = []
    for step, mass in enumerate(masses):
        inside: dict[str, list[float]] = {"smallest_key_mass": [mass, 1.0], "key_mass_bound": [bound, bound]}
        if weights:
            inside["hybrid_weight"] = [weights[step], 0.9]
        lines.append(json.dumps({"step": 10 * step, "validation": {"loss": 1.0}, "diagnostics": inside}))
    (folder / "metrics.jsonl").write_text("\n".join(lines))


def test_runs_are_read_and_said_to_keep_their_bound(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a_run(tmp_path / "a", "softmax", 0, [0.5, 1e-5], 0.0, [])
    a_run(tmp_path / "b", "dnas", 0, [0.5, 0.03], 0.02, [])
    a_run(tmp_path / "c", "hnas", 0, [0.5, 0.01], 0.012, [0.5, 0.8])
    drawn = p2_runs.make(FigureOptions(runs=(tmp_path,)))
    assert [each.claim.split(":")[0] for each in drawn.findings] == ["Figure 1", "Lemma 1", "Lemma 1", "Figure 3"]
    assert [each.agrees for each in drawn.findings] == [True, True, False, False]
    lines = {line.label: line.y for line in drawn.panels[0].lines}  # type: ignore[union-attr]
    assert lines["dnas, seed 0"] == [0.5, 0.03]
    assert lines["dnas, seed 0: its bound"] == [0.02, 0.02]
    assert lines["softmax, seed 0"] == [0.5, 1e-5]
    assert "softmax, seed 0: its bound" not in lines
    assert [line.y for line in drawn.panels[1].lines] == [[0.5, 0.8], [0.9, 0.9]]  # type: ignore[union-attr]
    path = tmp_path / "c" / "metrics.jsonl"  # u of hnas can be 0 at first, and its bound too
    path.write_text(path.read_text().replace('"key_mass_bound": [0.012, 0.012]', '"key_mass_bound": [0.0, 0.0]', 1))
    again = p2_runs.make(FigureOptions(runs=(tmp_path,)))
    assert [each.agrees for each in again.findings] == [each.agrees for each in drawn.findings]
    assert {line.label: line.y for line in again.panels[0].lines}["hnas, seed 0: its bound"] == [0.012]  # type: ignore[union-attr]
    a_run(tmp_path / "d", "dnas", 0, [0.5], 0.02, [])
    with pytest.raises(MissingError, match="cannot be compared"):
        p2_runs.find_runs(tmp_path)
    assert run_command(dispatch, ["figures", "p2-runs", "--runs", str(tmp_path / "none"), "--out", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert "no run with --train.diagnostics" in error
    assert p2_runs.COMMAND in error


@pytest.mark.parametrize(
    "broken", ['{"step": 5, "diagnostics": {"smallest_key_mass": [1.0, 1.0]}}', "other task", "other rate", "null"]
)
def test_runs_that_do_not_go_together_are_refused(tmp_path: Path, broken: str) -> None:
    a_run(tmp_path / "a", "softmax", 0, [0.5, 0.4], 0.0, [])
    if broken.startswith("other"):
        more: dict[str, Any] = {"task": "text"} if broken == "other task" else {"lr": 0.5}
        a_run(tmp_path / "b", "dnas", 0, [0.5, 0.4], 0.02, [], **more)
        with pytest.raises(MissingError, match="cannot be compared"):
            p2_runs.find_runs(tmp_path)
        return
    path = tmp_path / "a" / "metrics.jsonl"
    line = '{"step": 30, "diagnostics": {"smallest_key_mass": [null, 1], "key_mass_bound": [0, 0]}}'
    path.write_text(path.read_text() + "\n" + (line if broken == "null" else broken))
    with pytest.raises(BadDataError, match=r"found gaps|expected a number"):
        p2_runs.find_runs(tmp_path)


def test_what_is_said_of_depth_follows_the_numbers() -> None:
    """All agree where only plain post-norm fails, and only when deep; a broken training has failed."""
    size = depth.Size(depths=(4, 48), seeds=(2, 1), steps=10, dim=8)
    last = depth.FASTER[0].label, *(arm.label for arm in depth.ARMS[:2])

    def said(**deep: float) -> dict[str, bool]:
        ends = {(arm.label, layers): 5.0 for arm in (*depth.ARMS, *depth.FASTER) for layers in size.depths}
        ends |= {(label, 48): 7.0 for label in last} | {(label, 48): end for label, end in deep.items()}
        courses = {
            key: [depth.TrainingRecord(losses=[9.0] * 9 + [end], looked=[], similarity=[], gradient=[])]
            for key, end in ends.items()
        }
        return {each.claim: each.agrees for each in depth._findings(courses, size)}

    assert all(said().values())
    assert all(said(post=math.nan).values())
    assert not said(post=5.2)["post-norm fails with 48 layers"]
    assert not said(**{"post, warm-up": 5.2})[
        "ours: post-norm fails with a warm-up too, which P3's setting does not have"
    ]
    assert not said(**{"de-escalated, running": math.nan})["de-escalated, running: trains like pre-norm"]
    assert said(**{"de-escalated, running": math.nan})["de-escalated, prefix: trains like pre-norm"]
    assert said(**{"de-escalated, prefix": 4.0})["de-escalated, prefix: trains like pre-norm"]
    assert not said(**{depth.ARMS[-1].label: 4.0})["ours: the leaky form gains nothing from the future"]


def test_losses_of_seeds_are_drawn_as_far_as_all_went() -> None:
    line = curve("one", [[1.0, 3.0, 5.0, 7.0], [3.0, 5.0, math.inf]])
    assert (line.x, line.y) == ([1, 2], [2.0, 4.0])
    assert end_of([1.0] * 10 + [2.0] * 10) == 2.0
    assert end_of([1.0, math.nan]) == math.inf


def test_inputs_are_looked_at_before_anything_is_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["figures", "--out", str(tmp_path / "out"), "--data-folder", str(tmp_path), "p2-centres"]
    for further, words in (
        (["p3-checkpoint", "--checkpoint", str(tmp_path)], "there is no config.json in it"),
        (["p3-checkpoint"], "p3-checkpoint needs a model: --checkpoint FOLDER"),
        (["p1-norms", "--cifar", str(tmp_path / "nowhere")], "nowhere"),
        (["depth", "--wikitext", str(tmp_path / "nowhere")], "no such file or folder"),
        (["depth", "--wikitext", ""], "--wikitext: expected a path, found nothing"),
        (["all", "p1-norm"], "unknown figure 'p1-norm'"),
        (["--out", str(Path(__file__))], "expected a folder, found a file"),
    ):
        assert run_command(dispatch, [*command, *further]) in {1, 2}
        assert words in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_removal_balances_attention_where_its_odds_say() -> None:
    for tau in (0.1, 0.5, 0.9):
        assert p3_removal.simulated(0.7, tau) == pytest.approx(p3_removal.after(0.7, tau), abs=1e-12)
    assert p3_removal.final_similarity(0.15, 0, 24) > 0.5
    assert p3_removal.final_similarity(0.4, 0, 24) < 0.1
    for tau in (0.0, 0.2, 0.4):
        assert p3_removal.final_similarity(tau, 0, 12) == pytest.approx(
            p3_removal.predicted_similarity(tau, 12), abs=0.15
        )


def test_a_matrix_is_drawn_and_listed(tmp_path: Path) -> None:
    from seqarena.scripts.figures.drawing import Drawing, FigureResult, save  # noqa: PLC0415

    values = [[0.0, -1.0], [2.0, 0.5]]
    drawn = FigureResult(panels=[Matrix(title="head", x="key", y="query", values=values)], findings=[])
    save(Drawing(name="head", source="P1", shows="a head", make=lambda _: drawn), drawn, tmp_path)
    assert (tmp_path / "head.csv").read_text().splitlines()[1:] == [
        "head,query 0,0,0.0,", "head,query 0,1,-1.0,", "head,query 1,0,2.0,", "head,query 1,1,0.5,",
    ]  # fmt: skip


@pytest.mark.extras
@pytest.mark.parametrize("kind", ["Llama", "Qwen2", "GPT2", "Bert"])
def test_checkpoints_of_the_transformers_library_are_looked_into(kind: str, tmp_path: Path) -> None:
    """Pre-norm models as initialised: LN(X) has the norm of its size; BERT's attention reads X itself."""
    import transformers  # noqa: PLC0415
    from tokenizers.pre_tokenizers import ByteLevel  # noqa: PLC0415

    alphabet = {character: number for number, character in enumerate(sorted(ByteLevel.alphabet()))}
    transformers.Qwen2Tokenizer(vocab=alphabet, merges=[]).save_pretrained(tmp_path)
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 64}
    if kind == "Qwen2":
        sizes["num_key_value_heads"] = 2
    if kind == "GPT2":
        sizes = {"n_embd": 32, "n_layer": 3, "n_head": 4}
    config = getattr(transformers, f"{kind}Config")(vocab_size=300, **sizes)
    model = getattr(transformers, f"{kind}Model")(config)
    model.save_pretrained(tmp_path)
    assert [len(parts) for parts in attentions(model)] == [3, 3]
    inside = measure(tmp_path, texts=2, length=16)
    assert len(inside.similarity) == len(inside.stream) == 4
    assert all(0 < value < 1 for value in inside.similarity)
    assert len(inside.read) == len(inside.added) == (0 if kind == "Bert" else 3)
    assert all(value == pytest.approx((16 * 32) ** 0.5, rel=0.1) for value in inside.read)
    if kind != "Bert":  # the final norm, whose output is larger, is not taken for the stream
        assert inside.stream[-1] < 1.5 * inside.stream[0]
        with torch.no_grad():
            hidden = model(torch.zeros(1, 4, dtype=torch.long), output_hidden_states=True).hidden_states
        assert hidden[-1].norm() > 3 * hidden[-2].norm()
    (tmp_path / "model.safetensors").write_bytes(b"0" * 100)
    with pytest.raises(BadDataError, match="could not load it"):
        measure(tmp_path, texts=1, length=8)


def test_the_gain_by_recall_says_what_it_found() -> None:
    def told(gains: list[float], missed: float = 0.4, seen: float = -0.05) -> list[bool]:
        found = {}
        for recall, gain in zip((0.5, 0.7, 1.0), gains, strict=True):
            for arm, more in (("softmax", 0.0), ("dnas", 1.0)):
                found[arm, recall] = [
                    p2_recall.Scores(
                        accuracy=0.7 + more * gain + by_seed,
                        material_missed=None if recall == 1 else 0.3 + more * missed + by_seed,
                        material_seen=0.9 + more * seen - by_seed,
                    )
                    for by_seed in (-0.03, 0.03)
                ]
        return [each.agrees for each in p2_recall.findings(found)]

    assert told([0.09, 0.05, 0.0]) == [True, True, True]
    assert told([0.05, 0.09, 0.0]) == [False, True, True]
    assert told([0.01, 0.01, 0.0]) == [False, True, True]
    assert told([0.09, 0.05, 0.03]) == [True, False, True]
    assert told([0.09, 0.05, 0.0], missed=0.01, seen=0.0) == [True, True, False]
    assert told([0.09, 0.05, 0.0], missed=0.1, seen=0.2) == [True, True, False]


def test_a_scene_is_trained_as_a_run_is(tmp_path: Path) -> None:
    """The same numbers as ``vqa scenes`` with these settings."""
    scene = p2_recall.Scene(attention=find_attention("dnas"), seed=1, recall=0.5, scenes=30, tested=8, steps=3)
    found = p2_recall.train(scene, FigureOptions(data=tmp_path))
    command = [
        "vqa", "scenes", "--attention", "dnas", "--seed", "1", "--data.recall", "0.5", "--data.scenes", "30",
        "--data.held-out", "8",
        "--train.steps", "3", "--train.select", "last", "--train.eval-every", "3", "--optim.schedule.warmup", "2",
        "--train.precision", "float32", "--out", str(tmp_path / "run"),
    ]  # fmt: skip
    assert run_command(dispatch, command) == 0
    metrics = json.loads((tmp_path / "run" / "result.json").read_text())["metrics"]
    assert found == p2_recall.Scores(
        **{name: metrics[name] for name in ("accuracy", "material_missed", "material_seen")}
    )
