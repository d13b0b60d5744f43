"""``seqarena benchmark``: time and memory of attention, of a training step, and of parts of either."""

from collections.abc import Sequence

import seqarena.lra.benchmark
import seqarena.pretraining.wikitext.benchmark
import seqarena.qa.benchmark
import seqarena.summarization.benchmark
import seqarena.vqa.benchmark
from seqarena.common.errors import look_up
from seqarena.scripts.benchmark import attention, gpu, kernels, layers, show, step, step_profile, tiles

USAGE = """usage: seqarena benchmark attention ...
       seqarena benchmark layers ...
       seqarena benchmark kernels ...
       seqarena benchmark gpu ...
       seqarena benchmark tiles ...
       seqarena benchmark step PACKAGE TASK ...
       seqarena benchmark profile PACKAGE TASK ...
       seqarena benchmark squad ...
       seqarena benchmark headlines ...
       seqarena benchmark transformer-xl ...
       seqarena benchmark lra-code ...
       seqarena benchmark views ...
       seqarena benchmark show FILE ...

  attention        time and memory of each variant by length (attention --help)
  layers           whole attention layers, token mixers included, beside softmax by length (layers --help)
  kernels          instruction counts of the compiled CUDA kernels, without a GPU (kernels --help)
  gpu              one file on this GPU: attention by every implementation, steps of every package (gpu --help)
  tiles            the fastest tiles of the CUDA kernels on this GPU (tiles --help)
  step             a training step of a task (step --help)
  profile          time of each part of a step (profile --help)
  squad            text processing of SQuAD, without a model (squad --help)
  headlines        beam search against the transformers library (headlines --help)
  transformer-xl   a step and a scored segment against the published formulation (transformer-xl --help)
  lra-code         losses and time of lra listops beside the authors' code, which you fetch (lra-code --help)
  views            batches that read each picture once, against once per question (views --help)
  show             tables that a benchmark wrote with --save (show --help)"""


def run(arguments: Sequence[str]) -> int:
    """Runs ``seqarena benchmark`` and returns its exit code."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(USAGE)
        return 0
    kinds = {
        "attention": attention.run,
        "layers": layers.run,
        "kernels": kernels.run,
        "gpu": gpu.run,
        "tiles": tiles.run,
        "step": step.run,
        "profile": step_profile.run,
        "squad": seqarena.qa.benchmark.run,
        "headlines": seqarena.summarization.benchmark.run,
        "transformer-xl": seqarena.pretraining.wikitext.benchmark.run,
        "lra-code": seqarena.lra.benchmark.run,
        "views": seqarena.vqa.benchmark.run,
        "show": show.run,
    }
    return look_up(kinds, arguments[0], "benchmark")(arguments[1:])
