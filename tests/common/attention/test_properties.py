"""Properties that a variant's config declares hold for its weights; over the whole table."""

import pytest
import torch

from seqarena.common.attention import ATTENTIONS, PAPERS, Visibility


def scores() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    query, key = (torch.randn(1, 2, 5, 4, generator=generator).double() for _ in range(2))
    return query, key


@pytest.mark.parametrize("name", PAPERS)
def test_sums_over_queries(name: str) -> None:
    """The last query's weights change with the first query if, and only if, the config says so."""
    config, (query, key) = ATTENTIONS[name], scores()
    kernel = config.build(heads=2)
    visibility = Visibility(order=config.orders[-1 if "none" not in config.orders else 0])
    changed = torch.cat([2 - query[:, :, :1], query[:, :, 1:]], dim=2)
    one, other = (kernel.weights(each, key, visibility)[:, :, -1] for each in (query, changed))
    assert bool((one - other).abs().max() > 1e-3) == config.sums_over_queries


@pytest.mark.parametrize("name", PAPERS)
def test_bias_hides(name: str) -> None:
    """A key whose scores are all lowered by 60 is as good as padding if, and only if, the config says so."""
    config, (query, key) = ATTENTIONS[name], scores()
    kernel, order = config.build(heads=2), config.orders[0]
    bias, real = torch.zeros(1, 1, 5, 5).double(), torch.ones(1, 5).bool()
    bias[..., 2], real[:, 2] = -60, False
    lowered = kernel.weights(query, key, Visibility(order=order), bias)
    padded = kernel.weights(query, key, Visibility(order=order, key_real=real))
    rows = [0, 1, 3, 4]  # a causal query that sees nothing else is another matter
    assert bool((lowered - padded)[:, :, rows].abs().max() < 1e-9) == config.bias_hides
