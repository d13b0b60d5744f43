"""Dispatches a pretraining run to its trainer: masked-language model or Transformer-XL."""

from pathlib import Path

from seqarena.common.runs.package import Assembly
from seqarena.common.training.processes import Accelerator
from seqarena.pretraining import trainer
from seqarena.pretraining.run import Run
from seqarena.pretraining.wikitext import trainer as language_trainer
from seqarena.pretraining.wikitext.run import LanguageRun


def assemble(run: Run | LanguageRun, folder: Path, accelerator: Accelerator) -> Assembly:
    """Returns the model, loss, batches and evaluations of a run."""
    if isinstance(run, LanguageRun):
        return language_trainer.assemble(run, folder, accelerator)
    return trainer.assemble(run, folder, accelerator)
