"""Heat maps and key masses against the weights on the full matrix."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from common.attention import ATTENTIONS
from common.attention_maps import EDGES, FILE, SIDE, attention_maps
from tests.common.attention.cases import HEADS, RULED, cases
from tests.common.toy import TRAIN, toy_fit


class Holder(nn.Module):
    """A model with one kernel in it."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.kernel = ATTENTIONS[name].build(heads=HEADS).double().eval()


@pytest.mark.parametrize(("name", "order"), RULED)
def test_maps_and_histograms_are_those_of_the_full_matrix(name: str, order: str) -> None:
    for each in cases(order):
        model = Holder(name)
        weights = model.kernel.weights(each.query, each.key, each.visibility)
        batch, _, queries, keys = weights.shape
        real_query, real_key = (
            torch.ones(batch, length, dtype=torch.bool) if real is None else real
            for real, length in ((each.visibility.query_real, queries), (each.visibility.key_real, keys))
        )
        (found,) = attention_maps(model, lambda: model.kernel(each.query, each.key, each.key, each.visibility))
        longest = int(real_query.sum(dim=1).argmax())
        shown = weights[longest].mean(dim=0)[real_query[longest]][:, real_key[longest]]
        assert (found["name"], found["queries"], found["keys"]) == ("kernel", *shown.shape)
        torch.testing.assert_close(
            torch.tensor(found["map"], dtype=torch.float64), shown * shown.shape[1], rtol=0, atol=6e-5
        )
        masses = weights.sum(dim=2).transpose(1, 2)[real_key].detach().numpy()
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


def test_a_diagnosed_training_leaves_its_maps_and_the_same_numbers(tmp_path: Path) -> None:
    plain, looked = (
        toy_fit(tmp_path / name, train=replace(TRAIN, diagnostics=on)) for name, on in (("a", False), ("b", True))
    )
    assert plain[1].chosen_metrics == looked[1].chosen_metrics
    assert not (tmp_path / "a" / FILE).exists()
    told = json.loads((tmp_path / "b" / FILE).read_text())
    assert told["edges"] == list(EDGES)
    assert all(sum(each["histogram"]) > 0 for each in told["attentions"])
