"""The laboratory's numbers: theory against draws, closed forms against attention; what is written and refused."""

import csv
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from seqarena.common.errors import run_command
from seqarena.common.model.bert.model import BertConfig
from seqarena.common.saved_table import read_table
from seqarena.pretraining.wikitext.data import WikiText
from seqarena.scripts.figures import FIGURES, depth, p1_growth, p2, p3_eta, p3_pre_norm, p3_start, p3_steps
from seqarena.scripts.figures.p3_tau import similarities
from seqarena.scripts.figures.random_attention import Layer, drawn_values, escalation, layer, parts, post_norm, rates
from seqarena.scripts.seqarena import dispatch
from tests.pretraining.wiki import rhymes


def made(size: int = 24, dim: int = 32, heads: int = 4, mean: float = 0.5) -> tuple[Layer, torch.Generator]:
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randn(size, dim, generator=generator) + mean
    return layer(tokens, generator, heads=heads), generator


@pytest.mark.parametrize("alpha", [0.5, 1.0, 2.0])
def test_lemma_4_is_the_mean_over_value_matrices(alpha: float) -> None:
    """E[xi_i] = 1 + alpha^2 mu_i^2 with d sigma^2 = 1, heads averaged."""
    one, generator = made()
    before = parts(one.tokens)
    found = []
    for _ in range(600):
        after = parts(one.tokens + alpha * drawn_values(one.tokens, one.weights[0], generator))
        found.append([float(each / other) for each, other in zip(after, before, strict=True)])
    mean, error = np.mean(found, axis=0), np.std(found, axis=0) / 600**0.5
    expected = escalation(one, alpha).expected
    assert (np.abs(mean - expected) < 4 * error).all()
    assert (error < 0.05 * mean).all()


def test_rates_drawn_without_value_matrices_are_those_with_them() -> None:
    one, generator = made()
    with_them = torch.tensor(
        [
            escalation(Layer(tokens=one.tokens, weights=one.weights, values=values)).rate
            for values in (drawn_values(one.tokens, one.weights[0], generator) for _ in range(400))
        ]
    )
    without = rates(one, 2_000, generator)
    assert without.mean().item() == pytest.approx(with_them.mean().item(), rel=0.02)
    assert without.std().item() == pytest.approx(with_them.std().item(), rel=0.15)


def test_theorem_6_bounds_the_ratio_of_the_expectations_from_below() -> None:
    """Eq. 16 against r from Lemma 4's exact expectations, in every layer of two random stacks."""
    for seed in range(2):
        for each in post_norm(8, torch.Generator().manual_seed(seed)):
            found = escalation(each)
            ratio = found.expected[0] / found.expected[1]
            assert 1 < found.by_norms() <= 1 + (ratio - 1) * found.similarity + 1e-6
            assert found.delta + found.omega < 1


@pytest.mark.parametrize("mean", [0.0, 0.5, 3.0])
def test_corollary_7_is_theorem_6_for_symmetric_attention(mean: float) -> None:
    """Then omega is 0 and delta the second eigenvalue: eq. 16 is eq. 17, below Lemma 4's rate and the drawn one."""
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randn(24, 32, generator=generator, dtype=torch.float64) + mean
    drawn = torch.randn(4, 24, 24, generator=generator, dtype=torch.float64)
    weights = (drawn + drawn.transpose(1, 2)).exp()
    for _ in range(200):  # symmetric, rows and columns that sum to 1
        scale = weights.sum(dim=2).rsqrt()
        weights = scale[:, :, None] * weights * scale[:, None, :]
    torch.testing.assert_close(weights, weights.transpose(1, 2))
    torch.testing.assert_close(weights.sum(dim=2), torch.ones(4, 24, dtype=torch.float64))
    one = Layer(tokens=tokens, weights=weights[None], values=drawn_values(tokens, weights, generator))
    found = escalation(one)
    assert found.omega == pytest.approx(0, abs=1e-9)
    assert found.delta == pytest.approx(found.second_eigenvalue, rel=1e-9)
    assert found.by_eigenvalue() == pytest.approx(found.by_norms(), rel=1e-9)
    assert 1 < found.by_eigenvalue() <= 1 + (found.expected[0] / found.expected[1] - 1) * found.similarity + 1e-9
    measured = rates(one, 4_000, generator)
    assert found.by_eigenvalue() < measured.mean() + 4 * measured.std() / 4_000**0.5


