"""What Python gives in place of names and runs is checked as on the command line."""

import pytest
import torch

from seqarena.common.attention import attend, find_attention
from seqarena.common.attention.hybrid import Hybrid
from seqarena.common.attention.module import MultiHeadAttention
from seqarena.common.errors import WrongUseError
from seqarena.scripts.notebook import build, measure

pytestmark = pytest.mark.unhooked  # otherwise the hook of the tests refuses the types first


@pytest.mark.parametrize("seed", [1.0, True, "0", -1])
def test_a_seed_is_a_whole_number(seed: object) -> None:
    with pytest.raises(WrongUseError, match="seed: expected a whole number from 0"):
        build("lra", "listops", seed=seed)  # type: ignore[arg-type]


def test_a_name_is_no_run() -> None:
    with pytest.raises(WrongUseError, match="expected a run, as build returns it; found 'lra'"):
        measure("lra")  # type: ignore[arg-type]


def test_a_class_is_no_variant() -> None:
    with pytest.raises(WrongUseError, match=r"expected a name such as hnas, or a config such as Hybrid\(u=0\.3\)"):
        find_attention(Hybrid)  # type: ignore[arg-type]
    with pytest.raises(WrongUseError, match="expected a name such as hnas"):
        attend(Hybrid, *[torch.zeros(1, 1, 2, 4)] * 3)  # type: ignore[arg-type]


def test_a_variant_is_no_field() -> None:
    with pytest.raises(WrongUseError, match="a whole variant is chosen by --attention, in Python by attention=NAME"):
        build("lra", "listops", fields={"attention": "dnas"})


def test_hidden_states_of_another_shape_are_named() -> None:
    layer, hidden = MultiHeadAttention("dnas", dim=8, heads=2), torch.zeros(2, 3, 8)
    for wrong in (torch.zeros(3, 8), torch.zeros(2, 3, 9)):
        with pytest.raises(WrongUseError, match=r"expected hidden states \(batch, tokens, 8\), found \("):
            layer(wrong)
        with pytest.raises(WrongUseError, match=r"expected hidden states \(batch, tokens, 8\), found \("):
            layer(hidden, context=wrong)
    with pytest.raises(WrongUseError, match="expected a Visibility after the hidden states, found Tensor"):
        layer(hidden, hidden)
