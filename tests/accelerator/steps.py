"""One training step of a task with a variant, on the simulated GPU."""

import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.utils._foreach_utils import _foreach_supported_types
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from seqarena.common.attention.triton import self_test
from seqarena.common.runs.cli import build_run
from seqarena.common.runs.package import Package
from seqarena.common.training.runtime import make_accelerator, seed_torch
from seqarena.lra.pictures.data.drawn import DrawnDigits
from seqarena.scripts.packages import PACKAGES, find_package
from tests.accelerator.__main__ import TASKS, VARIANTS, WHOLE

HOST, DEVICE = torch.device("cpu"), torch.device("cuda:0")
aten = torch.ops.aten
ANSWERS = (aten._local_scalar_dense, aten.is_nonzero, aten.equal)
"""Operators that return a value to the host, which waits for the device."""
SIZES = (aten.nonzero, aten.masked_select, aten._unique2, aten.unique_dim)
"""Operators with a result whose size depends on values, so that the host waits for it."""


def _cell(_: Any, __: Any, state: torch.Tensor, *___: Any) -> Any:
    return state.new_empty(state.shape), state.new_empty(len(state), 5 * state.shape[1])


def _cell_backward(gradient: torch.Tensor, _: Any, has_bias: bool) -> Any:
    size = 3 * gradient.shape[1]
    gates = [gradient.new_empty(len(gradient), size) for _ in range(2)]
    return (*gates, gradient, *(gradient.new_empty(size) if has_bias else None for _ in range(2)))


WITHOUT_KERNEL = (
    aten.detach, aten.empty, aten.empty_like, aten.empty_strided, aten.new_empty, aten.new_empty_strided,
    aten.empty_permuted, aten._unsafe_view,
)  # fmt: skip
"""Operators that compute nothing. So do those that return views."""
CELLS = {aten._thnn_fused_gru_cell: _cell, aten._thnn_fused_gru_cell_backward: _cell_backward}
"""Operators of recurrent layers that PyTorch cannot compute for fake tensors."""
EVALUATED = {(*task.split("/"), "quick", variant, None) for task in TASKS for variant in VARIANTS}
EXAMPLE_COUNTS = {
    "train": 200,
    "validation": 40,
    "test": 40,
    "held_out": 40,
    "generated": 400,
    "validation_pairs": 40,
    "scenes": 200,
}
"""Numbers of examples, in the fields of data that are generated."""
OF_DATA = ("init", "vocabulary", "cutoffs", "classes")
"""Fields of a model that depend on its data or on a checkpoint."""


class Device(TorchDispatchMode):
    """Counts kernels, waits and copies to the device, each wait and copy with its line in our sources."""

    def __init__(self) -> None:
        super().__init__()
        self.kernels = 0
        self.blockwise = 0
        """Number of calls of the blockwise engine: one operator here, but thousands and waits on a GPU."""
        self.waits: Counter[str] = Counter()
        self.copies: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs an operator: the host's own work with values, the device's work without."""
        kwargs, packet = kwargs or {}, func.overloadpacket
        given = [each for each in tree_leaves((args, kwargs)) if isinstance(each, torch.Tensor)]
        is_on_device = any(each.device == DEVICE for each in given)
        wanted = kwargs.get("device")
        if not is_on_device and (wanted is None or torch.device(wanted).type == "cpu"):
            with unset_fake_temporarily():
                return func(*args, **kwargs)
        if packet in CELLS:
            return CELLS[packet](*args)
        if is_on_device and packet in (*ANSWERS, *SIZES):
            self.waits[_place()] += 1
            return _answer(packet, args[0])
        if packet is aten.index and any(each is not None and each.dtype == torch.bool for each in args[1]):
            self.waits[_place()] += 1
            args = (args[0], [index for each in args[1] for index in _indices(each)])
        if packet in (aten._to_copy, aten.copy_):
            start = args[1].device if packet is aten.copy_ else args[0].device
            end = args[0].device if packet is aten.copy_ else torch.device(wanted or start)
            if start != end:
                (self.copies if end == DEVICE else self.waits)[_place()] += 1
            if packet is aten._to_copy and start != end == HOST:
                with unset_fake_temporarily():  # the host computes with it
                    return torch.ones(args[0].shape, dtype=kwargs.get("dtype") or args[0].dtype)
        self.blockwise += "attend_blockwise" in str(packet)
        launches = func.namespace in ("aten", "seqarena") and not func.is_view and packet not in WITHOUT_KERNEL
        self.kernels += launches
        return func(*args, **kwargs)


def _answer(packet: Any, tensor: torch.Tensor) -> Any:
    """Returns a plausible result of a wait: the simulation has no values."""
    if packet in ANSWERS:
        return 1.0 if tensor.dtype.is_floating_point and packet is aten._local_scalar_dense else 1
    shape = (max(1, tensor.numel() // 2), *((tensor.dim(),) if packet is aten.nonzero else ()))
    return torch.zeros(shape, dtype=torch.long if packet is aten.nonzero else tensor.dtype, device=DEVICE)


def _indices(mask: Any) -> list[Any]:
    """Returns the indices that stand for a mask: one per dimension, as if half of its entries were true."""
    if mask is None or mask.dtype != torch.bool:
        return [mask]
    length = max(1, mask.numel() // 2)
    return [torch.zeros(length, dtype=torch.long, device=DEVICE) for _ in range(mask.dim())]


def _tolist(tensor: torch.Tensor) -> Any:
    """Returns ``tolist`` of a tensor on the device in one wait. PyTorch's own for fake tensors waits for each value."""
    return tensor.cpu().tolist()


