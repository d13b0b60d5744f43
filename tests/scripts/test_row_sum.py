"""The ablation of relu: weights of a row that sum to less than 1, by hand."""

from pathlib import Path

import pytest
import torch

from seqarena.common.attention import find_attention
from seqarena.common.attention.visibility import Visibility
from seqarena.common.errors import WrongUseError

NAME = f"{Path(__file__).parents[2] / 'scripts' / 'reproduce' / 'row_sum.py'}:RowSum"


def test_weights_are_those_by_hand() -> None:
    """Scores 3, 1 and -1, of which the last key is hidden from the first query: 3 / 4; then 3, 1 and 0 of 5."""
    kernel = find_attention(NAME).build(1)
    key, value = torch.tensor([[[[3.0], [1.0], [-1.0]]]]), torch.eye(3)[None, None]
    output = kernel(torch.ones(1, 1, 3, 1), key, value, Visibility(order="causal"))
    expected = torch.tensor([[3 / 4, 0, 0], [3 / 5, 1 / 5, 0], [3 / 5, 1 / 5, 0]])
    torch.testing.assert_close(output[0, 0], expected)


def test_a_row_of_negative_scores_has_no_weights_and_a_finite_gradient() -> None:
    query, key = torch.ones(1, 1, 1, 1, requires_grad=True), torch.tensor([[[[-3.0], [-1.0]]]])
    output = find_attention(NAME).build(1)(query, key, torch.ones(1, 1, 2, 3), Visibility())
    output.sum().backward()
    assert output.tolist() == [[[[0.0, 0.0, 0.0]]]]
    assert torch.isfinite(query.grad).all()  # type: ignore[arg-type]


def test_zero_is_refused() -> None:
    with pytest.raises(WrongUseError, match="constant: expected above 0, found 0"):
        type(find_attention(NAME))(constant=0)  # type: ignore[call-arg]
