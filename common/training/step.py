"""One optimiser step: a batch, shared out and cut up, to a gradient, and from that to new weights."""

import contextlib
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import torch
from accelerate import Accelerator
from accelerate.utils import broadcast_object_list, gather_object
from torch import Tensor, nn
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from seqarena.common.data.batches import Batch
from seqarena.common.model.bounded import bounded_modules
from seqarena.common.training.optim import Optim, build_optimizer, set_rate
from seqarena.common.training.runtime import seed_torch

Loss = Callable[[nn.Module, Any], Tensor]
"""Maps (model, batch) to a scalar, the mean over ``batch.weight()`` things."""


@runtime_checkable
class Remembering(Protocol):
    """A loss that goes on from the step before: what it remembers belongs to a checkpoint."""

    def state_dict(self) -> dict[int, Any]:
        """Returns what this process remembers, by the number of what it is about; on the CPU."""
        ...

    def load_state_dict(self, state: dict[int, Any]) -> None:
        """Takes what all processes remembered."""
        ...


class Stepper:
    """A model with its optimiser, and the way a step of training goes.

    ``model`` is the bare model, ``trained`` what is called: compiled, wrapped for several processes. Step n of a seed
    is the same whoever takes it and whenever: its rate and its dropout depend on n and the seed alone.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        optim: Optim,
        accelerator: Accelerator,
        *,
        steps: int,
        seed: int,
        micro_batch_size: int | None = None,
        compiled: bool = False,
    ) -> None:
        self.model, self.loss, self.optim, self.accelerator = model, loss, optim, accelerator
        self.steps, self.seed, self.micro_batch_size = steps, seed, micro_batch_size
        self.trained, self.optimizer = accelerator.prepare(
            torch.compile(model) if compiled else model, build_optimizer(optim, model)
        )

    @property
    def gathers(self) -> bool:
        """Whether a checkpoint holds what several processes remember, so that all must make it together."""
        return self.accelerator.num_processes > 1 and isinstance(self.loss, Remembering)

    def agreed(self, wanted: bool) -> bool:
        """Returns what the main process wants, if a checkpoint is made by all together; else what this one does."""
        box = [wanted]
        if self.gathers:
            broadcast_object_list(box)
        return box[0]

    def state_dict(self) -> dict[str, Any]:
        """Returns all that a restart needs; called by all processes together where it ``gathers``."""
        state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        if isinstance(self.loss, Remembering):
            shares = gather_object([self.loss.state_dict()])
            state["loss"] = {number: each for share in shares for number, each in share.items()}
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes what ``state_dict`` gave; a ``KeyError``, ``ValueError`` or ``RuntimeError`` says it is another's."""
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        if isinstance(self.loss, Remembering):
            self.loss.load_state_dict(state["loss"])

    def take(self, batch: Batch, step: int) -> tuple[Tensor, Tensor]:
        """Takes a step (from 0) and returns the batch's loss and its gradient's norm; the gradient stays to be seen."""
        self.model.train()
        set_rate(self.optimizer, self.optim, step, self.steps)
        seed_torch(self.seed, 1, step, self.accelerator.process_index)
        self.optimizer.zero_grad()
        loss = self.backward(batch)
        norm = get_total_norm([p.grad for p in self.model.parameters() if p.grad is not None])
        if self.optim.clip is not None:
            clip_grads_with_norm_(self.model.parameters(), self.optim.clip, norm)
        self.optimizer.step()
        for _, module in bounded_modules(self.model):
            module.clamp_()
        return loss, norm

    def forward(self, model: nn.Module, part: Batch) -> Tensor:
        """Returns the loss of examples by ``model`` or ``trained``, at the run's precision."""
        with self.accelerator.autocast():
            return self.loss(model, part.to(self.accelerator.device))

    def backward(self, batch: Batch) -> Tensor:
        """Adds the gradient of the batch's mean loss and returns that loss; exact for any shares and micro-batches."""
        processes = self.accelerator.num_processes
        share = len(batch) // processes
        first = share * self.accelerator.process_index
        size = self.micro_batch_size or share
        whole = batch.weight()
        total = torch.zeros((), device=self.accelerator.device)
        for start in range(first, first + share, size):
            stop = min(start + size, first + share)
            part = batch.rows(start, stop)
            part_weight = part.weight() / whole
            last = stop == first + share
            # Only the last part's backward pass waits for the other processes.
            with contextlib.nullcontext() if last else self.accelerator.no_sync(self.trained):
                value = self.forward(self.trained, part)
                # Processes average their gradients: undo that, so that the parts' weights add up to one.
                self.accelerator.backward(value * (part_weight * processes))
            total += value.detach().float() * part_weight
        reduced: Tensor = self.accelerator.reduce(total, reduction="sum")
        return reduced
