"""``seqarena benchmark``: attention alone, or a whole training step, variant by variant; or where its time goes."""

from collections.abc import Sequence

from seqarena.common.errors import look_up
from seqarena.scripts.benchmark import attention, headlines, kernels, profile, squad, step, tiles, transformer_xl, views

USAGE = """usage: seqarena benchmark attention ...
       seqarena benchmark kernels ...
       seqarena benchmark tiles ...
       seqarena benchmark step PACKAGE TASK ...
       seqarena benchmark profile PACKAGE TASK ...
       seqarena benchmark squad ...
       seqarena benchmark headlines ...
       seqarena benchmark transformer-xl ...
       seqarena benchmark views ...

  attention        time and memory of each variant against the length (attention --help)
  kernels          what the compiler makes of the CUDA kernels, without a GPU (kernels --help)
  tiles            the fastest tiles of the CUDA kernels on the GPU at hand (tiles --help)
  step             a whole training step of a task (step --help)
  profile          where the time of a step goes (profile --help)
  squad            how long the text of SQuAD takes, model left out (squad --help)
  headlines        beam search beside that of the transformers library (headlines --help)
  transformer-xl   a step and a scored segment beside the published formulation (transformer-xl --help)
  views            batches of pictures beside a picture a question (views --help)"""


def run(arguments: Sequence[str]) -> int:
    """Runs ``seqarena benchmark`` and returns its exit code."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(USAGE)
        return 0
    kinds = {
        "attention": attention.run,
        "kernels": kernels.run,
        "tiles": tiles.run,
        "step": step.run,
        "profile": profile.run,
        "squad": squad.run,
        "headlines": headlines.run,
        "transformer-xl": transformer_xl.run,
        "views": views.run,
    }
    return look_up(kinds, arguments[0], "benchmark")(arguments[1:])
