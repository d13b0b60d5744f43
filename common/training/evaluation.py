"""The loop of evaluation: every example once, shared out to the processes, results in the order of the data."""

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from torch import nn

from seqarena.common.data.batches import Indices, in_order
from seqarena.common.training.log import tracked

Item = TypeVar("Item")


@torch.no_grad()
def per_example(
    model: nn.Module,
    lengths: npt.NDArray[np.int64],
    batch_size: int,
    compute: Callable[[Indices], Iterable[Any]],
    accelerator: Accelerator,
) -> list[Any]:
    """Returns what ``compute`` returns for each example, in the order of the data, to every process.

    The model is set to evaluation. Batches are of similar ``lengths``. ``compute`` gets the numbers of a batch's
    examples and returns one value for each of them.
    """
    model.eval()
    mine: list[tuple[int, Any]] = []
    for examples in shared_in_order(lengths, batch_size, accelerator):
        mine += zip(examples.tolist(), compute(examples), strict=True)
    return [value for _, value in sorted(gather_object(mine), key=lambda each: each[0])]


def shared_in_order(lengths: npt.NDArray[np.int64], batch_size: int, accelerator: Accelerator) -> Iterable[Indices]:
    """Returns this process's batches of ``in_order``; the main process prints how far it is."""
    processes = accelerator.num_processes
    batches = in_order(lengths, batch_size, accelerator.process_index, processes)
    return tracked_by_main(batches, len(range(0, len(lengths), batch_size * processes)), accelerator)


def tracked_by_main(items: Iterable[Item], total: int, accelerator: Accelerator) -> Iterable[Item]:
    """Returns the batches of an evaluation, ``total`` of them; the main process prints how far it is."""
    return tracked(items, "evaluation, batch", total) if accelerator.is_main_process else items
