"""Pretraining from the command line: ``python -m pretraining TASK``, the same as ``seqarena pretraining TASK``."""

import sys
from types import MappingProxyType

import pretraining
from common.runs.cli import main
from common.runs.package import Package
from pretraining import presets
from pretraining.assemble import assemble
from pretraining.tasks import TASKS
from pretraining.wikitext import perplexity
from pretraining.wikitext import presets as language_presets

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
