"""Pretraining from the command line: ``python -m seqarena.pretraining`` is ``seqarena pretraining``."""

import sys
from types import MappingProxyType

import seqarena.pretraining
from seqarena.common.runs.cli import main
from seqarena.common.runs.package import Package
from seqarena.pretraining import presets, trainer
from seqarena.pretraining.run import Run
from seqarena.pretraining.tasks import TASKS
from seqarena.pretraining.wikitext import perplexity
from seqarena.pretraining.wikitext import presets as language_presets
from seqarena.pretraining.wikitext import trainer as language_trainer
from seqarena.pretraining.wikitext.run import LanguageRun

PACKAGE = Package(
    name="pretraining",
    title=str(seqarena.pretraining.__doc__),
    tasks=TASKS,
    presets={**presets.PRESETS, **language_presets.PRESETS},
    assemblies=MappingProxyType({Run: trainer.assemble, LanguageRun: language_trainer.assemble}),
    commands=MappingProxyType({"perplexity": perplexity.run}),
)

if __name__ == "__main__":
    sys.exit(main(PACKAGE))
