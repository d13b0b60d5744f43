"""How fast Transformer-XL trains and scores, beside the published formulation with the same weights and numbers."""

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
from seqarena.common.runs.cli import Parser, build_run
from seqarena.common.training.runtime import device_name, make_accelerator, seed_torch
from seqarena.pretraining.transformer_xl import Memory, Model, TransformerXL
from seqarena.pretraining.wikitext.run import LanguageRun, Segments
from seqarena.pretraining.wikitext.streams import SegmentBatch
from seqarena.pretraining.wikitext.trainer import RememberingLoss
from seqarena.scripts.benchmark import original
from seqarena.scripts.benchmark.chosen import at_least_one
from seqarena.scripts.packages import find_package
from seqarena.scripts.tables import render

Segment = tuple[Tensor, Tensor]
"""Tokens and what follows them, both B T."""


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """Medians of both in seconds, and how far their losses are apart at most."""

    what: str
    ours: float
    theirs: float
    difference: float

    @property
    def ratio(self) -> float:
        """How many times as fast."""
        return self.theirs / self.ours


def drawn(model: Model, streams: int, length: int, count: int) -> list[Segment]:
    """Returns segments of words by Zipf's law, p(rank) ~ 1 / (rank + 2.7), each anew."""
    generator = torch.Generator().manual_seed(0)
    share = 1 / (torch.arange(model.vocabulary) + 2.7)
    tokens = torch.multinomial(share, streams * (count * length + 1), replacement=True, generator=generator)
    rows = tokens.view(streams, -1)
    return [(rows[:, at : at + length], rows[:, at + 1 : at + 1 + length]) for at in range(0, count * length, length)]


def training(what: str, run: LanguageRun, segments: Sequence[Segment]) -> Ratio:
    """Times forward and backward of both, in turns, each behind its own memory; dropout as in the run."""
    model, how = _model(run).train(), run.segments
    loss = RememberingLoss(how)
    numbers = torch.arange(run.train.batch_size)
    memory: list[Tensor] = _nothing(model, run.train.batch_size)

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

    return _in_turns(what, ours, theirs, len(segments), model)


@torch.no_grad()
def scoring(what: str, run: LanguageRun, segments: Sequence[Segment], *, projected: bool) -> Ratio:
    """Times a scored segment behind the full memory of the final scoring; or ours without kept keys and values."""
    model, how = _model(run).eval(), run.final
    streams = len(segments[0][0])
    own: Memory = model.projected(streams, how.length + how.memory, how.clamp)
    other: Memory = model.empty(streams)
    memory: list[Tensor] = _nothing(model, streams)

    def score(step: int, past: Memory) -> tuple[float, Memory]:
        tokens, targets = segments[step]
        hidden, past = model.read(tokens, past, kept=how.memory, clamp=how.clamp, window=how.window)
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
        loss, seen = original.step(model, *segments[step], memory, clamp=how.clamp, window=how.window)
        memory = [each[-how.memory :] for each in seen]
        return float(loss)

    return _in_turns(what, ours, theirs, len(segments), model, warm=-(-how.memory // how.length))


def _model(run: LanguageRun) -> TransformerXL:
    seed_torch(0, 0)
    return TransformerXL(run.model)


def _nothing(model: TransformerXL, streams: int) -> list[Tensor]:
    return [torch.zeros(0, streams, model.config.dim)] * model.config.layers


def _in_turns(
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
    made.add_argument("--preset", default="small", help="named run to start from (default: small)")
    made.add_argument("--repeats", type=int, default=12, help="timed segments of each (default: 12)")
    made.add_argument("--json", action="store_true", help="print the measurements as one JSON object")
    return made


def chosen_run(arguments: Sequence[str]) -> tuple[argparse.Namespace, LanguageRun]:
    """Returns the options, and the run whose shape is measured.

    Raises:
        WrongUseError: a name or field that is unknown, or a task of another model.
    """
    options, fields = parser().parse_known_args(arguments)
    at_least_one(options, "repeats")
    prog = "seqarena benchmark transformer-xl"
    chosen = build_run(find_package("pretraining"), options.task, options.preset, None, None, 0, fields, prog)
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
    steps = drawn(chosen.model, chosen.train.batch_size, length, count + 2)
    without = replace(chosen, model=replace(chosen.model, dropout=0.0, attention_dropout=0.0))
    found = [training("a step of training", chosen, steps), training("the same without dropout", without, steps)]
    for streams in dict.fromkeys((chosen.final.streams, 1)):
        print(f"scoring, {streams} streams ...", file=sys.stderr)
        segments = drawn(chosen.model, streams, how.length, count + warm)
        what = f"a scored segment, {streams} stream{'s' * (streams > 1)}"
        found.append(scoring(what, chosen, segments, projected=True))
        found.append(scoring(f"{what}; ours, keys and values made anew", chosen, segments, projected=False))
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
    model = chosen.model
    notes = [
        f"{model.layers} layers of {model.dim}, {model.heads} heads, feed-forward {model.ffn_dim}, "
        f"{model.vocabulary:,} words, cutoffs {model.cutoffs}; words by Zipf; medians of {count} segments in turns",
        f"training: {chosen.train.batch_size} streams, {chosen.segments.told}, dropout {model.dropout} (drawn by each "
        f"in its own order, so losses differ), forward and backward; scoring: {how.told}",
        f"{device_name(make_accelerator('float32').device)}, float32",
    ]
    headings = ["", "ours, ms", "other, ms", "ratio", "losses apart"]
    print(render(f"beside the published formulation: preset {chosen.preset}", headings, rows, notes, "terminal"))
    return 0
