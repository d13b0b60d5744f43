"""Runs of language models small enough to be made in a second, of text with a rule that can be learned."""

from dataclasses import replace
from pathlib import Path

import torch

from seqarena.common.model.norms.deescalated import Deescalated
from seqarena.common.runs.results import Result
from seqarena.common.runs.session import Session, execute
from seqarena.common.training.runtime import seed_torch
from seqarena.pretraining.__main__ import PACKAGE
from seqarena.pretraining.transformer_xl import TransformerXL
from seqarena.pretraining.wikitext.data import EncodedText, WikiText
from seqarena.pretraining.wikitext.presets import PRESETS
from seqarena.pretraining.wikitext.run import LanguageRun, Scoring, Segments
from tests.pretraining.wiki import rhymes

RUNNING = Deescalated(mean="running")
QUICK = PRESETS["wikitext2"]["quick"].run


def tiny(folder: Path, **model: object) -> LanguageRun:
    """A run on the ring of eight words."""
    return replace(
        QUICK,
        data=WikiText(path=str(rhymes(folder / "wiki"))),
        model=replace(QUICK.model, vocabulary=9, layers=2, dim=16, heads=2, ffn_dim=24, cutoffs=(5,), **model),
        optim=replace(QUICK.optim, schedule=replace(QUICK.optim.schedule, warmup=2), lr=1e-2),
        train=replace(QUICK.train, steps=12, batch_size=4, eval_every=6, checkpoint_seconds=0.0),
        segments=Segments(length=8, memory=6),
        validation=Scoring(length=8, memory=6, streams=4),
        final=Scoring(length=5, memory=9, same_length=True, clamp=7, streams=3),
    )


def measure(run: LanguageRun, folder: Path) -> tuple[Result, Path]:
    result = execute(PACKAGE, run, Session(runs=folder / "runs", data=folder / "data"))
    (its,) = (folder / "runs" / "pretraining" / "wikitext2").iterdir()
    return result, its


def loaded(run: LanguageRun, folder: Path) -> tuple[EncodedText, TransformerXL]:
    """The text, and a model whose numbers are far from those of all the same words."""
    text = run.data.load(folder, run.task, report_differences=False)
    seed_torch(1)
    model = TransformerXL(run.model).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(10 if parameter.ndim > 1 else 1)
    return text, model
