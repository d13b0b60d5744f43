"""Runtime of a process: accelerator, seeds, peak memory, and the environment that a result records."""

import contextlib
import ctypes
import functools
import gc
import hashlib
import os
import platform
import resource
import subprocess
import sys
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn

from seqarena.common.data.counter import hash64
from seqarena.common.errors import BadDataError, WrongUseError, look_up
from seqarena.common.training.precision import Precision, is_half, precision_name, set_products
from seqarena.common.training.processes import Accelerator, broadcast_patiently

Loaded = TypeVar("Loaded")

TILES = "SEQARENA_TILES"
"""Environment variable with the path of a file of ``seqarena benchmark tiles``. Its tiles take precedence over the
table's."""

LIBRARIES = (
    "seqarena", "torch", "numpy", "scipy", "numba", "accelerate", "tokenizers", "safetensors", "triton",
    "pytorch-optimizer", "rouge-score", "nltk",
)  # fmt: skip
"""Libraries that compute. Each result records the versions of those that are installed."""
VARIABLES = (
    "MKL_CBWR", "MKL_ENABLE_", "ONEDNN_", "DNNL_", "OPENBLAS_CORETYPE", "CUBLAS_WORKSPACE_CONFIG",
    "NVIDIA_TF32_OVERRIDE", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
)  # fmt: skip
"""Beginnings of environment variables by which libraries choose other kernels. A result records those that are set."""
CLEAR_REFS, STATUS = Path("/proc/self/clear_refs"), Path("/proc/self/status")
"""Linux: writing 5 to the first resets the peak resident set (VmHWM) in the second to the current one."""


def make_accelerator(precision: Precision, trackers: tuple[str, ...] = (), out: Path | None = None) -> Accelerator:
    """Returns the accelerator of this process: CUDA if available, else the CPU. Sets the precision of the process.

    Raises:
        WrongUseError: a launcher started several processes but this one does not see the others; or a tracker that is
            unknown or not installed.
    """
    import accelerate  # noqa: PLC0415  # help and tables need no processes
    from accelerate.tracking import get_available_trackers  # noqa: PLC0415
    from accelerate.utils import LoggerType  # noqa: PLC0415

    known = {str(name): name for name in LoggerType.list() if str(name) != "all"}
    installed = [str(name) for name in get_available_trackers()]
    for tracker in trackers:
        look_up(known, tracker, "tracker")
        if tracker not in installed:
            raise WrongUseError(f"tracker {tracker!r} is not installed; pip install {tracker}, or leave --tracker out")
    launched = _launched_processes()
    cuda = torch.cuda.is_available()
    set_products(precision)
    accelerator: Accelerator = accelerate.Accelerator(
        cpu=not cuda,
        mixed_precision="bf16" if is_half(precision) else "no",
        log_with=list(trackers) or None,
        project_dir=None if out is None else str(out),
        # Some variants ignore their scores, so that queries and keys have no gradient.
        kwargs_handlers=[accelerate.DistributedDataParallelKwargs(find_unused_parameters=True)],
    )
    _require_plain(accelerator)
    if accelerator.num_processes != launched:
        raise WrongUseError(
            f"the launcher started {launched} processes, but this run has {accelerator.num_processes}; "
            "on a CPU start it with: torchrun --nproc_per_node N -m seqarena PACKAGE TASK ..."
        )
    return accelerator


