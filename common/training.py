"""The one training loop."""

import contextlib
import dataclasses
import functools
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
from common.diagnostics import diagnose
from common.errors import BadDataError, WrongUseError
from common.optim import Optim, build_optimizer, set_rate
from common.progress import Log
from common.runtime import Precision, seed_torch

DIAGNOSED_EXAMPLES = 8

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
    """Examples a process computes at once; none: its whole share. Less saves memory; dropout draws anew."""
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
    diagnostics: bool = False
    """Whether each evaluation also records, layer by layer, token similarity, norms of the attention and its gradient,
    key masses and hybrid weights on a few training examples. Changes no number of the run."""

    def check(self) -> None:
        """Raises a ``WrongUseError`` for values no run can have."""
        for name in ("steps", "batch_size", "length_pool", "eval_every", "log_every"):
            if getattr(self, name) < 1:
                raise WrongUseError(f"train.{name}: expected at least 1, found {getattr(self, name)}")
        if self.checkpoint_seconds < 0:
            raise WrongUseError(f"train.checkpoint_seconds: expected at least 0, found {self.checkpoint_seconds}")
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
        BadDataError: what is to be resumed is damaged or incomplete.
        WrongUseError: a batch that the processes cannot share evenly.
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
    unseen: list[Tensor] = []  # losses and gradient norms that nobody has looked at yet
    logged = dataclasses.replace(progress)
    saved = clock = time.monotonic()

    while progress.step < train.steps:
        batch = batches[progress.step]
        set_rate(optimizer, optim, progress.step, train.steps)
        seed_torch(seed, 1, progress.step, accelerator.process_index)
        step_loss, norm = _step(trained, model, loss, batch, optimizer, optim, train, accelerator)
        losses += step_loss
        unseen.append(torch.stack([step_loss, norm]))
        progress.tokens += batch.tokens()
        progress.step += 1

        last = progress.step == train.steps
        log_due = progress.step % train.log_every == 0 or last
        evaluation_due = progress.step % train.eval_every == 0 or last
        save_due = evaluation_due or time.monotonic() - saved >= train.checkpoint_seconds
        # Looking at a loss waits for the GPU: there only when something is due, on a CPU always.
        if log_due or save_due or accelerator.device.type == "cpu":
            _require_finite(model, unseen, progress.step)
            unseen.clear()
            now = time.monotonic()
            progress.training_seconds += now - clock
            clock = now
        if log_due:
            _record(progress, logged, losses.item(), norm.item(), optimizer.param_groups[0]["lr"], log)
            losses.zero_()
            progress.logged_step = progress.step
            logged = dataclasses.replace(progress)
        if evaluation_due:
            look = functools.partial(_look, model, loss, batches, accelerator) if train.diagnostics else None
            kept = _evaluate(model, evaluate, metric, higher_is_better, train, progress, log, look)
            if kept and accelerator.is_main_process:
                save_weights(_weights(folder, progress.best_step), model)
        if save_due:
            if accelerator.is_main_process:
                progress.loss_since_logged = losses.item()
                _save(folder, model, optimizer, progress)
            saved = clock = time.monotonic()  # evaluations and checkpoints are not training time
    accelerator.wait_for_everyone()
    load_weights(_weights(folder, progress.best_step), model)
    model.eval()
    return progress


def _record(progress: Progress, logged: Progress, losses: float, norm: float, rate: float, log: Log) -> None:
    """Logs what training was like since the last record."""
    speed = (progress.tokens - logged.tokens) / (progress.training_seconds - logged.training_seconds)
    mean = losses / (progress.step - progress.logged_step)
    log.train(progress.step, {"loss": mean, "gradient_norm": norm, "lr": rate, "tokens_per_second": speed})


def _step(
    trained: nn.Module,
    model: nn.Module,
    loss: Loss,
    batch: Batch,
    optimizer: torch.optim.Optimizer,
    optim: Optim,
    train: Train,
    accelerator: Accelerator,
) -> tuple[Tensor, Tensor]:
    """Takes one optimiser step and returns the batch's loss and its gradient's norm; the gradient stays to be seen."""
    model.train()
    optimizer.zero_grad()
    step_loss = _backward(trained, loss, batch, train, accelerator)
    norm = get_total_norm([p.grad for p in model.parameters() if p.grad is not None])
    if optim.clip is not None:
        clip_grads_with_norm_(model.parameters(), optim.clip, norm)
    optimizer.step()
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
    look: Callable[[], dict[str, list[float]]] | None,
) -> bool:
    """Evaluates and logs; returns whether this is the step to keep, which ``progress`` then names."""
    model.eval()
    with torch.no_grad():
        metrics = dict(evaluate(model))
    require_finite_metrics(metrics, progress.step)
    bounded = {name: module.raw.flatten().tolist() for name, module in bounded_modules(model)}
    log.evaluation(progress.step, metrics, bounded, {} if look is None else look())
    sign = 1 if higher_is_better else -1
    kept = progress.best_metrics
    if kept and train.select == "best" and sign * metrics[metric] <= sign * kept[metric]:
        return False
    progress.best_step, progress.best_metrics = progress.step, metrics
    return True


def _look(model: nn.Module, loss: Loss, batches: Batches, accelerator: Accelerator) -> dict[str, list[float]]:
    """Returns the diagnostics of the first examples of the first batch, the same at every evaluation."""
    batch = batches[0]
    few = batch.rows(0, min(len(batch), DIAGNOSED_EXAMPLES)).to(accelerator.device)

    def run() -> None:
        with accelerator.autocast():
            loss(model, few)

    return diagnose(model, run)


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


def _require_finite(model: nn.Module, unseen: list[Tensor], step: int) -> None:
    """Raises a ``DivergedError`` if an unseen loss or gradient norm is not finite; the last one is of ``step``."""
    values = torch.stack(unseen).tolist()
    finite = [math.isfinite(loss) and math.isfinite(norm) for loss, norm in values]
    if all(finite):
        return
    first = step - len(values) + 1 + finite.index(False)
    sizes = {name: p.grad.abs().max().item() for name, p in model.named_parameters() if p.grad is not None}
    whole = {name: size for name, size in sizes.items() if math.isfinite(size)}
    largest = max(whole, key=whole.__getitem__, default=None)
    where = f"largest finite gradient {whole[largest]:.3g} in {largest}" if largest else "no gradient is finite"
    raise DivergedError(
        first,
        f"loss {values[finite.index(False)][0]:.4g} at step {first:,}; "
        f"{len(sizes) - len(whole)} of {len(sizes)} gradients are not finite; {where}",
    )


def require_finite_metrics(metrics: Mapping[str, float], step: int) -> None:
    """Raises a ``DivergedError`` if a metric is not a number."""
    broken = [name for name, value in metrics.items() if not math.isfinite(value)]
    if broken:
        raise DivergedError(step, f"{', '.join(broken)} of the evaluation at step {step:,} is not finite")


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
    progress = Progress(**state["progress"])
    if progress.best_step and not _weights(folder, progress.best_step).exists():
        raise BadDataError(
            f"{_weights(folder, progress.best_step)} is missing, the best weights so far; "
            f"delete {folder} to start this run again"
        )
    return progress
