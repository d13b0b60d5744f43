"""Trains our LRA classifier and that of Xiong et al. on the same batches of ListOps, and compares losses and time.

You fetch the authors' code (mlpen/Nystromformer, LRA/code). Their attention_performer.py, elsewhere in that repository,
belongs beside it and needs performer-pytorch. Nothing is copied between the models. Both have the sizes, optimiser and
schedule of the preset, the authors' dropout (0.1) and pooling, and the same seeds. Their model takes sequences of one
length: its batches are padded to model.max-length, ours to their longest sequence. Rank and random features: 256, or
that length if it is smaller. Landmarks: the largest power of two, up to 64, that divides a quarter of it.
"""

import importlib
import json
import math
import sys
import time
import warnings
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean, median, stdev, variance
from typing import Any

import torch
from torch import Tensor, nn

from seqarena.common.errors import WrongUseError, look_up
from seqarena.common.parser import Parser
from seqarena.common.runs.cli import build_run
from seqarena.common.runs.package import build
from seqarena.common.saved_table import add_output_options, print_table
from seqarena.common.tables import TableParts
from seqarena.common.training.runtime import device_name, make_accelerator, seed_torch
from seqarena.lra.__main__ import PACKAGE
from seqarena.lra.data import Sequences
from seqarena.lra.presets.xiong2021 import MODEL
from seqarena.lra.run import Run

THEIRS = {"softmax": "softmax", "nystromformer": "nystrom", "linformer": "linformer", "performer": "performer"}
"""Our name of a variant -> theirs."""
SIZES = ("vocabulary", "max_length", "classes", "layers", "dim", "heads", "ffn_dim", "dropout", "attention_dropout")
"""Fields of our model that theirs has too. The others must be as in the preset xiong2021."""
PARTS = 4
"""Number of parts of the steps whose mean losses are compared: 50 steps each of 200."""


def parser() -> Parser:
    """Returns the parser of ``seqarena benchmark lra-code``."""
    made = Parser(prog="seqarena benchmark lra-code", description=f"{__doc__}\nFields are set as --path value.")
    made.add_argument("--code", type=Path, required=True, help="folder with the authors' model_wrapper.py")
    made.add_argument("--attention", nargs="+", default=[*THEIRS], help=f"of {', '.join(THEIRS)} (default: all)")
    made.add_argument("--preset", default="quick", help="preset of lra listops (default: quick)")
    made.add_argument("--steps", type=int, default=200, help="training steps (default: 200)")
    made.add_argument("--seeds", type=int, default=3, help="number of seeds, from 0 on (default: 3)")
    made.add_argument("--data-folder", type=Path, default=Path("data"), help="folder of prepared data (default: data)")
    add_output_options(made, json_help="print the losses of all steps as one JSON object")
    return made


def parse(arguments: Sequence[str]) -> tuple[Namespace, dict[str, list[Run]]]:
    """Returns the options, and each variant's runs, one per seed; raises a ``WrongUseError`` for bad input."""
    options, typed = parser().parse_known_args(arguments)
    for name, least in (("steps", PARTS), ("seeds", 2)):
        if getattr(options, name) < least:
            raise WrongUseError(f"--{name}: expected at least {least}, found {getattr(options, name)}")
    own = f"--train.steps {options.steps} --train.precision float32 --legacy.padded-pooling yes --model.dropout "
    own += f"{MODEL.dropout} --model.attention-dropout {MODEL.attention_dropout}"
    for name in options.attention:
        look_up(THEIRS, name, "variant of the authors")
    fields, seeds = [*own.split(), *typed], range(options.seeds)
    return options, {name: [_run(options.preset, name, seed, fields) for seed in seeds] for name in options.attention}