def _launched_processes() -> int:
    """Returns the number of processes that a launcher started; 1 without one.

    Raises:
        WrongUseError: the launcher's environment variables are not numbers, or some are missing.
    """
    numbers = {}
    for name, default in (("WORLD_SIZE", "1"), ("RANK", "0"), ("LOCAL_RANK", "0")):
        value = os.environ.get(name, default)
        if not value.isdecimal():
            raise WrongUseError(f"{name} is {value!r}: expected a number, as torchrun sets it; unset it without one")
        numbers[name] = int(value)
    processes, wanted = numbers["WORLD_SIZE"], ("RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
    lacking = [name for name in wanted if name not in os.environ]
    if processes < 1:
        raise WrongUseError("WORLD_SIZE is 0: expected at least 1, as torchrun sets it; unset it without one")
    if processes > 1 and lacking and not {"RANK", "LOCAL_RANK"} <= {*lacking}:  # without a rank it is one process
        raise WrongUseError(
            f"WORLD_SIZE is {processes}, but {', '.join(lacking)} is missing; start several processes with torchrun, "
            "or unset it"
        )
    return processes


def _require_plain(accelerator: Accelerator) -> None:
    """Raises a ``WrongUseError`` if an Accelerate variable would change numbers without being part of the run."""
    if accelerator.gradient_accumulation_steps != 1:
        raise WrongUseError("ACCELERATE_GRADIENT_ACCUMULATION_STEPS is set: unset it, and use train.micro_batch_size")
    if str(accelerator.state.dynamo_plugin.backend.value) != "NO":
        raise WrongUseError("ACCELERATE_DYNAMO_BACKEND is set: unset it, and use train.compile")


def main_first(accelerator: Accelerator, load: Callable[[], Loaded]) -> Loaded:
    """Returns the value of ``load`` on each process. The main one runs first; the others find the files that it makes.

    If the main process fails, all raise its error instead of waiting.
    """
    found: list[Any] = []
    error: list[Exception | None] = [None]
    if accelerator.is_main_process:
        try:
            found = [load()]
        except (WrongUseError, BadDataError, OSError) as refusal:
            error = [refusal]
    broadcast_patiently(error)
    if error[0] is not None:
        raise error[0]
    loaded: Loaded = found[0] if found else load()
    return loaded


def torch_settings() -> dict[str, str]:
    """Returns those settings of the whole process that change the numbers of every run in it."""
    backends: Any = torch.backends  # its types lack these settings
    # The older functions, such as torch.get_float32_matmul_precision, fail once these were set one by one.
    operators = {
        "products on CUDA": backends.cuda.matmul,
        "products on a CPU": backends.mkldnn.matmul,
        "convolutions on CUDA": backends.cudnn.conv,
        "convolutions on a CPU": backends.mkldnn.conv,
        "recurrent layers on CUDA": backends.cudnn.rnn,
        "recurrent layers on a CPU": backends.mkldnn.rnn,
    }
    precisions = {name: each.fp32_precision for name, each in operators.items()}
    return {
        "torch's default dtype": str(torch.get_default_dtype()),
        "torch's default device": str(torch.get_default_device()),
        **{
            f"torch's precision of float32 {name}": "ieee" if precision == "none" else precision
            for name, precision in precisions.items()
        },
        "torch's deterministic algorithms": str(torch.are_deterministic_algorithms_enabled()),
        "torch's number of threads": str(torch.get_num_threads()),
        "torch's recording of gradients": str(torch.is_grad_enabled()),
    }


def changed_settings(before: Mapping[str, str]) -> str:
    """Returns the changes of ``torch_settings`` since ``before``, in words; empty without one."""
    after = torch_settings()
    return "; ".join(f"{name} from {value} to {after[name]}" for name, value in before.items() if value != after[name])


def seed_torch(*keys: int) -> None:
    """Seeds torch with a function of the keys, so that exact resumption needs no saved random state."""
    torch.manual_seed(int(hash64(*keys)[0] >> 1))


def reset_peak_memory(device: torch.device) -> None:
    """Resets the peak, so that the peak of a run does not depend on earlier runs in the same process.

    On a CPU under Linux, memory that earlier runs have freed is first returned to the system. Otherwise the C library
    would keep it, and the resident set would stay as large as in the largest run. Elsewhere the peak cannot be reset,
    and is that of the whole process.
    """
    gc.collect()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return
    with contextlib.suppress(AttributeError, OSError):  # only glibc has it
        ctypes.CDLL(None).malloc_trim(0)
    with contextlib.suppress(OSError):  # not permitted, or not Linux
        CLEAR_REFS.write_text("5")


def is_asynchronous(device: torch.device) -> bool:
    """Returns whether the host goes on while the device computes, so that reading a value waits for it."""
    return device.type != "cpu"


def peak_memory_bytes(device: torch.device) -> int:
    """Returns the peak memory since the reset: allocated on a CUDA device, else the process's resident set."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    with contextlib.suppress(OSError, StopIteration):
        lines = STATUS.read_text().splitlines()
        return int(next(line for line in lines if line.startswith("VmHWM:")).split()[1]) * 1024
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def parameter_count(model: nn.Module) -> int:
    """Returns the number of parameters, with shared ones counted once."""
    return sum(parameter.numel() for parameter in model.parameters())


def device_name(device: torch.device) -> str:
    """Returns the model of the GPU, or of the processor with the number of threads."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        name = next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        name = platform.processor() or platform.machine()
    threads = torch.get_num_threads()
    return f"{name}, {threads} thread{'s' if threads > 1 else ''}"


def code_version() -> dict[str, Any]:
    """Returns the commit of this source tree and whether its Python files are as committed; None outside a checkout.

    A user's own files count only inside the packages: other ones are sources of the runs that use them.
    Variables that lead git to another repository, as in a hook of that one, are not passed on.
    """
    tree = Path(__file__).resolve().parents[2]
    if not (tree / ".git").exists():  # an installed copy may be inside a checkout of another project
        return {"commit": None, "clean": None}
    try:
        packages = [f":(glob){each.parent.name}/**/*.py" for each in tree.glob("*/__init__.py")]
        commit, changes = _git(tree, "rev-parse", "HEAD"), _git(tree, "status", "--porcelain", "--", *packages)
    except (OSError, subprocess.CalledProcessError):
        return {"commit": None, "clean": None}
    return {"commit": commit, "clean": not changes}


def _git(tree: Path, *arguments: str) -> str:
    variables = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    command = ["git", "-C", str(tree), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, env=variables).stdout.strip()


@functools.cache
def _versions() -> dict[str, str]:
    installed = {each.name.lower().replace("_", "-"): each.version for each in metadata.distributions()}
    return {name: installed[name] for name in LIBRARIES if name in installed}


def _tiles() -> dict[str, str]:
    """Returns the sha256 of the file that ``TILES`` names, if it is set."""
    path = os.environ.get(TILES)
    if not path:
        return {}
    try:
        return {"tiles": f"sha256 {hashlib.sha256(Path(path).read_bytes()).hexdigest()[:16]}"}
    except OSError as error:
        raise WrongUseError(f"{TILES}={path}: cannot be read ({error.strerror}); unset it, or name a file") from error


def environment(accelerator: Accelerator) -> dict[str, Any]:
    """Returns the environment that a result records: code, libraries, device, precision, processes, tiles if set.

    Raises:
        WrongUseError: the file of tiles cannot be read.
    """
    variables = {name: value for name, value in sorted(os.environ.items()) if name.startswith(VARIABLES)}
    return {
        **_tiles(),
        **({"variables": " ".join(f"{name}={value}" for name, value in variables.items())} if variables else {}),
        **code_version(),
        "python": platform.python_version(),
        "platform": f"{sys.platform} {platform.machine()}",
        "libraries": _versions(),
        "device": device_name(accelerator.device),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "precision": precision_name(accelerator),
        "processes": accelerator.num_processes,
    }


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Returns the differences between two environments that may change bits.

    The commit is not compared, since a run's sources are compared instead.
    """
    found = []
    for name in ("python", "platform", "device", "instructions", "threads", "precision", "processes", "tiles",
                 "variables"):  # fmt: skip
        found += [f"{name} {before.get(name)} -> {after.get(name)}"] * (before.get(name) != after.get(name))
    old, new = (each.get("libraries", {}) for each in (before, after))
    changed = [name for name in (*old, *new) if name != "seqarena" and old.get(name) != new.get(name)]
    return found + [f"{name} {old.get(name)} -> {new.get(name)}" for name in dict.fromkeys(changed)]
