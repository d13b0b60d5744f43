"""The one training loop."""

import contextlib
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from common.bounded import bounded_modules
from common.checkpoint import load_state, load_weights, save_state, save_weights
from common.data import Batch, Batches
from common.errors import WrongUseError
from common.optim import Optim, build_optimizer, set_rate
from common.progress import Log
from common.runtime import Precision, seed_torch

Loss = Callable[[nn.Module, Any], Tensor]
Evaluate = Callable[[nn.Module], Mapping[str, float]]


@dataclass(frozen=True, kw_only=True)
class Train:
    """How long, in which batches, how often to look."""

    steps: int
    """Optimiser steps."""
    batch_size: int
    """Examples a step, over all processes together."""
    micro_batch_size: int | None = None
    """Examples a process computes at once; none: its whole share. Smaller saves memory and changes nothing else."""
    length_pool: int = 1
    """Batches whose examples are sorted by length together, so that little is padding; 1: batches as drawn."""
    eval_every: int
    """Steps between evaluations on the validation set."""
    select: Literal["best", "last"] = "best"
    """Which checkpoint is tested: the best on the validation set, or the last."""
    precision: Precision = "auto"
    """auto: bfloat16 on CUDA, float32 on a CPU."""
    compile: bool = False
    """Whether the model is compiled by torch.compile."""
    log_every: int = 10
    """Steps between records of the training loss."""
    checkpoint_seconds: float = 30.0
    """Least time between checkpoints; there is one after each evaluation in any case."""

    def check(self) -> None:
        """Raises a ``WrongUseError`` for values no run can have."""
        for name in ("steps", "batch_size", "length_pool", "eval_every", "log_every"):
            if getattr(self, name) < 1:
                raise WrongUseError(f"train.{name}: expected at least 1, found {getattr(self, name)}")
        if self.micro_batch_size is not None and self.micro_batch_size < 1:
            raise WrongUseError(f"train.micro_batch_size: expected at least 1, found {self.micro_batch_size}")


@dataclass(kw_only=True)
class Progress:
    """Everything a restart needs beside weights and optimiser state; also what a finished run reports."""

    step: int = 0
    best_step: int = 0
    best_metrics: dict[str, float] = field(default_factory=dict)
    training_seconds: float = 0.0
    tokens: int = 0
    logged_step: int = 0
    loss_since_logged: float = 0.0


class DivergedError(RuntimeError):
    """The loss or a gradient stopped being finite."""

    def __init__(self, step: int, message: str) -> None:
        super().__init__(message)
        self.step = step


def fit(
    model: nn.Module,
    loss: Loss,
    batches: Batches,
    optim: Optim,
    train: Train,
    *,
    evaluate: Evaluate,
    metric: str,
    higher_is_better: bool,
    seed: int,
    out: Path,
    accelerator: Accelerator,
    log: Log,
) -> Progress:
    """Trains a model, leaves in it the weights that ``train.select`` names, and returns how it went.

    ``loss`` maps (model, batch) to a scalar, the mean over ``batch.weight()`` things; ``evaluate`` maps a model to
    metrics, among them ``metric``, which chooses the best step. Killed at any moment and called again with the same
    arguments it goes on from its last checkpoint in ``out`` and ends with the same weights, bit for bit on a CPU:
    batches and dropout are functions of (seed, step), and nothing else is random.

    Raises:
        DivergedError: the loss or a gradient is not finite; names the step and the largest gradient.
        OSError: a checkpoint could not be written; the one before is whole.
    """
    if train.batch_size % accelerator.num_processes:
        raise WrongUseError(
            f"train.batch_size {train.batch_size} cannot be shared out evenly to {accelerator.num_processes} processes"
        )
    folder = out / "checkpoint"
    folder.mkdir(parents=True, exist_ok=True)
    optimizer = build_optimizer(optim, model)
    progress = _restore(folder, model, optimizer)
    log.resume(progress.step)
    trained, optimizer = accelerator.prepare(torch.compile(model) if train.compile else model, optimizer)
    losses = torch.tensor(progress.loss_since_logged, device=accelerator.device)
    # Throughput is that of training: evaluations and checkpoints move this start forward.
    saved = interval_start = time.monotonic()
    interval_tokens = 0

    while progress.step < train.steps:
        step_start = time.monotonic()
        batch = batches[progress.step]
        set_rate(optimizer, optim, progress.step, train.steps)
        seed_torch(seed, 1, progress.step, accelerator.process_index)
        step_loss, norm = _step(trained, model, loss, batch, progress.step, optimizer, optim, train, accelerator)
        losses += step_loss
        tokens = batch.tokens()
        interval_tokens += tokens
        progress.tokens += tokens
        progress.step += 1
        progress.training_seconds += time.monotonic() - step_start

        last = progress.step == train.steps
        if progress.step % train.log_every == 0 or last:
            mean = losses.item() / (progress.step - progress.logged_step)
            speed = interval_tokens / (time.monotonic() - interval_start)
            rate = optimizer.param_groups[0]["lr"]
            log.train(
                progress.step, {"loss": mean, "gradient_norm": norm.item(), "lr": rate, "tokens_per_second": speed}
            )
            losses.zero_()
            progress.logged_step, interval_start, interval_tokens = progress.step, time.monotonic(), 0
        pause = time.monotonic()
        evaluated = progress.step % train.eval_every == 0 or last
        kept = evaluated and _evaluate(model, evaluate, metric, higher_is_better, train, progress, log)
        if kept and accelerator.is_main_process:
            save_weights(_weights(folder, progress.best_step), model)
        if accelerator.is_main_process and (evaluated or pause - saved >= train.checkpoint_seconds):
            progress.loss_since_logged = losses.item()
            _save(folder, model, optimizer, progress)
            saved = time.monotonic()
        interval_start += time.monotonic() - pause
    accelerator.wait_for_everyone()
    load_weights(_weights(folder, progress.best_step), model)
    model.eval()
    return progress


