"""Which of the two kinds of model a pretraining run trains."""

from pathlib import Path

from accelerate import Accelerator

from common.runs.package import Assembly
from pretraining import trainer
from pretraining.run import Run
from pretraining.wikitext import trainer as language_trainer
from pretraining.wikitext.run import LanguageRun


def assemble(run: Run | LanguageRun, folder: Path, accelerator: Accelerator) -> Assembly:
    """Returns what the run's kind of model brings to it."""
    if isinstance(run, LanguageRun):
        return language_trainer.assemble(run, folder, accelerator)
    return trainer.assemble(run, folder, accelerator)
