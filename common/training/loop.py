"""The training loop."""

import dataclasses
import functools
import math
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from seqarena.common.data.batches import Batch, Batches
from seqarena.common.errors import BadDataError, WrongUseError
from seqarena.common.model.bounded import bounded_modules
from seqarena.common.model.diagnostics import Diagnostics, diagnose
from seqarena.common.runs.roles import Role, added, role
from seqarena.common.training.checkpoint import load_state, load_weights, save_state, save_weights, verify_weights
from seqarena.common.training.log import Log
from seqarena.common.training.optim import Optim, rate
from seqarena.common.training.precision import Precision
from seqarena.common.training.processes import Accelerator, broadcast_buffers
from seqarena.common.training.restart import BEFORE, LAST, chosen_name, chosen_weights, delete_other_weights
from seqarena.common.training.runtime import differences, environment, is_asynchronous, peak_memory_bytes
from seqarena.common.training.step import Loss, Stepper

DIAGNOSED_EXAMPLES = 8
FORMAT = 4
"""Version of the checkpoint format."""
CHECKPOINT_SHARE = 0.02
"""Maximum fraction of the time spent on checkpoints."""

Evaluate = Callable[[nn.Module], Mapping[str, float]]


@dataclass(frozen=True, kw_only=True)
class Train:
    """Length of training, batches, evaluations and checkpoints."""

    steps: int
    """Number of optimiser steps. Fewer than the preset's shorten a schedule that does not fit, in proportion."""
    batch_size: int
    """Examples per step, over all processes together."""
    micro_batch_size: int | None = None
    """Examples per process and forward pass; none: all of the process. Fewer save memory and change the random
    numbers of dropout and of augmentation, and the statistics of batch normalisation (XCiT)."""
    length_pool: int = 1
    """Number of batches whose examples are sorted by length together to reduce padding; 1: no sorting."""
    eval_every: int
    """Steps between evaluations on the validation set."""
    select: Literal["best", "last"] = "best"
    """Checkpoint to test: the best on the validation set, or the last."""
    precision: Precision = "auto"
    """Precision of the computation. auto: bfloat16 on a GPU that has it, else float32. tf32: float32 whose matrix
    products on a GPU have 10 bits after the point; on a CPU as float32."""
    compile: bool = False
    """Whether to compile the model by torch.compile."""
    cuda_graphs: bool = field(default=False, metadata=added(5))
    """Whether a GPU replays a compiled model as CUDA graphs, recorded once for each size of a batch. Not yet run."""
    log_every: int = field(default=10, metadata=role(Role.ASIDE))
    """Steps between records of the training loss."""
    checkpoint_seconds: float = field(default=30.0, metadata=role(Role.ASIDE))
    """Minimum seconds between checkpoints, which take at most 2 % of the time; 0: one after every step, at any cost."""
    diagnostics: bool = field(default=False, metadata=role(Role.ASIDE))
    """Whether each evaluation also records, layer by layer, token similarity, norms of the attention and its
    gradient, key masses and hybrid weights on a few training examples, and a finished run writes heat maps of the
    trained attention to ``attention.json``. Does not change the run's numbers."""

    def stepper(self, model: nn.Module, loss: Loss, optim: Optim, seed: int, accelerator: Accelerator) -> Stepper:
        """Returns the ``Stepper`` of this training."""
        return Stepper(
            model, loss, optim, accelerator,
            steps=self.steps, seed=seed, micro_batch_size=self.micro_batch_size,
            compiled=self.compile, cuda_graphs=self.cuda_graphs,
        )  # fmt: skip

    def check(self) -> None:
        """Raises a ``WrongUseError`` for invalid values."""
        for name in ("steps", "batch_size", "length_pool", "eval_every", "log_every"):
            if getattr(self, name) < 1:
                raise WrongUseError(f"train.{name}: expected at least 1, found {getattr(self, name)}")
        if self.checkpoint_seconds < 0:
            raise WrongUseError(f"train.checkpoint_seconds: expected at least 0, found {self.checkpoint_seconds}")
        if self.micro_batch_size is not None and self.micro_batch_size < 1:
            raise WrongUseError(f"train.micro_batch_size: expected at least 1, found {self.micro_batch_size}")


