"""One optimiser step: a batch is split over processes and micro-batches, its gradient computed, the weights updated."""

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from seqarena.common.attention.recording import recorded_implementations
from seqarena.common.data.batches import Batch, Batches
from seqarena.common.errors import WrongUseError
from seqarena.common.model.bounded import bounded_modules
from seqarena.common.training.ahead import Share, make_ahead
from seqarena.common.training.half_weights import HalfWeights, linear_weights
from seqarena.common.training.optim import Optim, build_optimizer, set_rate
from seqarena.common.training.processes import Accelerator, broadcast_object_list, gather_object
from seqarena.common.training.runtime import is_asynchronous, seed_torch

Loss = Callable[[nn.Module, Any], Tensor]
"""Maps (model, batch) to a scalar, the mean over ``batch.weight()`` terms."""
COMPILER = ("torch._dynamo", "torch._inductor")
"""Modules of the errors of torch.compile."""


@runtime_checkable
class StatefulLoss(Protocol):
    """A loss with a state that continues from step to step, and is part of a checkpoint."""

    def state_dict(self) -> dict[int, Any]:
        """Returns the state of this process, keyed by unit of the state (such as a stream), on the CPU."""
        ...

    def load_state_dict(self, state: dict[int, Any]) -> None:
        """Loads the merged state of all processes."""
        ...


