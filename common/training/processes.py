"""The processes of a run. Accelerate is imported when a run starts: help and tables need no processes."""

from contextlib import AbstractContextManager
from typing import Any, Protocol, runtime_checkable

import torch
from torch import nn

# ruff: noqa: PLC0415  # accelerate takes a fifth of a second to import


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

    def backward(self, loss: torch.Tensor) -> None:
        """Computes the gradients."""
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


def bare_model(model: nn.Module) -> Any:
    """Returns a model without its wrapper for several processes; its precision and compilation stay."""
    from accelerate.utils import extract_model_from_parallel

    return extract_model_from_parallel(model, keep_fp32_wrapper=True, keep_torch_compile=False)