@dataclass(kw_only=True)
class Progress:
    """Restart state beside weights and optimiser state. A finished run reports it too."""

    step: int = 0
    chosen_step: int = 0
    chosen_metrics: dict[str, float] = field(default_factory=dict)
    chosen_before: int = 0
    """Chosen step of the previous checkpoint. Its weights are kept as long as that checkpoint."""
    training_seconds: float = 0.0
    peak_memory_bytes: int = 0
    """Largest peak memory, up to the last checkpoint, of the processes that trained it."""
    tokens: int = 0
    logged_step: int = 0
    loss_since_logged: float = 0.0
    segments: list[dict[str, Any]] = field(default_factory=list)
    """Environments in which the run was trained, in order, each with the number of steps before it."""


class _Checkpoints:
    """Timing of checkpoints, which take at most a fixed fraction of the time, however large the model is."""

    def __init__(self, least_seconds: float) -> None:
        self.least_seconds, self.written, self.cost, self.chosen_cost = least_seconds, time.monotonic(), 0.0, 0.0

    def due(self) -> bool:
        """Returns whether enough time has passed since the last checkpoint."""
        pause = max(self.least_seconds, self.cost / CHECKPOINT_SHARE) if self.least_seconds else 0.0
        return time.monotonic() - self.written >= pause

    def write(self, save: Callable[[], None]) -> None:
        """Writes a checkpoint and measures its cost."""
        began = time.monotonic()
        save()
        self.written = time.monotonic()
        self.cost, self.chosen_cost = self.written - began + self.chosen_cost, 0.0

    def choose(self, save: Callable[[], object]) -> None:
        """Writes chosen weights. Their cost is added to that of the next checkpoint."""
        began = time.monotonic()
        save()
        self.chosen_cost += time.monotonic() - began


class DivergedError(RuntimeError):
    """The loss or a gradient is not finite."""

    def __init__(self, step: int, message: str, progress: Progress) -> None:
        super().__init__(message)
        self.step, self.progress = step, progress


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
    """Trains a model, loads the weights that ``train.select`` chooses into it, and returns the progress.

    ``loss`` maps (model, batch) to a scalar, the mean over ``batch.weight()`` terms. ``evaluate`` maps a model to
    metrics, among them ``metric``, which chooses the best step. If killed at any moment and called again with the
    same arguments, it resumes from the last checkpoint in ``out`` and ends with the same weights, bit for bit on a
    CPU: batches and dropout are functions of (seed, step), and nothing else is random.

    Raises:
        DivergedError: the loss or a gradient is not finite; reports the step and the largest gradient.
        OSError: a checkpoint could not be written; the previous one is intact.
        BadDataError: the checkpoints to resume from are damaged or incomplete.
        WrongUseError: a batch that cannot be split evenly over the processes.
    """
    if train.batch_size % accelerator.num_processes:
        raise WrongUseError(
            f"train.batch_size {train.batch_size} cannot be shared out evenly to {accelerator.num_processes} processes"
        )
    folder = out / "checkpoint"
    stepper = train.stepper(model, loss, optim, seed, accelerator)
    progress = _resume(folder, stepper, log)
    losses = torch.tensor(progress.loss_since_logged, device=accelerator.device)
    unchecked: list[Tensor] = []  # losses and gradient norms that were not yet tested for being finite
    logged = dataclasses.replace(progress)
    clock = time.monotonic()
    checkpoints = _Checkpoints(train.checkpoint_seconds)

    few = first_examples(batches, 0) if train.diagnostics else None
    for share in stepper.shares(batches, range(progress.step, train.steps)):
        step_loss, norm = stepper.take(share, progress.step)
        progress.segments[-1]["implementations"] = stepper.implementations
        losses += step_loss
        unchecked.append(torch.stack([step_loss, norm]))
        progress.tokens += share.tokens
        progress.step += 1

        last = progress.step == train.steps
        log_due = progress.step % train.log_every == 0 or last
        evaluation_due = progress.step % train.eval_every == 0 or last
        # Clocks differ, so processes that save together follow the main one. They ask it only at some steps.
        save_due = last or (stepper.agreed(checkpoints.due()) if log_due or not stepper.gathers else False)
        # Reading a loss waits for a GPU, so it is read there only if something is due. On a CPU it is always read.
        if log_due or evaluation_due or save_due or not is_asynchronous(accelerator.device):
            values = torch.stack(unchecked).tolist()  # the host waits here
            now = time.monotonic()
            progress.training_seconds += now - clock
            clock = now
            _require_finite(model, values, progress)
            unchecked.clear()
        if log_due:
            lr = optim.lr * rate(optim.schedule, progress.step - 1, train.steps)
            _record(progress, logged, losses.item(), norm.item(), lr, log)
            losses.zero_()
            progress.logged_step = progress.step
            logged = dataclasses.replace(progress)
        if evaluation_due:
            broadcast_buffers(model)  # each process evaluates its share by the same model
            diagnose_now = None if few is None else functools.partial(_diagnose, stepper, few)
            chosen = _evaluate(model, evaluate, metric, higher_is_better, train, progress, log, diagnose_now)
            if chosen and accelerator.is_main_process:
                checkpoints.choose(lambda: save_weights(folder / chosen_name(progress.chosen_step), model))
            clock = time.monotonic()  # evaluations and checkpoints are not training time
        if save_due:
            progress.loss_since_logged = losses.item()
            checkpoints.write(lambda: _save(folder, stepper, progress))
            clock = time.monotonic()
    accelerator.wait_for_everyone()
    load_weights(chosen_weights(folder, progress.chosen_step), model)
    model.eval()
    return progress