class Stepper:
    """A model, its optimiser, and the computation of a training step.

    ``model`` is the bare model, ``trained`` the one that is called: compiled, wrapped for several processes or for half
    precision. Step n of a seed is the same on every process and after every restart: its rate and its dropout depend on
    n and the seed alone.

    ``gathers``: whether a checkpoint contains loss states of several processes, so that all must save together.
    ``implementations``: those that computed attention in the first step; empty if the model is compiled, None before.
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
        cuda_graphs: bool = False,
    ) -> None:
        """Prepares the model and its optimiser.

        Raises:
            WrongUseError: CUDA graphs that this training cannot have.
        """
        if cuda_graphs:
            check_graphs(accelerator, compiled=compiled, micro_batch_size=micro_batch_size)
            if isinstance(loss, StatefulLoss):
                raise WrongUseError("train.cuda_graphs: expected a model without a memory of earlier segments")
        self.model, self.loss, self.optim, self.accelerator = model, loss, optim, accelerator
        self.steps, self.seed, self.micro_batch_size = steps, seed, micro_batch_size
        self.cuda_graphs = cuda_graphs
        self.trained, self.optimizer = accelerator.prepare(
            self._compile(model) if compiled else model, build_optimizer(optim, model)
        )
        # Several processes exchange a layer's gradients while those of earlier layers are computed; a compiled model
        # has few conversions.
        is_alone = accelerator.num_processes == 1 and not compiled
        if is_alone and accelerator.mixed_precision == "bf16" and linear_weights(model):
            self.trained = HalfWeights(self.trained)
        self.compiled = compiled
        self.implementations: list[str] | None = None
        self.bounded = [module for _, module in bounded_modules(model)]
        self.gathers = accelerator.num_processes > 1 and isinstance(loss, StatefulLoss)

    def agreed(self, wanted: bool) -> bool:
        """Returns the main process's decision if all processes save together, else this process's own."""
        box = [wanted]
        if self.gathers:
            broadcast_object_list(box)
        return box[0]

    def state_dict(self) -> dict[str, Any]:
        """Returns the restart state. All processes must call it together if it ``gathers``."""
        state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        if isinstance(self.loss, StatefulLoss):
            states = gather_object([self.loss.state_dict()])
            state["loss"] = {number: each for state_dict in states for number, each in state_dict.items()}
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Loads a ``state_dict``.

        Raises:
            KeyError, ValueError, RuntimeError: the state of another model.
        """
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        if isinstance(self.loss, StatefulLoss):
            self.loss.load_state_dict(state["loss"])

    def take(self, share: Share, step: int) -> tuple[Tensor, Tensor]:
        """Performs a step (from 0) and returns the batch's loss and gradient norm, given this process's share.

        The gradients are kept until the next step.

        Raises:
            OSError: the model could not be compiled, for example without a C++ compiler.
        """
        self.model.train()
        set_rate(self.optimizer, self.optim, step, self.steps)
        seed_torch(self.seed, 1, step, self.accelerator.process_index)
        self.optimizer.zero_grad()
        if self.cuda_graphs:
            # The gradients of the last step are freed: their memory may be used again.
            torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
        try:
            with self._recording() as chosen:
                loss = self.backward(share)
        except RuntimeError as error:
            if not type(error).__module__.startswith(COMPILER):
                raise
            reason = str(getattr(error, "inner_exception", error)).split("\n")[0]
            raise OSError(
                f"train.compile: torch could not compile the model ({reason}); omit train.compile, or if a compiled "
                "file is damaged, delete torch's cache that it is in"
            ) from error
        if self.implementations is None:
            self.implementations = sorted(chosen)
        norm = get_total_norm([p.grad for p in self.model.parameters() if p.grad is not None])
        if self.optim.clip is not None:
            # Clipping by a norm of NaN would make all gradients NaN: the message of a diverged run could count none.
            clip_grads_with_norm_(self.model.parameters(), self.optim.clip, norm.nan_to_num(nan=0.0, posinf=0.0))
        self.optimizer.step()
        for module in self.bounded:
            module.clamp_()
        return loss, norm

    def _compile(self, model: nn.Module) -> nn.Module:
        """Returns the compiled model."""
        compiled: Any = torch.compile(model, mode="reduce-overhead") if self.cuda_graphs else torch.compile(model)
        return compiled  # type: ignore[no-any-return]

    def _recording(self) -> AbstractContextManager[set[str]]:
        """Returns the context that records the implementations, in the first step only."""
        is_needed = self.implementations is None and not self.compiled
        return recorded_implementations(self.model) if is_needed else contextlib.nullcontext(set())

    def forward(self, model: nn.Module, part: Batch) -> Tensor:
        """Returns the loss of a part of a batch by ``model`` or ``trained``, in the run's precision."""
        with self.accelerator.autocast():
            return self.loss(model, part.to(self.accelerator.device))

    def share(self, batch: Batch) -> Share:
        """Returns this process's share of a batch in micro-batches, for a GPU in pinned memory.

        Raises:
            WrongUseError: fewer examples than processes.
        """
        rank, processes = self.accelerator.process_index, self.accelerator.num_processes
        examples = len(batch)
        if examples < processes:
            raise WrongUseError(f"a batch of {examples} examples cannot be shared out to {processes} processes")
        first, stop = (examples * number // processes for number in (rank, rank + 1))
        size = self.micro_batch_size or stop - first
        parts = [batch.rows(start, min(start + size, stop)).read() for start in range(first, stop, size)]
        if self.accelerator.device.type == "cuda":
            parts = [part.pinned() for part in parts]
        return Share(parts=parts, weight=batch.weight(), tokens=batch.token_count())

    def shares(self, batches: Batches, steps: range) -> Iterator[Share]:
        """Yields this process's share of each step's batch. While a GPU computes a step, the next one is made."""

        def make(step: int) -> Share:
            return self.share(batches[step])

        # A generator, not map: a StopIteration of the data would end a training as if it was finished.
        made = (make(step) for step in steps)
        return make_ahead(make, steps) if is_asynchronous(self.accelerator.device) else made

    def backward(self, share: Share) -> Tensor:
        """Adds the gradient of the batch's mean loss and returns that loss, exactly for any split into parts.

        In a model with batch normalisation, whose statistics are those of a part, the split changes both.
        """
        processes, whole, parts = self.accelerator.num_processes, share.weight, share.parts
        losses = []
        for number, part in enumerate(parts, start=1):
            part_weight = part.weight() / whole
            # Only the last part's backward pass waits for the other processes.
            with contextlib.nullcontext() if number == len(parts) else self.accelerator.no_sync(self.trained):
                value = self.forward(self.trained, part)
                # Processes average their gradients. The factor undoes that, so that the parts' weights add up to one.
                value.backward(value.new_full((), part_weight * processes))  # type: ignore[no-untyped-call]
            part_loss = value.detach().float()
            losses.append(part_loss if part_weight == 1 else part_loss * part_weight)
        total: Tensor = sum(losses[1:], start=losses[0])
        return total if processes == 1 else self.accelerator.reduce(total, reduction="sum")


def check_graphs(accelerator: Accelerator, *, compiled: bool, micro_batch_size: int | None) -> None:
    """Raises a ``WrongUseError`` if a training cannot have CUDA graphs, whose outputs the next replay overwrites."""
    reasons = {
        "expected train.compile": not compiled,
        "expected a GPU": accelerator.device.type != "cuda",
        "expected one process": accelerator.num_processes > 1,
        "expected no train.micro_batch_size, whose gradients are added": micro_batch_size is not None,
    }
    for reason, applies in reasons.items():
        if applies:
            raise WrongUseError(f"train.cuda_graphs: {reason}")
