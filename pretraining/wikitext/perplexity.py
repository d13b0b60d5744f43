"""Evaluates the chosen weights of a run, finished or not, under its two scoring protocols or others."""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from seqarena.common.attention import attention_name
from seqarena.common.errors import BadDataError
from seqarena.common.model.norms import norm_name
from seqarena.common.parser import Parser
from seqarena.common.runs.external import add_code_option
from seqarena.common.runs.trained import changed_run, read_trained
from seqarena.common.saved_table import add_output_options, save_table
from seqarena.common.training.precision import precision_name
from seqarena.common.training.processes import Accelerator
from seqarena.common.training.runtime import device_name, make_accelerator
from seqarena.pretraining.transformer_xl import TransformerXL
from seqarena.pretraining.wikitext.data import EncodedText
from seqarena.pretraining.wikitext.evaluator import loss_by_cluster, metrics_of, streams_of, token_losses
from seqarena.pretraining.wikitext.run import LanguageRun, Scoring
from seqarena.pretraining.wikitext.sources import SPLITS

PROG = "seqarena pretraining perplexity"
FREE = ("final.", "validation.", "data.path")
"""Prefixes of the fields that may differ from those of the run."""


def parser() -> Parser:
    """Returns the parser of ``seqarena pretraining perplexity``."""
    made = Parser(
        prog=PROG,
        description=f"{__doc__}\nFields of --final and --validation are set as in a run: --final.streams 1 scores all "
        "tokens, --final.memory 1600 uses a longer memory. --data.path gives the present location of the text.",
    )
    made.add_argument("run", type=Path, help="directory of a run of wikitext103 or wikitext2")
    add_code_option(made)
    made.add_argument("--split", choices=SPLITS, default="valid", help="split to evaluate (default: valid)")
    made.add_argument("--data-folder", type=Path, default=Path("data"), help="folder of prepared data (default: data)")
    add_output_options(made, "print one JSON object on the last line")
    return made


def score(
    model: TransformerXL, text: EncodedText, split: str, scoring: Scoring, accelerator: Accelerator
) -> dict[str, Any]:
    """Returns the results of one protocol: its settings, metrics, numbers of tokens, and loss per cluster."""
    streams = streams_of(text, split, scoring)
    losses = token_losses(model, streams, scoring, accelerator).flatten()
    return {
        **dataclasses.asdict(scoring),
        **metrics_of(losses, text, split).metrics,
        "tokens_scored": len(losses),
        "tokens": len(text.ids[split]),
        "clusters": loss_by_cluster(losses, streams.targets, model.config.cutoffs),
    }


def run(arguments: Sequence[str]) -> int:
    """Runs ``seqarena pretraining perplexity`` and returns its exit code."""
    options, fields = parser().parse_known_args(arguments)
    trained = read_trained(
        options.run, LanguageRun, "pretraining", ("wikitext103", "wikitext2"), code=options.code, unfinished=True
    )
    its, checksum = changed_run(trained.run, fields, FREE, PROG), trained.data_checksum
    accelerator = make_accelerator(its.train.precision)
    text = its.data.load(options.data_folder, its.task, report_differences=accelerator.is_main_process)
    if text.checksum != checksum:
        raise BadDataError(
            f"{options.run}: trained on text of sha256 {checksum[:12]}..., but {its.data.path or its.data.hub} "
            f"has {text.checksum[:12]}...: another text, or another vocabulary ({its.model.vocabulary:,} words in the "
            f"checkpoint, {text.vocabulary:,} in the text); set --data.path to the text of the run"
        )
    model = TransformerXL(its.model)
    trained.load(model)
    model.to(accelerator.device)
    found = {
        name: score(model, text, options.split, scoring, accelerator)
        for name, scoring in (("final", its.final), ("as validated", its.validation))
    }
    if not accelerator.is_main_process:
        return 0
    about = {
        "task": its.task, "preset": its.preset, "attention": attention_name(its.model.attention),
        "norm": norm_name(its.model.norm), "layers": its.model.layers, "seed": its.seed, "notes": its.notes,
        "split": options.split, "step": trained.step, "steps": its.train.steps,
        "finished": trained.is_finished, "device": device_name(accelerator.device),
        "precision": precision_name(accelerator),
    }  # fmt: skip
    if options.json:
        print(json.dumps({"run": str(options.run), **about, "scored": found}))
        return 0
    notes = "".join(f" ({note})" for note in its.notes)
    print(
        f"{its.task}, {about['attention']}, {about['norm']}{notes}, {its.model.layers} layers, seed {its.seed}, preset "
        f"{its.preset}: {options.split}, weights of step {about['step']:,} of {its.train.steps:,}"
        + ("" if about["finished"] else "; the run is not finished")
    )
    print(f"  {about['device']}, {about['precision']}")
    for (name, values), scoring in zip(found.items(), (its.final, its.validation), strict=True):
        print(f"  {name}: {scoring.summary}")
        print(
            f"    perplexity {values['perplexity']:.3f}, loss {values['loss']:.4f}, bits per byte "
            f"{values['bits_per_byte']:.4f}; {values['tokens_scored']:,} of {values['tokens']:,} tokens scored"
        )
        ends = [*map("{:,}".format, its.model.cutoffs), f"{its.model.vocabulary:,}"]
        by_cluster = [
            f"below {end}: {'no token' if loss is None else f'{loss:.3f} ({share:.1%})'}"
            for end, (share, loss) in zip(ends, values["clusters"], strict=True)
        ]
        print(f"    nats per token by token index: {', '.join(by_cluster)}")
    if options.save is not None:
        rows = [
            [f"{name}: {scoring.summary}", f"{values['perplexity']:.2f}", f"{values['loss']:.4f}"]
            for (name, values), scoring in zip(found.items(), (its.final, its.validation), strict=True)
        ]
        title = f"perplexities of {its.task}, preset {its.preset}: {options.split}"
        where = f"{about['attention']}, seed {its.seed}, weights of step {about['step']:,} of {its.train.steps:,}"
        headings, device = ["protocol", "perplexity", "loss"], device_name(accelerator.device)
        save_table(options.save, PROG, arguments, title, headings, rows, [where], device)
    return 0
