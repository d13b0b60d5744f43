"""Pretraining from the command line: ``python -m pretraining TASK``, the same as ``seqarena pretraining TASK``."""

import sys
from pathlib import Path
from types import MappingProxyType

from accelerate import Accelerator

import pretraining
from common.cli import main
from common.package import Assembly, Package
from pretraining import presets, trainer
from pretraining.run import Run
from pretraining.tasks import TASKS
from pretraining.wikitext import perplexity
from pretraining.wikitext import presets as language_presets
from pretraining.wikitext import trainer as language_trainer
from pretraining.wikitext.run import LanguageRun


def assemble(run: Run | LanguageRun, folder: Path, accelerator: Accelerator) -> Assembly:
    """Returns what the run's kind of model brings to it."""
    if isinstance(run, LanguageRun):
        return language_trainer.assemble(run, folder, accelerator)
    return trainer.assemble(run, folder, accelerator)


PACKAGE = Package(
    name="pretraining",
    title=str(pretraining.__doc__),
    tasks=TASKS,
    presets={**presets.PRESETS, **language_presets.PRESETS},
    assemble=assemble,
    commands=MappingProxyType({"perplexity": perplexity.run}),
)

if __name__ == "__main__":
    sys.exit(main(PACKAGE))