def _place() -> str:
    """Returns the innermost line of ours that led to an operator."""
    frames = [each for each in traceback.extract_stack() if "/seqarena/" in each.filename]
    frame = next((each for each in reversed(frames) if "site-packages" not in each.filename), None)
    if frame is None:
        return "outside the sources"
    return f"{frame.filename.rpartition('/seqarena/')[2]}: {frame.line}"


def to_device(model: nn.Module, mode: FakeTensorMode) -> None:
    """Replaces the parameters and buffers of a model by fake ones on the device; shared ones stay shared."""
    made: dict[int, nn.Parameter] = {}

    def fake(tensor: torch.Tensor) -> torch.Tensor:
        return FakeTensor(mode, tensor.detach().to("meta"), DEVICE)

    for module in model.modules():
        for name, parameter in list(module._parameters.items()):
            if parameter is not None:
                made.setdefault(id(parameter), nn.Parameter(fake(parameter), requires_grad=parameter.requires_grad))
                module._parameters[name] = made[id(parameter)]
        for name, buffer in list(module._buffers.items()):
            if buffer is not None:
                module._buffers[name] = fake(buffer)


def _softmax(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0, is_causal: bool = False, scale: float | None = None,
) -> torch.Tensor:  # fmt: skip
    """Returns ``scaled_dot_product_attention`` by the kernel that PyTorch takes on a GPU.

    For fake tensors PyTorch itself takes the formula, with a dozen more operators.
    """
    if attn_mask is None and query.dtype in (torch.float16, torch.bfloat16):
        return aten._scaled_dot_product_flash_attention(query, key, value, dropout_p, is_causal, scale=scale)[0]
    if attn_mask is not None:
        if attn_mask.dtype == torch.bool:
            zero, hidden = (torch.full((), each, dtype=query.dtype, device=DEVICE) for each in (0.0, float("-inf")))
            attn_mask = torch.where(attn_mask, zero, hidden)
        length = attn_mask.shape[-1]  # PyTorch aligns the rows of a mask to 16 values
        if any(stride % 16 for stride in attn_mask.stride()[:-1]):
            attn_mask = torch.nn.functional.pad(attn_mask, (0, -length % 16))[..., :length]
        attn_mask = attn_mask.expand(*query.shape[:3], length)
    return aten._scaled_dot_product_efficient_attention(
        query, key, value, attn_mask, query.requires_grad, dropout_p, is_causal, scale=scale
    )[0]


def simulate() -> FakeTensorMode:
    """Makes PyTorch believe in the device; returns the mode in which tensors are fake."""
    torch.cuda._lazy_init = lambda: None  # type: ignore[attr-defined]
    torch.cuda.get_rng_state = lambda *_: torch.get_rng_state()  # type: ignore[assignment]
    torch.cuda.set_rng_state = lambda *_: None  # type: ignore[assignment]
    FakeTensor.tolist = _tolist  # type: ignore[method-assign]
    torch.Tensor.pin_memory = lambda tensor, *_: tensor  # type: ignore[method-assign, assignment, misc]
    torch.cuda.is_bf16_supported = lambda *_, **__: True  # type: ignore[assignment]
    torch.cuda.amp.common.amp_definitely_not_available = lambda: False  # type: ignore[assignment]
    _foreach_supported_types.append(FakeTensor)  # the norms of all gradients are one call, as on a GPU
    torch.nn.functional.scaled_dot_product_attention = _softmax  # type: ignore[assignment]
    self_test.cached_fault = lambda *_: None  # type: ignore[assignment]  # the kernels are assumed to work
    return FakeTensorMode(allow_non_fake_inputs=True)


