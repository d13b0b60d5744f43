"""Visual question answering from the command line: ``python -m seqarena.vqa`` is ``seqarena vqa``."""

import sys
from types import MappingProxyType

import seqarena.vqa
from seqarena.common.runs.cli import main
from seqarena.common.runs.package import Package
from seqarena.vqa.convert import features
from seqarena.vqa.presets import PRESETS
from seqarena.vqa.run import Run
from seqarena.vqa.score import answers, evaluate
from seqarena.vqa.show import show
from seqarena.vqa.submit import submit
from seqarena.vqa.tasks import TASKS
from seqarena.vqa.trainer import assemble

PACKAGE = Package(
    name="vqa",
    title=str(seqarena.vqa.__doc__),
    tasks=TASKS,
    presets=PRESETS,
    assemblies=MappingProxyType({Run: assemble}),
    preparations=("features",),
    commands=MappingProxyType(
        {"evaluate": evaluate, "answers": answers, "show": show, "features": features, "submit": submit}
    ),
)

if __name__ == "__main__":
    sys.exit(main(PACKAGE))
