"""Assembles the text, model and loss of a language model with a memory."""

import sys
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from seqarena.common.errors import BadDataError, WrongUseError
from seqarena.common.model.deescalation import DeescalationState
from seqarena.common.runs.package import Assembly, Evaluation
from seqarena.common.training.processes import Accelerator, bare_model
from seqarena.pretraining.transformer_xl import LayerMemory, Memory, TransformerXL
from seqarena.pretraining.wikitext.cost import estimate
from seqarena.pretraining.wikitext.evaluator import evaluate, floors, streams_of
from seqarena.pretraining.wikitext.run import LanguageRun, Segments
from seqarena.pretraining.wikitext.streams import SegmentBatch, Streams


class RememberingLoss:
    """Mean cross-entropy of segments, given a memory of earlier segments; the memory is part of a checkpoint.

    A step may be split into micro-batches of streams; the memory of each is stored under the number of its first
    stream. A stream without a stored memory starts with an empty one. In evaluation mode the memory is always empty
    and is not stored.
    """

    def __init__(self, segments: Segments) -> None:
        self.segments = segments
        self.parts: dict[int, Memory] = {}
        self.restored: dict[int, Memory] = {}
        """Memory from a checkpoint, for streams of all processes; dropped once the first micro-batch recurs."""

    def __call__(self, model: nn.Module, batch: SegmentBatch) -> Tensor:
        """Returns the mean over targets."""
        first = int(batch.stream[0])
        bare = bare_model(model)
        goes_on = bare.training and not bool(batch.fresh[0])
        memory = self._memory_of(first, len(batch), batch.tokens.device) if goes_on else None
        total, following = model(
            batch.tokens,
            batch.targets,
            bare.empty_memory(len(batch)) if memory is None else memory,
            memory_length=self.segments.memory,
            clamp=self.segments.clamp,
            window=self.segments.window,
        )
        if bare.training:
            self.parts[first] = following
        return total / batch.targets.numel()  # type: ignore[no-any-return]

    def _memory_of(self, first: int, count: int, device: torch.device) -> Memory | None:
        if first in self.parts:
            self.restored = {}
            return self.parts[first]
        rows = [self.restored[stream] for stream in range(first, first + count) if stream in self.restored]
        if rows and len(rows) < count:
            raise BadDataError(
                f"the checkpoint has the memory of {len(rows)} of {count} streams; --overwrite starts this run again"
            )
        return [_concatenate(some, device) for some in zip(*rows, strict=True)] if rows else None

    def state_dict(self) -> dict[int, list[dict[str, Tensor]]]:
        """Returns the memory of this process's streams on the CPU, by stream number."""
        return {
            first + row: [_plain(own, row) for own in part]
            for first, part in (self.parts or self.restored).items()
            for row in range(len(_past(part)))
        }

    def load_state_dict(self, state: Mapping[int, list[dict[str, Tensor]]]) -> None:
        """Restores the memory of streams from a ``state_dict``, written by any number of processes."""
        self.parts = {}
        self.restored = {stream: [_memory(values) for values in layers] for stream, layers in state.items()}


def _past(part: Memory) -> Tensor:
    past = part[0].past
    assert isinstance(past, Tensor), "training stores streams, not projections"
    return past


def _plain(own: LayerMemory, row: int) -> dict[str, Tensor]:
    """Returns one stream's memory of a layer as named tensors, copied."""
    norm_state = {} if own.norm_state is None else own.norm_state._asdict()
    values = {"past": own.past, "attention_state": own.attention_state, **norm_state}
    return {name: each[row : row + 1].cpu().clone() for name, each in values.items() if isinstance(each, Tensor)}


def _memory(values: Mapping[str, Tensor]) -> LayerMemory:
    norm_state = DeescalationState(values["total"], values["seen"]) if "total" in values else None
    return LayerMemory(values["past"], values.get("attention_state"), norm_state)


def _concatenate(some: tuple[LayerMemory, ...], device: torch.device) -> LayerMemory:
    rows = [_plain(own, 0) for own in some]
    return _memory({name: torch.cat([each[name] for each in rows]).to(device) for name in rows[0]})


def assemble(run: LanguageRun, folder: Path, accelerator: Accelerator) -> Assembly:
    """Returns the run's model, loss, batches and evaluations; prepared text is read from and written to ``folder``.

    Raises:
        BadDataError: text that is missing or damaged.
        WrongUseError: a vocabulary that is not the model's, or a segment longer than a stream.
    """
    if accelerator.is_main_process:
        print(f"{run.task}, preset {run.preset}: {estimate(run, accelerator.num_processes)}", file=sys.stderr)
    text = run.data.load(folder, run.task, report_differences=accelerator.is_main_process)
    require_vocabulary(run, text.vocabulary)
    batches = Streams(ids=text.ids["train"], count=run.train.batch_size, length=run.segments.length)
    for split, name in (("valid", "validation"), ("test", "validation"), ("test", "final")):
        try:
            streams_of(text, split, getattr(run, name))  # fails here rather than after hours of training
        except WrongUseError as error:
            raise WrongUseError(f"{name}, {split}: {error}") from error

    def test(model: nn.Module) -> Evaluation:
        final = evaluate(model, text, "test", run.final, accelerator)
        validated = evaluate(model, text, "test", run.validation, accelerator).metrics
        also = {f"{name}_as_validated": validated[name] for name in ("loss", "perplexity")}
        return Evaluation(metrics={**final.metrics, **also}, examples=final.examples)

    return Assembly(
        model=TransformerXL(run.model),
        loss=RememberingLoss(run.segments),
        batches=batches,
        validate=lambda model: evaluate(model, text, "valid", run.validation, accelerator),
        test=test,
        floors=lambda: floors(text),
        data_checksum=text.checksum,
    )


def require_vocabulary(run: LanguageRun, size: int) -> None:
    """Rejects a text whose vocabulary size is not the model's.

    Raises:
        WrongUseError: names the fields to set.
    """
    if run.model.vocabulary == size:
        return
    fitting = tuple(cut for cut in run.model.cutoffs if cut < size)
    cutoffs = f" --model.cutoffs {' '.join(map(str, fitting))}" if fitting != run.model.cutoffs and fitting else ""
    raise WrongUseError(
        f"model.vocabulary {run.model.vocabulary:,}, but the text's vocabulary has {size:,} {run.data.kind}s; for a "
        f"model of this text, set --model.vocabulary {size}{cutoffs or (' --model.cutoffs' if not fitting else '')}"
    )