def _resume(folder: Path, stepper: Stepper, log: Log) -> Progress:
    """Returns the progress to continue from: that of the last checkpoint, or none."""
    folder.mkdir(parents=True, exist_ok=True)
    progress, damage = _restore(folder, stepper)
    stepper.accelerator.wait_for_everyone()  # all have read the files that are renamed now
    if stepper.accelerator.is_main_process:
        if damage:
            os.replace(folder / BEFORE, folder / LAST)
            log.message(f"{log.title}: {damage}; resuming from the checkpoint before, at step {progress.step:,}")
        # A kill between writing a checkpoint and this line leaves old files.
        delete_other_weights(folder, progress.chosen_step, progress.chosen_before)
    progress.chosen_before = progress.chosen_step
    log.resume(progress.step)
    _begin_segment(progress, stepper.accelerator, log)
    return progress


def _begin_segment(progress: Progress, accelerator: Accelerator, log: Log) -> None:
    """Records the environment in which training continues, and prints its differences from the one before.

    Raises:
        WrongUseError: the run began in another precision, which is part of its protocol.
    """
    current = environment(accelerator)
    before = progress.segments[-1] if progress.segments else None
    if before is not None and before["precision"] != current["precision"]:
        raise WrongUseError(
            f"this run began in {before['precision']} on {before['device']}, and this machine computes in "
            f"{current['precision']}; resume it where it began, or start it again with --overwrite"
        )
    if differing := [] if before is None else differences(before, current):
        first = f"step {progress.step + 1:,}" if progress.step < log.steps else "the test"
        log.message(
            f"{log.title}: {', '.join(differing)}: from {first} on the bits may differ from those of an uninterrupted "
            "run"
        )
    if before is None or differing or any(before[name] != current[name] for name in ("commit", "clean")):
        progress.segments.append({"after_step": progress.step, **current})


def _record(progress: Progress, logged: Progress, losses: float, norm: float, lr: float, log: Log) -> None:
    """Logs mean loss and speed since the last record, and the last step's gradient norm and rate."""
    speed = (progress.tokens - logged.tokens) / (progress.training_seconds - logged.training_seconds)
    mean = losses / (progress.step - progress.logged_step)
    log.train(progress.step, {"loss": mean, "gradient_norm": norm, "lr": lr, "tokens_per_second": speed})


def _evaluate(
    model: nn.Module,
    evaluate: Evaluate,
    metric: str,
    higher_is_better: bool,
    train: Train,
    progress: Progress,
    log: Log,
    diagnose_now: Callable[[], Diagnostics] | None,
) -> bool:
    """Evaluates and logs. Returns whether this step's weights are chosen, which ``progress`` records."""
    model.eval()
    with torch.no_grad():
        metrics = dict(evaluate(model))
    require_finite_metrics(metrics, "evaluation", progress.step, progress)
    bounded = {name: module.raw.flatten().tolist() for name, module in bounded_modules(model)}
    log.evaluation(progress.step, metrics, bounded, {} if diagnose_now is None else diagnose_now())
    sign = 1 if higher_is_better else -1
    best = progress.chosen_metrics
    if best and train.select == "best" and sign * metrics[metric] <= sign * best[metric]:
        return False
    progress.chosen_step, progress.chosen_metrics = progress.step, metrics
    return True