@pytest.mark.parametrize("alpha", [0.5, 1.0, 2.0])
def test_omega_delta_and_eq_16_are_their_definitions(alpha: float) -> None:
    """Written out on the full matrices of attention that is not symmetric, a head at a time."""
    one, _ = made(mean=0.3)
    tokens, heads = one.tokens.double(), one.weights[0].double()
    size = len(tokens)
    ones, first = torch.ones(size, dtype=torch.float64), torch.full((size, size), 1 / size, dtype=torch.float64)
    rest = torch.eye(size, dtype=torch.float64) - first
    omega = torch.stack([(ones @ head @ rest @ tokens).norm() / (ones @ tokens).norm() for head in heads]).mean()
    delta = torch.stack([torch.linalg.matrix_norm(rest @ head, ord=2) for head in heads]).mean()
    found = escalation(one, alpha)
    assert found.omega == pytest.approx(omega.item(), rel=1e-4)
    assert found.delta == pytest.approx(delta.item(), rel=1e-4)
    similarity = ((first @ tokens).norm() / tokens.norm()) ** 2
    gain = alpha**2 / (1 + alpha**2 * delta**2) * ((1 - omega) ** 2 - delta**2)
    assert found.by_norms(alpha) == pytest.approx((1 + gain * similarity).item(), rel=1e-4)
    after = tokens + alpha * one.values.double()
    grown = [(part @ after).norm() ** 2 / (part @ tokens).norm() ** 2 for part in (first, rest)]
    assert found.ratio == pytest.approx((grown[0] / grown[1]).item(), rel=1e-3)


def test_norms_of_softmax_and_of_pre_norm_are_their_definitions() -> None:
    norms, slopes = p1_growth.softmax_norms((6,), 2.0)
    scores = 2.0 * torch.randn(6, 6, generator=torch.Generator().manual_seed(0))
    jacobian = torch.autograd.functional.jacobian(lambda each: each.softmax(dim=-1), scores)
    assert norms == [pytest.approx(scores.softmax(dim=-1).norm().item(), rel=1e-5)]
    assert slopes == [pytest.approx(jacobian.norm().item(), rel=1e-4)]
    found = p3_pre_norm.stack(2, 0)
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randn(64, 512, generator=generator)
    one = layer(torch.nn.functional.layer_norm(tokens, (512,)), generator)
    expected = {"X": tokens, "LN(X)": one.tokens, "P LN(X) W": one.values}
    assert {name: found[name][0] for name in expected} == pytest.approx(
        {name: each.norm().item() for name, each in expected.items()}, rel=1e-5
    )
    assert found["X"][1] == pytest.approx((tokens + one.values).norm().item(), rel=1e-5)


def test_powers_over_the_root_grow_as_the_root() -> None:
    lengths = (32, 64, 128, 256)
    whole = p1_growth.power_norms(lengths, 3, 2)[0]
    scaled = p1_growth.scaled_norms(lengths, 3, 2)
    assert scaled == pytest.approx([norm / length**0.5 for norm, length in zip(whole, lengths, strict=True)], rel=1e-6)


def test_gradients_are_taken_by_the_weights_of_each_layer() -> None:
    """All three layers' gradients differ; one layer at all depths has none, as P3 leaves ALBERT out."""
    found = p3_start.stream(replace(SMALL, layers=3), 8, 0, shared=False)
    assert len({round(each, 6) for each in found.gradient}) == 3
    assert min(found.gradient) > 0
    assert p3_start.stream(replace(SMALL, layers=3), 8, 0, shared=True).gradient == []


@pytest.mark.parametrize("alpha", [0.5, 1.0])
def test_the_rate_where_tokens_are_alike_is_that_of_the_skip_alone(alpha: float) -> None:
    """Diversity goes to 1 / (1 + alpha^2) of itself a layer: a half for alpha 1."""
    one, generator = made(mean=200.0)
    assert escalation(one, alpha).expected[0] == pytest.approx(1 + alpha**2, rel=1e-3)
    assert 1 / rates(one, 4_000, generator, alpha).reciprocal().mean().item() == pytest.approx(1 + alpha**2, rel=0.05)