def _step(
    trained: nn.Module,
    model: nn.Module,
    loss: Loss,
    batch: Batch,
    step: int,
    optimizer: torch.optim.Optimizer,
    optim: Optim,
    train: Train,
    accelerator: Accelerator,
) -> tuple[Tensor, Tensor]:
    """Takes one optimiser step and returns the batch's loss and its gradient's norm."""
    model.train()
    step_loss = _backward(trained, loss, batch, train, accelerator)
    norm = get_total_norm([p.grad for p in model.parameters() if p.grad is not None])
    # Asking a GPU for its loss waits for it, so there a loss that is not finite is noticed a few steps late.
    look_every = 1 if accelerator.device.type == "cpu" else 10
    if step % look_every == 0 or step + 1 == train.steps:
        _require_finite(model, step_loss, norm, step + 1)
    if optim.clip is not None:
        clip_grads_with_norm_(model.parameters(), optim.clip, norm)
    optimizer.step()
    optimizer.zero_grad()
    for _, module in bounded_modules(model):
        module.clamp_()
    return step_loss, norm


def _evaluate(
    model: nn.Module,
    evaluate: Evaluate,
    metric: str,
    higher_is_better: bool,
    train: Train,
    progress: Progress,
    log: Log,
) -> bool:
    """Evaluates and logs; returns whether this is the step to keep, which ``progress`` then names."""
    model.eval()
    with torch.no_grad():
        metrics = dict(evaluate(model))
    bounded = {name: module.raw.flatten().tolist() for name, module in bounded_modules(model)}
    log.evaluation(progress.step, metrics, bounded)
    sign = 1 if higher_is_better else -1
    kept = progress.best_metrics
    if kept and train.select == "best" and sign * metrics[metric] <= sign * kept[metric]:
        return False
    progress.best_step, progress.best_metrics = progress.step, metrics
    return True


def _backward(model: nn.Module, loss: Loss, batch: Batch, train: Train, accelerator: Accelerator) -> Tensor:
    """Adds the gradient of the batch's mean loss and returns that loss; exact for any shares and micro-batches."""
    share = len(batch) // accelerator.num_processes
    first = share * accelerator.process_index
    size = train.micro_batch_size or share
    whole = batch.weight()
    total = torch.zeros((), device=accelerator.device)
    for start in range(first, first + share, size):
        stop = min(start + size, first + share)
        part = batch.rows(start, stop)
        part_weight = part.weight() / whole
        last = stop == first + share
        # Only the last part's backward pass waits for the other processes.
        with contextlib.nullcontext() if last else accelerator.no_sync(model):
            with accelerator.autocast():
                value = loss(model, part.to(accelerator.device))
            # Processes average their gradients: undo that, so that the parts' weights add up to one.
            accelerator.backward(value * (part_weight * accelerator.num_processes))
        total += value.detach().float() * part_weight
    reduced: Tensor = accelerator.reduce(total, reduction="sum")
    return reduced


def _require_finite(model: nn.Module, loss: Tensor, norm: Tensor, step: int) -> None:
    if bool(torch.isfinite(loss)) and bool(torch.isfinite(norm)):
        return
    sizes = {name: p.grad.abs().max().item() for name, p in model.named_parameters() if p.grad is not None}
    finite = {name: size for name, size in sizes.items() if math.isfinite(size)}
    broken = len(sizes) - len(finite)
    largest = max(finite, key=finite.__getitem__, default=None)
    where = f"largest finite gradient {finite[largest]:.3g} in {largest}" if largest else "no gradient is finite"
    raise DivergedError(
        step, f"loss {loss.item():.4g} at step {step:,}; {broken} of {len(sizes)} gradients are not finite; {where}"
    )


def _weights(folder: Path, step: int) -> Path:
    return folder / f"best-{step:08d}.safetensors"


def _save(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer, progress: Progress) -> None:
    save_state(
        folder / "last.pt",
        {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "progress": asdict(progress)},
    )
    if progress.best_step:
        for weights in folder.glob("best-*.safetensors"):
            if weights != _weights(folder, progress.best_step):
                weights.unlink()


def _restore(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> Progress:
    state = load_state(folder / "last.pt")
    if state is None:
        return Progress()
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return Progress(**state["progress"])
