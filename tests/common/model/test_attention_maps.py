"""Heat maps and key masses against the weights on the full matrix."""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from seqarena.common.attention import ATTENTIONS
from seqarena.common.attention.visibility import Order, Visibility
from seqarena.common.errors import run_command
from seqarena.common.model.attention_maps import EDGES, FILE, SIDE, attention_maps, block
from seqarena.common.runs.results import read_results
from seqarena.scripts.seqarena import dispatch
from tests.common.attention.cases import HEADS, RULED, Case, cases
from tests.common.runs.test_cli import TINY


class Holder(nn.Module):
    """A model with one kernel in it."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.kernel = ATTENTIONS[name].build(heads=HEADS).double().eval()


@pytest.mark.parametrize(("name", "order"), RULED)
def test_maps_and_histograms_are_those_of_the_full_matrix(name: str, order: str) -> None:
    for each in cases(order):
        compare(Holder(name), each)


def compare(model: Holder, each: Case) -> None:
    weights = model.kernel.weights(each.query, each.key, each.visibility).detach()
    batch, _, queries, keys = weights.shape
    seen = each.visibility
    real_query = torch.ones(batch, queries, dtype=torch.bool) if seen.query_real is None else seen.query_real
    real_key = torch.ones(batch, keys, dtype=torch.bool) if seen.key_real is None else seen.key_real
    (found,) = attention_maps(model, lambda: model.kernel(each.query, each.key, each.key, seen))
    longest = int(real_query.sum(dim=1).argmax())
    shown = weights[longest].mean(dim=0)[real_query[longest]][:, real_key[longest]]
    assert (found["name"], found["queries"], found["keys"]) == ("kernel", *shown.shape)
    drawn = torch.tensor(found["map"], dtype=torch.float64)
    counts = seen.pairs(queries, keys, weights.device).sum(dim=-1).expand(batch, 1, queries)[longest, 0]
    torch.testing.assert_close(drawn, shown * counts[real_query[longest], None], rtol=0, atol=6e-5)
    masses = weights.sum(dim=2).transpose(1, 2)[real_key].numpy()
    assert found["histogram"] == np.histogram(masses, (-np.inf, *EDGES, np.inf))[0].tolist()


def test_a_long_sequence_is_drawn_in_blocks() -> None:
    model = Holder("softmax")
    query, key = torch.randn(1, HEADS, 3, 4), torch.randn(1, HEADS, 4 * SIDE, 4)
    real = torch.ones(1, 4 * SIDE, dtype=torch.bool)
    visibility = replace(cases("none")[0].visibility, query_real=None, key_real=real)
    (found,) = attention_maps(model, lambda: model.kernel(query, key, key, visibility))
    drawn = torch.tensor(found["map"])
    blocks = model.kernel.weights(query, key, visibility)[0].mean(dim=0).view(3, SIDE, 4).mean(dim=2) * 4 * SIDE
    torch.testing.assert_close(drawn, blocks, rtol=0, atol=1e-4)


def test_uniform_weights_are_one_in_any_order() -> None:
    """Also where an early query sees few keys."""
    model, zeros = Holder("softmax"), torch.zeros(1, HEADS, 6, 4)
    orders: tuple[Order, ...] = ("none", "causal")
    for order in orders:
        call = partial(model.kernel, zeros, zeros, zeros, Visibility(order=order))
        (found,) = attention_maps(model, call)
        cells = torch.tensor(found["map"])
        seen = torch.ones(6, 6).tril() if order == "causal" else torch.ones(6, 6)
        torch.testing.assert_close(cells, seen, rtol=0, atol=1e-4)


@pytest.mark.parametrize("tokens", [1, 5, SIDE, 48, 100])
def test_a_block_has_the_tokens_that_a_cell_is_the_mean_of(tokens: int) -> None:
    values = torch.randn(1, tokens)
    cells = torch.nn.functional.adaptive_avg_pool1d(values, min(SIDE, tokens))[0]
    for number, cell in enumerate(cells):
        first, last = block(number, tokens)
        torch.testing.assert_close(cell, values[0, first : last + 1].mean())


def test_a_diagnosed_run_leaves_its_maps_and_the_same_numbers(tmp_path: Path) -> None:
    folders = ["--runs", str(tmp_path / "runs"), "--data-folder", str(tmp_path)]
    command = ["lra", "listops", "--attention", "hnas", *folders, *TINY]
    assert run_command(dispatch, command) == 0
    assert run_command(dispatch, [*command, "--train.diagnostics"]) == 0
    plain, looked = sorted(
        read_results(tmp_path / "runs")[0].values(), key=lambda each: each.run["train"]["diagnostics"]
    )
    assert plain.score == looked.score
    (path,) = (tmp_path / "runs").rglob(FILE)
    told = json.loads(path.read_text())
    assert told["edges"] == list(EDGES)
    assert [each["name"] for each in told["attentions"]] == ["encoder.layers.0.attention"]
    assert sum(told["attentions"][0]["histogram"]) > 0