def test_a_causal_matrix_has_its_diagonal_for_eigenvalues() -> None:
    generator = torch.Generator().manual_seed(0)
    causal = layer(torch.randn(16, 32, generator=generator), generator, heads=4, causal=True)
    assert not causal.weights.triu(1).any()
    expected = causal.weights.diagonal(dim1=-2, dim2=-1).sort(dim=-1, descending=True).values[0, :, 1].mean()
    assert escalation(causal).second_eigenvalue == pytest.approx(expected.item(), abs=1e-5)


def test_deescalation_on_the_stream_stops_it_and_on_the_branch_does_not() -> None:
    from seqarena.common.model.norms.deescalated import Deescalated  # noqa: PLC0415
    from seqarena.common.model.norms.post import PostNorm  # noqa: PLC0415

    ends = {
        where: similarities(Deescalated(tau=0.5, where=where), 0, depth=16, dim=64)[-1]  # type: ignore[arg-type]
        for where in ("block_output", "ffn_stream", "ffn_branch")
    }
    plain = similarities(PostNorm(), 0, depth=16, dim=64)[-1]
    assert plain > 0.99
    assert max(ends["block_output"], ends["ffn_stream"]) < 0.4
    assert ends["ffn_branch"] > 0.95


def test_a_feed_forward_adds_to_the_mean_where_tokens_differ_and_a_layer_norm_hardly_does() -> None:
    """The numbers of a stack by hand: the steps of p3-steps are those of a post-norm layer."""
    found = p3_steps.measure(p3_steps.FEED_FORWARDS["N(0, 1 / d), as p3-tau"], 0, 64)
    assert found.shape == (p3_steps.DEPTH, 4)
    assert found[0, 2] > 2 > found[-1, 2]
    assert found[:, [1, 3]].sub(1).abs().max() < 0.2
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randn(64, 64, generator=generator)
    first = layer(tokens, generator)
    ratios = [tokens, tokens + first.values]
    means = [each.mean(dim=0).square().sum() for each in ratios]
    rests = [(each - each.mean(dim=0)).square().sum() for each in ratios]
    assert float(found[0, 0]) == pytest.approx(float(means[1] / means[0] / (rests[1] / rests[0])), rel=1e-5)


@pytest.mark.parametrize("similarity", [0.1, 0.9])
def test_eta_is_the_expected_ratio_less_the_drawn_one(similarity: float) -> None:
    generator = torch.Generator().manual_seed(0)
    tokens = p3_eta.tokens_of(similarity, 64, generator)
    assert float(p3_start.token_similarity(tokens[None])) == pytest.approx(similarity, abs=1e-5)
    made = escalation(layer(tokens, generator))
    eta = made.expected[0] / made.expected[1] - made.ratio
    assert float(p3_eta.etas(similarity, 64, 1, 0)[0]) == pytest.approx(eta, abs=1e-5)


@pytest.mark.parametrize("place", [0.3, 1.0, 2.0])
@pytest.mark.parametrize("counts", [(3, 9), (8, 8), (20, 5)])
def test_centres_move_as_the_closed_form_says(place: float, counts: tuple[int, int]) -> None:
    ratio = counts[0] / counts[1]
    found = {name: p2.simulated_distance(name, counts, place) for name in p2.DISTANCES}
    for name, closed in p2.DISTANCES.items():
        assert found[name] == pytest.approx(closed(ratio, place), abs=1e-9)
    assert found["dnas"] >= found["softmax"] - 1e-12


def test_powers_grow_as_the_length_and_their_derivative_is_that_of_autograd() -> None:
    lengths = (32, 64, 128, 256)
    for power in (1, 3):
        for values in p1_growth.power_norms(lengths, power, 3):
            assert p1_growth.exponent(lengths, values) == pytest.approx(1.0, abs=0.1)
    generator = torch.Generator().manual_seed(0)  # as trial 0 draws
    query, key = (torch.randn(64, 64, generator=generator, dtype=torch.float64) for _ in range(2))
    tokens = torch.randn(3, 64, generator=generator, dtype=torch.float64)
    jacobian = torch.autograd.functional.jacobian(lambda query: (tokens @ query @ key.T @ tokens.T / 8) ** 3, query)
    assert p1_growth.power_norms((3,), 3, 1)[1][0] == pytest.approx(jacobian.norm().item(), rel=1e-9)


