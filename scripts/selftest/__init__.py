"""Checks on this machine: every implementation of every variant against float64, and a short training per package.

Outputs and gradients of attention are compared in float32 and half precision, with padded keys and queries. The
trainings are interrupted and resumed, and compared with bfloat16. On a GPU, both include the Triton kernels, which
were written without one. The trainings there are compared with those on the CPU, also compiled and replayed as CUDA
graphs. Please report what is broken, with the file that this command writes.
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from seqarena.common.attention import ATTENTIONS, find_attention
from seqarena.common.attention.mixer import MixerConfig
from seqarena.common.errors import look_up
from seqarena.common.files import write_json
from seqarena.common.parser import Parser
from seqarena.common.training.runtime import environment, make_accelerator
from seqarena.scripts.selftest import attention, training


def parser() -> Parser:
    """Returns the parser of ``seqarena selftest``."""
    made = Parser(prog="seqarena selftest", description=__doc__)
    made.add_argument(
        "--attention", nargs="+", metavar="A",
        help=f"variants (default: all; in trainings {' '.join(training.VARIANTS)})",
    )  # fmt: skip
    made.add_argument(
        "--train", nargs="*", metavar="TASK", default=list(training.TASKS),
        help=f"tasks to train, of {', '.join(training.TASKS)} (default: all; --train alone: none)",
    )  # fmt: skip
    made.add_argument("--data-folder", type=Path, default=Path("data"), help="folder of prepared data (default: data)")
    made.add_argument("--out", type=Path, default=Path("selftest.json"), help="file to write (default: selftest.json)")
    return made


def run(arguments: Sequence[str]) -> int:
    """Runs ``seqarena selftest`` and returns its exit code: 1 if something is broken."""
    options = parser().parse_args(arguments)
    for task in options.train:
        look_up(training.TASKS, task, "task")
    configs = {name: find_attention(name) for name in options.attention or ATTENTIONS}
    accelerator = make_accelerator("float32")
    found = attention.check_all(configs, accelerator.device)
    print(attention.table(found, accelerator.device), end="")
    layers = [name for name, config in configs.items() if isinstance(config, MixerConfig)]
    if layers:
        print(f"not compared with float64, since they are whole layers: {', '.join(layers)}")
    has_gpu = accelerator.device.type == "cuda"
    variants = options.attention or training.VARIANTS
    trained = [each for task in options.train
               for each in training.check(task, variants, options.data_folder, has_gpu=has_gpu)]  # fmt: skip
    if trained:
        print(training.table(trained), end="")
    write_json(options.out, {
        "environment": environment(accelerator),
        "findings": [dataclasses.asdict(each) for each in found],
        "trainings": [dataclasses.asdict(each) for each in trained],
    })  # fmt: skip
    statuses = [*(each.status for each in found), *(each.status for each in trained)]
    broken = statuses.count("broken")
    print(f"{broken} of {len(statuses) - statuses.count('absent')} broken; written to {options.out}")
    return int(broken > 0)
