"""Attention maps of a trained model: a heat map and a histogram of key masses for each attention."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from seqarena.common.attention.base import Kernel
from seqarena.common.attention.mixer import kernels_with_weights
from seqarena.common.attention.visibility import Visibility
from seqarena.common.files import write_json

FILE = "attention.json"
"""File name in a run's directory."""
SIDE = 32
"""Maximum rows and columns of a heat map. For longer sequences a cell is the mean of a block; see ``block``."""
VISIBLE = "visible keys"
"""Keys over which uniform weights are 1 in a map."""
EDGES = (1e-6, 1e-4, 1e-3, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 100.0)
"""Edges of the histogram of key masses. The first and last bins also count everything outside."""


@torch.no_grad()
def attention_maps(model: nn.Module, run: Callable[[], Any]) -> list[dict[str, Any]]:
    """Returns plain values of each attention call made while ``run`` calls the model, in the order of the calls.

    ``name`` is the name of the module, with the number of the call if it is called again. ``map`` holds the weights of
    the longest example, averaged over heads and multiplied by the number of keys that the query sees (so uniform
    weights are 1), real queries by real keys; ``uniform_over`` says so, since earlier versions counted all keys.
    ``histogram`` counts the key masses sum_i pi_ij of all real keys of all examples and heads in the bins of ``EDGES``.
    """
    found: list[dict[str, Any]] = []
    names = {module: name for name, module in model.named_modules()}
    calls: Counter[nn.Module] = Counter()

    def record(kernel: nn.Module, inputs: tuple[Any, ...], _: Tensor) -> None:
        assert isinstance(kernel, Kernel)
        query, key, _, visibility = inputs[:4]
        calls[kernel] += 1
        repeated = f", call {calls[kernel]}" if calls[kernel] > 1 else ""
        values = _map_and_histogram(kernel, query, key, visibility, inputs[4] if len(inputs) > 4 else None)
        found.append({"name": names[kernel].removesuffix(".kernel") + repeated, **values})

    handles = [kernel.register_forward_hook(record) for kernel in kernels_with_weights(model)]
    try:
        run()
    finally:
        for handle in handles:
            handle.remove()
    return found


def _map_and_histogram(
    kernel: Kernel, query: Tensor, key: Tensor, visibility: Visibility, bias: Tensor | None
) -> dict[str, Any]:
    batch, heads, queries, keys = *query.shape[:3], key.shape[2]
    wide = torch.promote_types(query.dtype, torch.float32)
    with torch.autocast(query.device.type, enabled=False):
        real_query, real_key = (
            torch.ones(batch, length, dtype=torch.bool, device=query.device) if real is None else real
            for real, length in ((visibility.query_real, queries), (visibility.key_real, keys))
        )
        longest = int(real_query.sum(dim=1).argmax())
        mass = query.new_zeros(batch * heads, keys, dtype=wide)
        mean = query.new_zeros(queries, keys, dtype=wide)
        for rows in kernel.weight_rows(query, key, visibility, bias):
            start = rows.heads.start
            own = slice(max(0, longest * heads - start), max(0, (longest + 1) * heads - start))
            mass[rows.heads, rows.keys] += rows.weights.sum(dim=1)
            mean[rows.queries, rows.keys] += rows.weights[own].sum(dim=0) / heads
    seen = visibility.counts(batch, queries, keys, query.device)[longest]
    cells = (mean * seen[:, None])[real_query[longest]][:, real_key[longest]]
    pooled = nn.functional.adaptive_avg_pool2d(cells[None], (min(SIDE, len(cells)), min(SIDE, cells.shape[1])))[0]
    masses = mass[real_key.repeat_interleave(heads, dim=0)].cpu().numpy()
    return {
        "queries": cells.shape[0],
        "keys": cells.shape[1],
        "uniform_over": VISIBLE,
        "map": [[round(each, 4) for each in row] for row in pooled.tolist()],
        "histogram": np.histogram(masses, (-np.inf, *EDGES, np.inf))[0].tolist(),
    }


def block(cell: int, tokens: int) -> tuple[int, int]:
    """Returns the first and the last token of a row or column of a heat map of so many tokens.

    Blocks overlap if the number of tokens is above ``SIDE`` and no multiple of it.
    """
    cells = min(SIDE, tokens)
    return cell * tokens // cells, -(-(cell + 1) * tokens // cells) - 1


def write_maps(folder: Path, model: nn.Module, run: Callable[[], Any]) -> None:
    """Writes ``attention.json`` into a run's directory: the histogram edges and the maps."""
    write_json(folder / FILE, {"edges": EDGES, "attentions": attention_maps(model, run)})
