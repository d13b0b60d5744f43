"""Compares the speed of Transformer-XL with the published formulation, in training and scoring, with equal weights."""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace

import torch
from torch import Tensor

from seqarena.common.errors import WrongUseError
from seqarena.common.parser import Parser, at_least_one
from seqarena.common.runs.cli import build_run
from seqarena.common.saved_table import add_output_options, print_table
from seqarena.common.training.runtime import device_name, make_accelerator, seed_torch
from seqarena.pretraining.__main__ import PACKAGE
from seqarena.pretraining.transformer_xl import Memory, Model, TransformerXL
from seqarena.pretraining.wikitext import original
from seqarena.pretraining.wikitext.run import LanguageRun, Segments
from seqarena.pretraining.wikitext.streams import SegmentBatch
from seqarena.pretraining.wikitext.trainer import RememberingLoss

Segment = tuple[Tensor, Tensor]
"""Tokens and their targets, both B T."""


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """Median seconds of ours and of the other, and the largest difference of their losses."""

    what: str
    ours: float
    theirs: float
    difference: float

    @property
    def ratio(self) -> float:
        """Speed of ours relative to the other."""
        return self.theirs / self.ours


def random_segments(model: Model, streams: int, length: int, count: int) -> list[Segment]:
    """Returns segments of random words by Zipf's law, p(rank) ~ 1 / (rank + 2.7)."""
    generator = torch.Generator().manual_seed(0)
    weights = 1 / (torch.arange(model.vocabulary) + 2.7)
    tokens = torch.multinomial(weights, streams * (count * length + 1), replacement=True, generator=generator)
    rows = tokens.view(streams, -1)
    return [(rows[:, at : at + length], rows[:, at + 1 : at + 1 + length]) for at in range(0, count * length, length)]


def training(what: str, run: LanguageRun, segments: Sequence[Segment]) -> Ratio:
    """Times forward and backward of both, alternating, each with its own memory; dropout as in the run."""
    model, how = _model(run).train(), run.segments
    loss = RememberingLoss(how)
    numbers = torch.arange(run.train.batch_size)
    memory: list[Tensor] = _empty_memory(model, run.train.batch_size)

    def ours(step: int) -> float:
        tokens, targets = segments[step]
        found = loss(
            model,
            SegmentBatch(tokens=tokens, targets=targets, stream=numbers, fresh=torch.full_like(numbers, step == 0)),
        )
        torch.autograd.backward(found)
        return found.item()

    def theirs(step: int) -> float:
        nonlocal memory
        found, streams = original.step(model, *segments[step], memory, clamp=how.clamp, window=how.window)
        torch.autograd.backward(found)
        memory = [each[-how.memory :] if how.memory else each[:0] for each in streams]
        return found.item()

    return _alternate(what, ours, theirs, len(segments), model)


