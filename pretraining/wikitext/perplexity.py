"""Scores the chosen weights of a run, finished or not, under its two protocols or others."""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from accelerate import Accelerator

from seqarena.common.attention import attention_name
from seqarena.common.errors import BadDataError, WrongUseError
from seqarena.common.model.blocks import norm_name
from seqarena.common.runs.cli import Parser
from seqarena.common.runs.fields import set_fields
from seqarena.common.runs.named import changed_fields
from seqarena.common.runs.trained import read_trained
from seqarena.common.training.runtime import device_name, make_accelerator, precision_name
from seqarena.pretraining.transformer_xl import TransformerXL
from seqarena.pretraining.wikitext.data import EncodedText
from seqarena.pretraining.wikitext.evaluator import in_clusters, streams_of, summed_up, token_losses
from seqarena.pretraining.wikitext.run import LanguageRun, Scoring
from seqarena.pretraining.wikitext.sources import SPLITS

PROG = "seqarena pretraining perplexity"
FREE = ("final.", "validation.", "data.path")
"""Fields that may differ from those of the run."""


def parser() -> Parser:
    """Returns the parser of ``seqarena pretraining perplexity``."""
    made = Parser(
        prog=PROG,
        description=f"{__doc__}\nFields of --final and --validation are set as in a run: --final.streams 1 scores all "
        "tokens, --final.memory 1600 remembers more; --data.path says where the text is now.",
    )
    made.add_argument("run", type=Path, help="directory of a run of wikitext103 or wikitext2")
    made.add_argument("--split", choices=SPLITS, default="valid", help="what is scored (default: valid)")
    made.add_argument("--data-folder", type=Path, default=Path("data"), help="folder of prepared data (default: data)")
    made.add_argument("--json", action="store_true", help="print one JSON object on the last line")
    return made


def changed(run: LanguageRun, fields: Sequence[str]) -> LanguageRun:
    """Returns the run with fields set that say how it is scored.

    Raises:
        WrongUseError: other fields.
    """
    found = set_fields(run, fields, PROG)
    assert isinstance(found, LanguageRun)
    others = [path for path in changed_fields(run, found) if not path.startswith(FREE)]
    if others:
        raise WrongUseError(f"{', '.join(others)}: a run's own; here --final.*, --validation.* and --data.path are set")
    found.check()
    return found


def scored(
    model: TransformerXL, text: EncodedText, split: str, scoring: Scoring, accelerator: Accelerator
) -> dict[str, Any]:
    """Returns what one protocol gives: its settings, the metrics, how many tokens, and these by frequency."""
    streams = streams_of(text, split, scoring)
    losses = token_losses(model, streams, scoring, accelerator).flatten()
    return {
        **dataclasses.asdict(scoring),
        **summed_up(losses, text, split).metrics,
        "tokens_scored": len(losses),
        "tokens": len(text.ids[split]),
        "clusters": in_clusters(losses, streams.targets, model.config.cutoffs),
    }


def run(arguments: Sequence[str]) -> int:
    """Runs ``seqarena pretraining perplexity`` and returns its exit code."""
    options, fields = parser().parse_known_args(arguments)
    trained = read_trained(options.run, LanguageRun, "pretraining", ("wikitext103", "wikitext2"), unfinished=True)
    its, checksum = changed(trained.run, fields), trained.data_checksum
    accelerator = make_accelerator(its.train.precision)
    text = its.data.load(options.data_folder, its.task, told=accelerator.is_main_process)
    if text.checksum != checksum:
        raise BadDataError(
            f"{options.run}: trained on numbers of sha256 {checksum[:12]}..., those of {its.data.path or its.data.hub} "
            f"have {text.checksum[:12]}...: other text, or a checkpoint of another vocabulary "
            f"({its.model.vocabulary:,} words there, {text.vocabulary:,} here); name its own with --data.path"
        )
    model = TransformerXL(its.model)
    trained.load(model)
    model.to(accelerator.device)
    found = {
        name: scored(model, text, options.split, scoring, accelerator)
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
        f"{its.preset}: {options.split}, by the weights of step {about['step']:,} of {its.train.steps:,}"
        + ("" if about["finished"] else "; the run is not finished")
    )
    print(f"  {about['device']}, {about['precision']}")
    for (name, values), scoring in zip(found.items(), (its.final, its.validation), strict=True):
        print(f"  {name}: {scoring.told}")
        print(
            f"    perplexity {values['perplexity']:.3f}, loss {values['loss']:.4f}, bits per byte "
            f"{values['bits_per_byte']:.4f}; {values['tokens_scored']:,} of {values['tokens']:,} tokens scored"
        )
        ends = [*map("{:,}".format, its.model.cutoffs), f"{its.model.vocabulary:,}"]
        told = [
            f"below {end}: {loss:.3f} ({share:.1%})"
            for end, (share, loss) in zip(ends, values["clusters"], strict=True)
        ]
        print(f"    nats of a token by its number: {', '.join(told)}")
    return 0
