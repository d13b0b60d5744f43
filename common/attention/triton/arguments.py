"""Arguments that all kernels have: dropout, padding, the gradient of a bias, products of rows."""

from typing import Any

import torch
import triton
from torch import Tensor

from seqarena.common.attention.tiles import Call
from seqarena.common.attention.triton import doubly_normalized
from seqarena.common.attention.triton.launch import tile_width
from seqarena.common.attention.visibility import Visibility


def dropout_of(query: Tensor, key: Tensor, seed: Tensor, dropout: float) -> tuple[tuple[Tensor, ...], dict[str, Any]]:
    """Returns the random bits of rows and keys for dropout, and the kernels' settings of dropout."""
    (batch, heads, rows, _), keys = query.shape, key.shape[2]
    if not dropout:
        return (torch.zeros(1, dtype=torch.int32, device=query.device),) * 2, {"limit": 0, "kept": 1.0, "DROPS": False}
    bits = Call.bits_of(int(seed), batch * heads, (rows, keys), query.device)
    return bits, {"limit": Call.limit_of(dropout), "kept": 1 / (1 - dropout), "DROPS": True}


def seed_of(dropout: float, device: torch.device) -> Tensor:
    """Returns a random seed of dropout, a CPU tensor; an unused one without dropout."""
    return torch.randint(2**62, ()) if dropout else torch.zeros((), dtype=torch.int64, device=device)


def masks_of(
    query: Tensor, key: Tensor, query_real: Tensor | None, key_real: Tensor | None
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Returns both masks of padding as kernels read them: contiguous bytes, 0 for padding."""
    masks = [
        query.new_ones(query.shape[0], each.shape[2], dtype=torch.uint8) if mask is None else mask.to(torch.uint8)
        for mask, each in ((query_real, query), (key_real, key))
    ]
    return masks[0].contiguous(), masks[1].contiguous()


def segments_of(query: Tensor, segments: Tensor | None) -> Tensor:
    """Returns the numbers of the packed sequences as kernels read them; without segments, a tensor that is not read."""
    return query if segments is None else segments.contiguous()


def window_of(visibility: Visibility, keys: int) -> int:
    """Returns the window as kernels read it: 0 if there is none, or if it shows as much as the order does."""
    return 0 if visibility.window is None or visibility.window >= keys else visibility.window


def bias_gradient(query: Tensor, bias: Tensor | None, learns: bool) -> Tensor:
    """Returns an empty tensor for the gradient of the bias, row after row whatever the strides of the bias."""
    return query.new_empty(0) if bias is None or not learns else bias.new_empty(bias.shape)


ROWS_OF_PRODUCTS = 64
"""Rows per program of ``row_products``, which is bound by memory."""


def row_products(grad: Tensor, out: Tensor, row_lse: Tensor, *, sums: bool) -> tuple[Tensor, Tensor]:
    """Returns grad_i . out_i, and if ``sums`` exp(rho_i), of each row. That of softmax's sigma_i would overflow."""
    delta, row_sum = torch.empty_like(row_lse), torch.empty_like(row_lse)
    (*heads, rows), width = row_lse.shape, out.shape[3]
    blocks = triton.cdiv(rows, ROWS_OF_PRODUCTS)
    with torch.cuda.device_of(grad):  # type: ignore[no-untyped-call]
        doubly_normalized.row_products[(blocks * heads[0] * heads[1],)](
            grad, out, row_lse, delta, row_sum, rows, width,
            SUMS=sums, ROWS=ROWS_OF_PRODUCTS, VALUE_WIDTH=tile_width(width),
        )  # fmt: skip
    return delta, row_sum
