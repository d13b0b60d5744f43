"""The ablation of dnas lies between dnas and softmax, and goes on from a state."""

from pathlib import Path

import pytest
import torch

from seqarena.common.attention import find_attention
from seqarena.common.attention.visibility import Visibility
from seqarena.common.errors import WrongUseError

PATH = Path(__file__).parents[2] / "scripts" / "reproduce" / "prior.py"


def tensors(queries: int, keys: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(2, 2, length, 8, generator=generator, dtype=torch.float64) for length in (queries, keys, keys)]


@pytest.mark.parametrize(("count", "name"), [(1e-12, "dnas"), (1e12, "softmax")])
def test_its_limits_are_dnas_and_softmax(count: float, name: str) -> None:
    config = type(find_attention(f"{PATH}:Prior"))(count=count)  # type: ignore[call-arg]
    given, visibility = tensors(9, 14), Visibility(order="causal", memory=5)
    expected = find_attention(name).build(2)(*given, visibility)
    torch.testing.assert_close(config.build(2)(*given, visibility), expected, rtol=0, atol=1e-10)


def test_successive_segments_give_the_same_as_one_call() -> None:
    kernel, (query, key, value) = find_attention(f"{PATH}:Prior").build(2), tensors(9, 9)
    whole = kernel(query, key, value, Visibility(order="causal"))
    state, parts = None, []
    for start in (0, 3, 6):
        rows, seen = slice(start, start + 3), slice(0, start + 3)
        visibility = Visibility(order="causal", memory=start)
        part, state = kernel.step(state, query[:, :, rows], key[:, :, seen], value[:, :, seen], visibility)
        parts.append(part)
    torch.testing.assert_close(torch.cat(parts, dim=2), whole, rtol=0, atol=1e-12)


def test_zero_is_refused() -> None:
    with pytest.raises(WrongUseError, match="count: expected above 0, found 0; 0 is the variant dnas"):
        type(find_attention(f"{PATH}:Prior"))(count=0)  # type: ignore[call-arg]
