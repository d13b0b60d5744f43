"""The processes of a run. Accelerate is imported when a run starts: help and tables need no processes."""

from contextlib import AbstractContextManager
from datetime import timedelta
from typing import Any, Protocol, runtime_checkable

import torch
from torch import nn

# ruff: noqa: PLC0415  # accelerate takes a fifth of a second to import

PATIENCE = timedelta(days=7)
"""How long processes wait for the data that the main one prepares. If it dies, they fail at once."""


@runtime_checkable
class Accelerator(Protocol):
    """The part of ``accelerate.Accelerator`` that a run uses. ``runtime.make_accelerator`` makes one."""

    device: torch.device
    num_processes: int
    process_index: int
    is_main_process: bool
    mixed_precision: str
    gradient_accumulation_steps: int
    state: Any

    def autocast(self) -> AbstractContextManager[Any]:
        """Returns the context of the run's precision."""
        ...

    def no_sync(self, model: nn.Module) -> AbstractContextManager[Any]:
        """Returns a context in which gradients stay in their process."""
        ...

    def prepare(self, *objects: Any) -> Any:
        """Returns model and optimiser for all processes."""
        ...

    def unwrap_model(self, model: nn.Module) -> nn.Module:
        """Returns the model that ``prepare`` was given."""
        ...

    def reduce(self, tensor: Any, reduction: str = "sum") -> Any:
        """Returns the sum or mean over all processes."""
        ...

    def wait_for_everyone(self) -> None:
        """Waits until every process is here."""
        ...

    def init_trackers(self, project_name: str, config: dict[str, Any] | None = None) -> None:
        """Starts the trackers."""
        ...

    def log(self, values: dict[str, Any], step: int | None = None) -> None:
        """Sends metrics to the trackers."""
        ...

    def end_training(self) -> None:
        """Closes the trackers."""
        ...


def gather_object(values: list[Any]) -> list[Any]:
    """Returns the lists of all processes, one after the other, to every process."""
    from accelerate.utils import gather_object

    gathered: list[Any] = gather_object(values)
    return gathered


def broadcast_object_list(values: list[Any]) -> None:
    """Replaces the values of every process by those of the main process."""
    from accelerate.utils import broadcast_object_list

    broadcast_object_list(values)


def broadcast_patiently(values: list[Any]) -> None:
    """Replaces the values of every process by those of the main process, which may take hours to come here.

    Collectives of the processes' own backend give up after ten minutes (NCCL) or half an hour (gloo). The group of this
    call ends with it: a process that ends while a thread of its groups still works may be aborted.
    """
    from torch import distributed

    if distributed.is_available() and distributed.is_initialized():
        group = distributed.new_group(backend="gloo", timeout=PATIENCE)
        try:
            distributed.broadcast_object_list(values, src=0, group=group)
        finally:
            distributed.destroy_process_group(group)


def broadcast_buffers(model: nn.Module) -> None:
    """Replaces the buffers of every process, such as the means of batch normalisation, by those of the main process."""
    from torch import distributed

    if distributed.is_available() and distributed.is_initialized():
        for buffer in model.buffers():
            distributed.broadcast(buffer, src=0)


def bare_model(model: nn.Module) -> Any:
    """Returns a model without its wrapper for several processes or half precision; its compilation stays."""
    from accelerate.utils import extract_model_from_parallel

    from seqarena.common.training.half_weights import HalfWeights

    bare = model.model if isinstance(model, HalfWeights) else model
    return extract_model_from_parallel(bare, keep_fp32_wrapper=True, keep_torch_compile=False)
