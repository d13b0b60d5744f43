"""Evaluation loop: every example once, distributed over the processes, results in the order of the data."""

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from seqarena.common.data.batches import Indices, in_order
from seqarena.common.training.log import with_progress
from seqarena.common.training.processes import Accelerator, gather_object

Item = TypeVar("Item")


@torch.no_grad()
def per_example(
    model: nn.Module,
    lengths: npt.NDArray[np.int64],
    batch_size: int,
    compute: Callable[[Indices], Iterable[Any]],
    accelerator: Accelerator,
) -> list[Any]:
    """Returns the value that ``compute`` returns for each example, in the order of the data, on every process.

    Sets the model to evaluation mode. Batches are of similar ``lengths``. ``compute`` maps the indices of a batch's
    examples to one value per example.
    """
    model.eval()
    mine: list[tuple[int, Any]] = []
    for examples in process_batches(lengths, batch_size, accelerator):
        mine += zip(examples.tolist(), compute(examples), strict=True)
    return [value for _, value in sorted(gather_object(mine), key=lambda each: each[0])]


def process_batches(lengths: npt.NDArray[np.int64], batch_size: int, accelerator: Accelerator) -> Iterable[Indices]:
    """Returns this process's batches of ``in_order``. The main process prints its progress."""
    processes = accelerator.num_processes
    batches = in_order(lengths, batch_size, accelerator.process_index, processes)
    return main_progress(batches, len(range(0, len(lengths), batch_size * processes)), accelerator)


def main_progress(items: Iterable[Item], total: int, accelerator: Accelerator) -> Iterable[Item]:
    """Returns ``items``, ``total`` of them. The main process prints its progress."""
    return with_progress(items, "evaluation, batch", total) if accelerator.is_main_process else items