@torch.no_grad()
def scoring(what: str, run: LanguageRun, segments: Sequence[Segment], *, projected: bool) -> Ratio:
    """Times a scored segment with a full memory against the published code, or ours without cached projections."""
    model, how = _model(run).eval(), run.final
    streams = len(segments[0][0])
    own: Memory = model.projected_memory(streams, how.length + how.memory, how.clamp)
    other: Memory = model.empty_memory(streams)
    memory: list[Tensor] = _empty_memory(model, streams)

    def score(step: int, past: Memory) -> tuple[float, Memory]:
        tokens, targets = segments[step]
        hidden, past = model.read(tokens, past, memory_length=how.memory, clamp=how.clamp, window=how.window)
        return float(model.softmax.losses(hidden.flatten(0, 1), model.word.weight, targets.flatten()).mean()), past

    def ours(step: int) -> float:
        nonlocal own
        found, own = score(step, own)
        return found

    def theirs(step: int) -> float:
        nonlocal memory, other
        if not projected:
            found, other = score(step, other)
            return found
        loss, inputs = original.step(model, *segments[step], memory, clamp=how.clamp, window=how.window)
        memory = [each[-how.memory :] if how.memory else each[:0] for each in inputs]
        return float(loss)

    return _alternate(what, ours, theirs, len(segments), model, warm=-(-how.memory // how.length))


def _model(run: LanguageRun) -> TransformerXL:
    seed_torch(0, 0)
    return TransformerXL(run.model)


def _empty_memory(model: TransformerXL, streams: int) -> list[Tensor]:
    return [torch.zeros(0, streams, model.config.dim)] * model.config.layers


def _alternate(
    what: str,
    ours: Callable[[int], float],
    theirs: Callable[[int], float],
    count: int,
    model: TransformerXL,
    warm: int = 2,
) -> Ratio:
    seconds: list[tuple[float, float]] = []
    apart = 0.0
    for step in range(count):
        found, times = [], []
        for call in (ours, theirs):
            seed_torch(step)
            start = time.perf_counter()
            found.append(call(step))
            times.append(time.perf_counter() - start)
            model.zero_grad()
        seconds += [(times[0], times[1])] if step >= warm else []
        apart = max(apart, abs(found[0] - found[1]))
    mine, other = (statistics.median(each) for each in zip(*seconds, strict=True))
    return Ratio(what=what, ours=mine, theirs=other, difference=apart)


def parser() -> Parser:
    """Returns the parser of ``seqarena benchmark transformer-xl``."""
    made = Parser(prog="seqarena benchmark transformer-xl", description=f"{__doc__}\nFields are set as --path value.")
    made.add_argument("--task", default="wikitext2", help="task of pretraining (default: wikitext2)")
    made.add_argument("--preset", default="small", help="preset to start from (default: small)")
    made.add_argument("--repeats", type=int, default=12, help="timed segments (default: 12)")
    add_output_options(made, json_help="print the measurements as one JSON object")
    return made


def chosen_run(arguments: Sequence[str]) -> tuple[argparse.Namespace, LanguageRun]:
    """Returns the options, and the run whose model and segments are measured.

    Raises:
        WrongUseError: an unknown name or field, or a task of another model.
    """
    options, fields = parser().parse_known_args(arguments)
    at_least_one(options, "repeats")
    prog = "seqarena benchmark transformer-xl"
    chosen = build_run(PACKAGE, options.task, options.preset, None, None, 0, fields, prog)
    if not isinstance(chosen, LanguageRun):
        raise WrongUseError(f"--task {options.task}: expected a task of Transformer-XL, wikitext2 or wikitext103")
    return options, chosen


def run(arguments: Sequence[str]) -> int:
    """Runs ``seqarena benchmark transformer-xl`` and returns its exit code."""
    options, chosen = chosen_run(arguments)
    how: Segments = chosen.final
    warm = -(-how.memory // how.length)
    length, count = chosen.segments.length, options.repeats
    print("training ...", file=sys.stderr)
    steps = random_segments(chosen.model, chosen.train.batch_size, length, count + 2)
    without = replace(chosen, model=replace(chosen.model, dropout=0.0, attention_dropout=0.0))
    found = [training("training step", chosen, steps), training("training step without dropout", without, steps)]
    for streams in dict.fromkeys((chosen.final.streams, 1)):
        print(f"scoring, {streams} streams ...", file=sys.stderr)
        segments = random_segments(chosen.model, streams, how.length, count + warm)
        what = f"scored segment, {streams} stream{'s' * (streams > 1)}"
        found.append(scoring(what, chosen, segments, projected=True))
        found.append(scoring(f"{what}; against ours without cached projections", chosen, segments, projected=False))
    if options.json:
        print(json.dumps([{**asdict(each), "ratio": each.ratio} for each in found]))
        return 0
    rows = [
        [
            each.what,
            f"{1000 * each.ours:.0f}",
            f"{1000 * each.theirs:.0f}",
            f"{each.ratio:.2f}",
            f"{each.difference:.1e}",
        ]
        for each in found
    ]
    model, device = chosen.model, device_name(make_accelerator("float32").device)
    notes = [
        f"{model.layers} layers of {model.dim}, {model.heads} heads, feed-forward {model.ffn_dim}, "
        f"{model.vocabulary:,} words, cutoffs {model.cutoffs}; words by Zipf's law; medians of {count} segments",
        f"training: {chosen.train.batch_size} streams, {chosen.segments.summary}, dropout {model.dropout}"
        f"{' (drawn by each in its own order, so losses differ)' if model.dropout else ''}, forward and backward; "
        f"scoring: {how.summary}",
        f"{device}, float32",
    ]
    headings = ["", "ours, ms", "other, ms", "ratio", "loss difference"]
    title = f"against the published formulation: preset {chosen.preset}"
    print_table(options, parser().prog, arguments, title, headings, rows, notes, device)
    return 0
