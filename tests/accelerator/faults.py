"""Faults that the simulated GPU must notice, planted in a layer."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from tests.accelerator.steps import DEVICE, counted, simulate


def _item(hidden: Tensor) -> Tensor:
    return hidden * hidden.sum().item()


def _number(hidden: Tensor) -> Tensor:
    return hidden * float(hidden.mean())


def _branch(hidden: Tensor) -> Tensor:
    return hidden if hidden.sum() > 0 else -hidden


def _boolean_index(hidden: Tensor) -> Tensor:
    return hidden[hidden > 0]


def _positions(hidden: Tensor) -> Tensor:
    return hidden.flatten()[torch.nonzero(hidden.flatten() > 0)[:, 0]]


def _to_host(hidden: Tensor) -> Tensor:
    return hidden * hidden.detach().cpu().mean().to(DEVICE)


def _mask_of_the_host(hidden: Tensor) -> Tensor:
    return hidden * torch.ones(hidden.shape)


FAULTS: Mapping[str, Callable[[Tensor], Tensor]] = MappingProxyType(
    {
        "item": _item, "float": _number, "branch": _branch, "boolean index": _boolean_index, "nonzero": _positions,
        "copy to the host": _to_host, "mask of the host": _mask_of_the_host, "none": lambda hidden: hidden * 2,
    }
)  # fmt: skip


def count_faults() -> dict[str, dict[str, Any]]:
    """Returns the counts of a layer with each fault, and of one without."""
    found = {}
    for name, fault in FAULTS.items():
        mode, layer = simulate(), nn.Linear(4, 4)

        def step(layer: nn.Module = layer, fault: Callable[[Tensor], Tensor] = fault) -> None:
            fault(layer(torch.zeros(2, 4, device=DEVICE))).sum().backward()  # type: ignore[no-untyped-call]

        found[name] = counted(layer, step, mode)
    return found