SMALL = BertConfig(vocabulary=300, layers=12, dim=96, heads=3, ffn_dim=384, initial_std=0.06, max_length=64)


def test_tokens_of_a_bert_as_initialised_become_alike() -> None:
    for shared in (False, True):
        found = p3_start.stream(SMALL, 32, 0, shared=shared)
        assert (len(found.similarity), len(found.gradient)) == (13, 0 if shared else 12)
        assert found.similarity[-1] > found.similarity[0] + 0.25
        assert all(
            later > earlier - 0.01 for earlier, later in zip(found.similarity[1:], found.similarity[2:], strict=False)
        )


@pytest.mark.extras
def test_they_do_so_as_in_the_transformers_library() -> None:
    """Its own model and its own initial values, other draws: means over three."""
    import transformers  # noqa: PLC0415

    ours = np.mean([p3_start.stream(SMALL, 32, seed, shared=False).similarity for seed in range(3)], axis=0)
    theirs = []
    for seed in range(3):
        torch.manual_seed(seed)
        config = transformers.BertConfig(
            vocab_size=300, hidden_size=96, num_hidden_layers=12, num_attention_heads=3, intermediate_size=384,
            initializer_range=0.06, max_position_embeddings=64,
        )  # fmt: skip
        model = transformers.BertModel(config, add_pooling_layer=False).eval()
        with torch.no_grad():
            hidden = model(torch.randperm(300)[None, :32], output_hidden_states=True).hidden_states
        theirs.append([float(p3_start.token_similarity(each)) for each in hidden])
    np.testing.assert_allclose(ours, np.mean(theirs, axis=0), atol=0.05)


@pytest.mark.extras
def test_gradients_are_those_of_the_transformers_library() -> None:
    """By each layer's weights, of a random direction of the last output; relative to the last, means of four draws."""
    import transformers  # noqa: PLC0415

    config = transformers.BertConfig(
        vocab_size=300, hidden_size=96, num_hidden_layers=12, num_attention_heads=3, intermediate_size=384,
        initializer_range=0.06, max_position_embeddings=64,
    )  # fmt: skip
    ours, theirs = [], []
    for seed in range(4):
        mine = p3_start.stream(SMALL, 32, seed, shared=False).gradient
        ours.append(np.log(np.array(mine) / mine[-1]))
        torch.manual_seed(seed)
        model = transformers.BertModel(config, add_pooling_layer=False).eval()
        hidden = model(torch.randperm(300)[None, :32], output_hidden_states=True).hidden_states
        (hidden[-1] * torch.randn_like(hidden[-1])).sum().backward()
        norms = np.array([p3_start._gradient_norm(each) for each in model.encoder.layer])
        theirs.append(np.log(norms / norms[-1]))
    np.testing.assert_allclose(np.mean(ours, axis=0), np.mean(theirs, axis=0), atol=0.25)


@pytest.mark.extras
def test_one_layer_all_the_way_up_is_albert_s() -> None:
    """The library's ALBERT, but for its embeddings, which are narrower and mapped: the stream begins alike in ours."""
    import transformers  # noqa: PLC0415

    config = transformers.AlbertConfig(
        vocab_size=300, embedding_size=96, hidden_size=96, num_hidden_layers=12, num_attention_heads=3,
        intermediate_size=384, initializer_range=0.06, max_position_embeddings=64,
    )  # fmt: skip
    ours, theirs = [], []
    for seed in range(4):
        mine = p3_start.stream(SMALL, 32, seed, shared=True)
        ours.append([mine.similarity, mine.cosine])
        torch.manual_seed(seed)
        model = transformers.AlbertModel(config, add_pooling_layer=False).eval()
        with torch.no_grad():
            hidden = model(torch.randperm(300)[None, :32], output_hidden_states=True).hidden_states
        theirs.append([[float(measure(each)) for each in hidden[-12:]] for measure in
                       (p3_start.token_similarity, p3_start.mean_cosine)])  # fmt: skip
    np.testing.assert_allclose(np.mean(ours, axis=0)[:, -1], np.mean(theirs, axis=0)[:, -1], atol=0.1)
    assert np.mean(ours, axis=0)[0, -1] > 0.9