def _run(preset: str, name: str, seed: int, fields: Sequence[str]) -> Run:
    package = PACKAGE
    other = WrongUseError(f"preset {preset}: expected the model of preset xiong2021; only its sizes may differ")
    meant: Any = look_up(package.presets["listops"], preset, "preset").run
    if meant.model.pooling != MODEL.pooling:
        raise other
    made: Any = build_run(package, "listops", preset, name, None, seed, fields, parser().prog)
    model, length = made.model, made.model.max_length
    if model != replace(MODEL, attention=model.attention, **{each: getattr(model, each) for each in SIZES}):
        raise other
    sizes = {"landmarks": max(1, math.gcd(length, 256) // 4), "rank": min(256, length), "features": min(256, length)}
    few = {size: count for size, count in sizes.items() if hasattr(model.attention, size)}
    run: Run = replace(made, model=replace(model, attention=replace(model.attention, **few)))
    return run


def their_model(folder: Path, model: Any, name: str) -> nn.Module:
    """Returns the authors' classifier with the sizes of ours; raises a ``WrongUseError`` if their code fails."""
    length, its = model.max_length, model.attention
    config = {
        "embedding_dim": model.dim, "transformer_dim": model.dim, "transformer_hidden_dim": model.ffn_dim,
        "head_dim": model.dim // model.heads, "num_head": model.heads, "num_layers": model.layers,
        "vocab_size": model.vocabulary, "num_classes": model.classes, "max_seq_len": length, "seq_len": length,
        "dropout_prob": model.dropout, "attention_dropout": model.attention_dropout, "attn_type": THEIRS[name],
        "pooling_mode": "MEAN", "learn_pos_emb": True, "tied_weights": False, "mixed_precision": False,
        "attention_grad_checkpointing": False, "conv_kernel_size": 35, "kernel_type": "exp",
        "num_landmarks": getattr(its, "landmarks", 1), "linformer_k": getattr(its, "rank", 1),
        "rp_dim": getattr(its, "features", 1),
    }  # fmt: skip
    importlib.invalidate_caches()
    sys.path.insert(0, str(folder))
    try:
        found: nn.Module = importlib.import_module("model_wrapper").ModelForSC(config)
        tokens = torch.ones(2, length, dtype=torch.long)
        their_loss(found, Sequences(tokens=tokens, real=tokens.bool(), labels=tokens[:, 0])).item()
    except (Exception, SystemExit) as error:  # whatever code that is not ours raises
        reason = f"{type(error).__name__}: {error}".split("\n")[0]
        raise WrongUseError(f"--code {folder}: no {name} of LRA/code of mlpen/Nystromformer ({reason})") from error
    finally:
        sys.path.remove(str(folder))
        for path in folder.glob("*.py"):  # imported anew the next time: their Linformer's class keeps the trained E
            sys.modules.pop(path.stem, None)
    return found


def their_loss(model: nn.Module, batch: Sequences) -> Tensor:
    """Returns the mean cross-entropy of their model, whose mask is a float tensor."""
    real = torch.ones_like(batch.tokens) if batch.real is None else batch.real
    loss: Tensor = model(batch.tokens, real.float(), batch.labels)["loss"].mean()
    return loss


def measure(options: Namespace, runs: Sequence[Run], name: str) -> dict[str, Any]:
    """Trains both models in turns. Returns each seed's losses and the median seconds of a step, ours and theirs."""
    losses: list[tuple[list[float], list[float]]] = []
    seconds: list[list[float]] = [[], []]
    for run in runs:
        assembly, ours = build(PACKAGE, run, options.data_folder)
        seed_torch(run.seed, 0)
        model = their_model(options.code, run.model, name)
        steppers = ours, run.train.stepper(model, their_loss, run.optim, run.seed, ours.accelerator)
        losses.append(([], []))
        for step in range(run.train.steps):
            batch: Any = assembly.batches[step]
            for which, each in enumerate((batch, batch.longer(run.model.max_length))):
                clock = time.process_time()
                losses[-1][which].append(steppers[which].take(ours.share(each), step)[0].item())
                seconds[which].append(time.process_time() - clock)
    return {"losses": losses, "seconds": [*map(median, seconds)]}


def compare(found: Mapping[str, Any], part: int) -> tuple[list[float], list[float], float]:
    """Returns each seed's mean loss in a part of the steps, of ours and theirs, and the difference / seed noise."""
    steps = len(found["losses"][0][0])
    some = slice(part * steps // PARTS, (part + 1) * steps // PARTS)
    ours, theirs = ([fmean(each[some]) for each in model] for model in zip(*found["losses"], strict=True))
    noise = math.sqrt((variance(ours) + variance(theirs)) / 2)
    return ours, theirs, (fmean(ours) - fmean(theirs)) / max(noise, 1e-12)


def run(arguments: Sequence[str]) -> int:
    """Runs ``seqarena benchmark lra-code`` and returns its exit code."""
    options, variants = parse(arguments)
    found: dict[str, Mapping[str, Any]] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of their torch.cuda.amp
        for name, runs in variants.items():
            their_model(options.code, runs[0].model, name)
        for name, runs in variants.items():
            print(f"{name} ...", file=sys.stderr)
            found[name] = measure(options, runs, name)
    if options.json:
        print(json.dumps(found))
    else:
        device = device_name(make_accelerator("float32").device)
        print_table(options, parser().prog, arguments, *table(found, options), device)
    return 0


def table(found: Mapping[str, Mapping[str, Any]], options: Namespace) -> TableParts:
    """Returns the table of all variants."""
    rows = []
    for name, each in found.items():
        losses = [f"{fmean(some):.4f} +- {stdev(some):.4f}" for some in compare(each, PARTS - 1)[:2]]
        differences = " ".join(f"{compare(each, part)[2]:+.1f}" for part in range(PARTS))
        ours, theirs = (1000 * seconds for seconds in each["seconds"])
        rows.append([name, *losses, differences, f"{ours:.1f} / {theirs:.1f}", f"{ours / theirs:.2f}"])
    last = options.steps - (PARTS - 1) * options.steps // PARTS
    notes = [
        f"loss: mean over the last {last} of {options.steps} steps, mean +- standard deviation of "
        f"{options.seeds} seeds; seed noise: that deviation, of both together",
        f"difference: ours - theirs in each of {PARTS} parts of the steps, in order; they differ by at most a step",
        f"ms per step: processor time, medians, {torch.get_num_threads()} thread(s)",
    ]
    headings = ["variant", "loss, ours", "loss, theirs", "difference / seed noise", "ms per step", "ratio"]
    return f"beside the authors' code: listops, preset {options.preset}", headings, rows, notes