def counted(
    model: nn.Module, step: Callable[[], object], mode: FakeTensorMode, evaluate: Callable[[], object] | None = None
) -> dict[str, Any]:
    """Returns the counts of the second step, as the first one makes the state of optimisers; and of the evaluation."""
    to_device(model, mode)
    try:
        with mode, Device():
            step()
        found = counts_of(step, mode)
        return found if evaluate is None else {**found, "evaluation": counts_of(evaluate, mode)}
    except Exception as error:  # reported with its place, and the other cases go on
        places = [each for each in traceback.extract_tb(error.__traceback__) if "/seqarena/" in each.filename]
        where = "; ".join(f"{each.filename.rpartition('/seqarena/')[2]}:{each.lineno}" for each in places[-3:])
        return {"error": f"{type(error).__name__}: {str(error)[:300]} ({where})"}


def counts_of(call: Callable[[], object], mode: FakeTensorMode) -> dict[str, Any]:
    """Returns the counts of a call."""
    device = Device()
    with mode, device:
        call()
    return {
        "kernels": device.kernels, "blockwise": device.blockwise, "waits": dict(device.waits),
        "copies": dict(device.copies),
    }  # fmt: skip


def preset_run(package: Package, task: str, preset: str, attention: str, more: str | None = None) -> Any:
    """Returns a preset's run with random weights, one layer, and the data, vocabulary and batches of preset ``quick``.

    Presets ``quick`` and ``xiong2021`` keep their layers. ``more``: a norm, or a field and its value.
    """
    is_field = more is not None and "=" in more
    norm, fields = (None, [f"--{more}"]) if is_field else (more, [])
    fields = ["--train.batch-size", "4", *fields]
    quick: Any = build_run(package, task, "quick", attention, norm, 0, fields, "tests.accelerator")
    few = {name: count for name, count in EXAMPLE_COUNTS.items() if isinstance(getattr(quick.data, name, None), int)}
    quick = replace(quick, data=replace(quick.data, **few))
    run: Any = package.presets[task][preset].run
    if preset == "quick":
        return quick
    changes = {name: getattr(quick.model, name) for name in OF_DATA if hasattr(quick.model, name)}
    if hasattr(run.model, "layers") and preset != WHOLE:
        changes["layers"] = 1 if isinstance(run.model.layers, int) else (1,) * len(run.model.layers)
    data = quick.data
    if isinstance(data, DrawnDigits):
        data = replace(data, side=run.data.side)
    model = replace(run.model, attention=quick.model.attention, **changes)
    return replace(run, model=model, data=data, train=quick.train)


def different_presets() -> list[str]:
    """Returns the cases of all presets that ``CASES`` lacks; of those with the same model and optimiser, only one."""
    cases: dict[str, str] = {}
    for package in map(find_package, PACKAGES):
        for task in package.tasks:
            for preset in package.presets[task]:
                run = preset_run(package, task, preset, "softmax")
                same = replace(run, task="", preset="", data=None, optim=None, train=None)
                key = f"{type(run.data)} {run.optim.name} {run.optim.clip is None} {same}"
                if preset != "quick" or f"{package.name}/{task}" not in TASKS:
                    cases.setdefault(key, f"{package.name}/{task}/{preset}")
    return [f"{case}/{variant}" for case in cases.values() for variant in VARIANTS]


def count(
    folder: Path, package_name: str, task: str, preset: str, attention: str, more: str | None = None
) -> dict[str, Any]:
    """Returns the counts of a training step of a preset with batches of four. Data are stored in a folder.

    Quick presets compute in float32, the others in bfloat16, as ``auto`` does on a GPU. Those of ``EVALUATED`` are also
    evaluated.
    """
    mode, package = simulate(), find_package(package_name)
    run = preset_run(package, task, preset, attention, more)
    accelerator = make_accelerator("float32")
    type(accelerator).device = property(lambda _: HOST)  # type: ignore[method-assign, assignment]
    seed_torch(0, 0)
    assembly = package.assembly(run, folder, accelerator)
    batches = iter([assembly.batches[0], assembly.batches[1]])
    type(accelerator).mixed_precision = property(  # type: ignore[method-assign, assignment]
        lambda _: "no" if preset == "quick" else "bf16"
    )
    if preset != "quick":
        accelerator.autocast = lambda: torch.autocast("cuda", torch.bfloat16)  # type: ignore[method-assign]
    accelerator.device_placement = False
    type(accelerator).device = property(lambda _: DEVICE)  # type: ignore[method-assign, assignment]
    stepper = None

    def step() -> None:
        nonlocal stepper
        stepper = stepper or run.train.stepper(assembly.model, assembly.loss, run.optim, run.seed, accelerator)
        stepper.take(stepper.share(next(batches)), 0)

    is_evaluated = (package_name, task, preset, attention, more) in EVALUATED
    found = counted(assembly.model, step, mode, (lambda: assembly.validate(assembly.model)) if is_evaluated else None)
    return {**found, "implementations": stepper.implementations} if stepper is not None else found