def _diagnose(stepper: Stepper, few: Batch) -> Diagnostics:
    """Returns the diagnostics of a few examples, the same at every evaluation."""
    return diagnose(stepper.model, lambda: stepper.forward(stepper.model, few))


def first_examples(batches: Batches, step: int) -> Batch:
    """Returns the first examples of a step, ``DIAGNOSED_EXAMPLES`` at most."""
    batch = batches[step]
    return batch.rows(0, min(len(batch), DIAGNOSED_EXAMPLES))


def _require_finite(model: nn.Module, values: list[list[float]], progress: Progress) -> None:
    """Raises a ``DivergedError`` if a loss or gradient norm is not finite; the last of ``values`` is this step's."""
    finite = [math.isfinite(loss) and math.isfinite(norm) for loss, norm in values]
    if all(finite):
        return
    first = progress.step - len(values) + 1 + finite.index(False)
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None and p.grad.numel()}
    sizes = {name: gradient.abs().max().item() for name, gradient in gradients.items()}
    whole = {name: size for name, size in sizes.items() if math.isfinite(size)}
    largest = max(whole, key=whole.__getitem__, default=None)
    where = f"largest finite gradient {whole[largest]:.3g} in {largest}" if largest else "no gradient is finite"
    loss = values[finite.index(False)][0]
    overflow = "their norm overflows; " if len(whole) == len(sizes) > 0 and math.isfinite(loss) else ""
    raise DivergedError(
        first,
        f"loss {loss:.4g} at step {first:,}; {len(sizes) - len(whole)} of {len(sizes)} gradients are not finite; "
        f"{overflow}{where}", progress,
    )  # fmt: skip


def require_finite_metrics(
    metrics: Mapping[str, float], name: Literal["evaluation", "test"], step: int, progress: Progress
) -> None:
    """Raises a ``DivergedError`` if a metric of the weights of ``step`` is not finite."""
    broken = [metric for metric, value in metrics.items() if not math.isfinite(value)]
    if broken:
        message = f"{', '.join(broken)} of the {name} at step {step:,} is not finite"
        raise DivergedError(step, message, progress)


def _save(folder: Path, stepper: Stepper, progress: Progress) -> None:
    """Writes a checkpoint. Only the main process writes, after collecting the loss states of the others.

    The previous checkpoint is kept with its chosen weights, in case this one is damaged.
    """
    is_main = stepper.accelerator.is_main_process
    state = stepper.state_dict() if is_main or stepper.gathers else {}
    progress.peak_memory_bytes = max(progress.peak_memory_bytes, peak_memory_bytes(stepper.accelerator.device))
    if not is_main:
        return
    save_state(folder / LAST, {"format": FORMAT, **state, "progress": asdict(progress)}, before=folder / BEFORE)
    delete_other_weights(folder, progress.chosen_step, progress.chosen_before)
    progress.chosen_before = progress.chosen_step


def _restore(folder: Path, stepper: Stepper) -> tuple[Progress, str]:
    """Returns the progress of the newest intact checkpoint, and a description of damage to a newer one (or empty).

    Raises:
        BadDataError: no checkpoint is intact, or one is of another version or model.
    """
    damage: list[str] = []
    for path in (folder / LAST, folder / BEFORE):
        try:
            state = load_state(path)
            if state is None:
                continue
            progress = _load_progress(path, state, stepper)
            if progress.chosen_step:
                verify_weights(chosen_weights(folder, progress.chosen_step))
        except _OtherCheckpointError:
            raise
        except BadDataError as error:
            damage.append(str(error))
        else:
            return progress, "; ".join(damage)
    if damage:
        raise BadDataError(f"{'; '.join(damage)}; no other checkpoint is whole: --overwrite starts this run again")
    return Progress(), ""


class _OtherCheckpointError(BadDataError):
    """An intact checkpoint of another version or another model."""


def _load_progress(path: Path, state: Mapping[str, Any], stepper: Stepper) -> Progress:
    """Loads a checkpoint's state into a stepper, and returns the progress in it."""
    if state.get("format") != FORMAT:
        raise _OtherCheckpointError(
            f"{path}: a checkpoint of another version of seqarena (expected format {FORMAT}); "
            "--overwrite starts this run again"
        )
    try:
        stepper.load_state_dict(dict(state))
        return Progress(**state["progress"])
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        reason = str(error).split("\n")[0]
        raise _OtherCheckpointError(f"{path}: not of this model ({reason}); --overwrite starts it again") from error
