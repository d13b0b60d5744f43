"""Counts kernels, copies and waits of a training step on a simulated GPU: ``python -m tests.accelerator CASE ...``.

A case is PACKAGE/TASK/PRESET/ATTENTION, which may be followed by /NORM or /FIELD=VALUE. ``faults`` counts the planted
faults, ``presets`` one layer of every other preset. Without an argument, all cases of ``CASES`` are counted and written
to counts.json, which a test compares with. The tensors are fake: they have shapes and a device, ``cuda:0``, and no
values. Mixed devices are errors, as on a GPU. It must be a process of its own, because the device is loaded before
PyTorch.
"""

import ctypes
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
TASKS = ("lra/listops", "lra/text", "lra/retrieval", "lra/image", "lra/associative-recall", "lra/cifar10-patches",
         "pretraining/mlm", "pretraining/wikitext2", "qa/squad1", "qa/mnli", "summarization/wire",
         "vqa/scenes")  # fmt: skip
VARIANTS = ("softmax", "dnas", "hnas", "x3", "x3-14")
WHOLE = "xiong2021"
"""Preset that keeps its layers, which are two."""
NORMS = ("post", "deescalated", "rezero", "admin", "b2t", "deepnorm", "peri")
BLOCKS = ("lra/listops", "lra/cifar10-patches", "pretraining/mlm", "pretraining/wikitext2", "summarization/wire")
"""A task of each kind of model with blocks."""
OTHERS = (
    "x1", "x2", "x1-14", "x2-14", "x1-16", "x3-16", "x1-raw", "x3-raw", "relu", "elu", "gelu", "tanh", "exp", "sigmoid",
    "relu-n", "relu2-n", "softmax1", "sink", "sinkhorn", "entmax", "sparsemax", "cosine", "linear", "performer",
    "cosformer", "linformer", "nystromformer", "differential", "gated", "s4d", "convolution", "average",
)  # fmt: skip
CASES = (
    *(f"{task}/quick/{variant}" for task in TASKS for variant in VARIANTS),
    *(f"{task}/quick/dnas/{norm}" for task in BLOCKS for norm in NORMS),
    *(f"lra/listops/quick/{variant}" for variant in OTHERS),
    "pretraining/wikitext2/quick/recency",
    *(f"lra/listops/{WHOLE}/{variant}" for variant in VARIANTS),
    *(f"pretraining/mlm/quick/{variant}/data.building=packed" for variant in VARIANTS),
    *(f"pretraining/wikitext2/quick/{variant}/segments.same-length=yes" for variant in VARIANTS),
)
"""Tasks with variants, evaluated too; norms in each kind of model; all other variants; a paper's whole model in
bfloat16; packed sequences; windows."""
COUNTS = HERE / "counts.json"


def load_device() -> None:
    """Compiles the device and loads it, before PyTorch looks for one."""
    spec = importlib.util.find_spec("torch")
    assert spec is not None
    assert spec.origin is not None
    torch = Path(spec.origin).parent
    for name in ("libtorch_global_deps.so", "libc10.so", "libtorch_cpu.so"):
        ctypes.CDLL(str(torch / "lib" / name), ctypes.RTLD_GLOBAL)
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "device.so"
        command = ["g++", "-shared", "-fPIC", "-O0", "-std=c++20", f"-I{torch / 'include'}", "-o", str(library)]
        command += [str(HERE / "device.cpp"), f"-L{torch / 'lib'}", "-lc10", "-ltorch_cpu"]
        subprocess.run(command, check=True)
        ctypes.CDLL(str(library), ctypes.RTLD_GLOBAL)


if __name__ == "__main__":
    load_device()
    from tests.accelerator.faults import count_faults
    from tests.accelerator.steps import count, different_presets

    if sys.argv[1:] == ["faults"]:
        print(json.dumps(count_faults()))
    else:
        cases = different_presets() if sys.argv[1:] == ["presets"] else sys.argv[1:] or CASES
        with tempfile.TemporaryDirectory() as data:
            counts = {case: count(Path(data), *case.split("/")) for case in cases}
        text = json.dumps(counts, indent=1)
        if not sys.argv[1:]:
            COUNTS.write_text(f"{text}\n")
        print(text)
    # PyTorch's thread for the simulated device never ends, and the interpreter's exit may abort because of it.
    sys.stdout.flush()
    os._exit(0)
