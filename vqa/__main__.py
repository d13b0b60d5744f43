"""Questions about pictures from the command line: ``python -m vqa TASK ...``, the same as ``seqarena vqa TASK ...``."""

import sys
from types import MappingProxyType

import vqa
from common.runs.cli import main
from common.runs.package import Package
from vqa.convert import features
from vqa.presets import PRESETS
from vqa.score import answers, evaluate
from vqa.show import show
from vqa.submit import submit
from vqa.tasks import TASKS
from vqa.trainer import assemble

PACKAGE = Package(
    name="vqa",
    title=str(vqa.__doc__),
    tasks=TASKS,
    presets=PRESETS,
    assemble=assemble,
    preparations=("features",),
    commands=MappingProxyType(
        {"evaluate": evaluate, "answers": answers, "show": show, "features": features, "submit": submit}
    ),
)

if __name__ == "__main__":
    sys.exit(main(PACKAGE))