@pytest.mark.extras
def test_all_are_drawn_and_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(depth, "QUICK", replace(depth.QUICK, depths=(1,), seeds=(1,), steps=2))
    monkeypatch.chdir(tmp_path)  # no folder of runs
    command = ["figures", "all", "--quick", "--json", "--out", str(tmp_path), "--data-folder", str(tmp_path / "data")]
    assert run_command(dispatch, command) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert set(FIGURES) - set(found) == {"p1-picture", "p2-runs", "p3-checkpoint", "p3-losses"}  # nothing was given
    differing = {name for name, findings in found.items() if not all(each["agrees"] for each in findings)}
    assert differing == {"p3-tau", "p3-steps", "p3-eta"}  # as docs/figures.md says
    for name in found:
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert "<svg" in (tmp_path / f"{name}.svg").read_text()
        rows = list(csv.DictReader((tmp_path / f"{name}.csv").read_text().splitlines()))
        assert len(rows) > 10
        assert all(np.isfinite(float(row["y"])) for row in rows)


def test_the_depth_experiment_trains_and_looks_at_every_layer(tmp_path: Path) -> None:
    """Each arm learns the ring of words; the memory goes on; what is looked at changes nothing."""
    text = WikiText(path=str(rhymes(tmp_path / "wiki", 400))).load(tmp_path, "wikitext2", report_differences=False)
    trial = depth.Trial(arm=depth.ARMS[0], depth=3, seed=0, steps=12, dim=16, text=text.checksum)
    for arm in depth.ARMS:
        course = depth.train(replace(trial, arm=arm), text)
        assert len(course.losses) == 12
        assert course.end < course.losses[0]
        assert course.looked == [1, 2, 4, 6, 8, 10, 12]
        assert {len(each) for each in (*course.similarity, *course.gradient)} == {3}
        assert all(0 <= value <= 1 for each in course.similarity for value in each)
        assert all(value > 0 for each in course.gradient for value in each)
    again = depth.train(trial, text)
    assert again == depth.train(trial, text)
    assert depth.train(replace(trial, arm=depth.ARMS[1]), text).losses[1:] != again.losses[1:]


def test_a_path_that_is_no_wikitext_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["figures", "depth", "--quick", "--out", str(tmp_path / "out"), "--data-folder", str(tmp_path)]
    assert run_command(dispatch, [*command, "--wikitext", str(tmp_path / "nowhere")]) == 1
    assert "no such file or folder" in capsys.readouterr().err
    (tmp_path / "empty").mkdir()
    assert run_command(dispatch, [*command, "--wikitext", str(tmp_path / "empty")]) == 1
    assert "there is no wiki.train.tokens in it" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_figure_is_the_same_every_time(tmp_path: Path) -> None:
    for folder in ("one", "other"):
        assert run_command(dispatch, ["figures", "p2-collapse", "--quick", "--out", str(tmp_path / folder)]) == 0
    for ending in ("svg", "csv"):
        one, other = ((tmp_path / folder / f"p2-collapse.{ending}").read_bytes() for folder in ("one", "other"))
        assert one == other


def test_findings_are_saved_as_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "found.json"
    command = ["figures", "p2-centres", "p2-collapse", "--out", str(tmp_path), "--save", str(path)]
    assert run_command(dispatch, command) == 0
    shown, table = capsys.readouterr().out, read_table(path)
    assert [row[1] for row in table.rows] == sorted(row[1] for row in table.rows)
    assert {row[1] for row in table.rows} == {"p2-centres", "p2-collapse"}
    assert all(f"{row[0]}\n" in shown for row in table.rows)
    assert table.command == "seqarena figures p2-centres p2-collapse"


def test_a_mistyped_figure_is_told_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(dispatch, ["figures", "p3-rate"]) == 2
    assert "unknown figure 'p3-rate'; nearest: p3-rates" in capsys.readouterr().err
    assert run_command(dispatch, ["figures"]) == 2
