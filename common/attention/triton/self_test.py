"""Self-test of each Triton kernel on this GPU. A kernel is used only if its results match the blockwise engine's.

The kernels were developed with Triton's interpreter, without a GPU. Compilers and GPUs may behave differently.
"""

from collections.abc import Collection
from typing import Any, cast

import torch
from torch import Tensor

from seqarena.common.attention.conditions import Inputs
from seqarena.common.attention.operators import attend_blockwise
from seqarena.common.attention.rule import Rule
from seqarena.common.attention.triton.available import INTERPRETED, LEAST_WIDTH, MOST_WIDTH, warn_once
from seqarena.common.attention.visibility import CallOption, Order, Visibility, assume_constant_result
from seqarena.common.errors import WrongUseError

TEST_LENGTHS = ((200, 133), (208, 0))
"""Numbers of queries and, in causal order, of memory keys in the tests: several tiles and part of one. Triton
specialises kernels on divisibility by 16, so one length is divisible and the other is not."""
QUERY_FACTORS = (1.0, 20.0)
"""Factors of the queries in the tests of prefix forms, for each of ``TEST_LENGTHS``. With the second one the scores of
a column differ so much that the kernels scan their logarithms."""
SEGMENT = 50
"""Length of the packed sequences in the tests, which is no multiple of a tile."""
WINDOWS = (3, 50)
"""Windows, for each of ``TEST_LENGTHS``. With the first, no query sees the first tile of the memory."""
DROPOUT = 0.1
"""Probability of dropout in the tests."""
KERNEL_OPTIONS: tuple[CallOption, ...] = ("bias", "dropout", "segments", "window")
"""Options of a call for which other kernels are compiled."""
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 5e-2, torch.float16: 1e-2}
"""Maximum difference from the engine's results in float64, relative to their maximum."""
FAULTS: dict[str, str | None] = {}
"""Tested kind of call in this process -> the fault found; None if it passed."""


def fault_of(rule: Rule, inputs: Inputs) -> str | None:
    """Returns the fault of a rule's kernels on this GPU, or None; tested once per kind of call, with a warning."""
    if INTERPRETED:
        return None
    query, value = inputs.query, inputs.value
    widths = [query.shape[3], value.shape[3]]
    if torch.compiler.is_compiling():  # a width may be symbolic; comparing it with each number makes it concrete
        widths = [number for each in widths for number in range(LEAST_WIDTH, MOST_WIDTH + 1) if number == each]
    visibility = inputs.visibility
    used = visibility.call_options(bias=inputs.bias is not None, dropout=inputs.dropout > 0)
    options = tuple(each for each in KERNEL_OPTIONS if each in used)
    found: str | None = cached_fault(rule, query.dtype, query.device, widths[0], widths[1], visibility.order, options)
    return found


@assume_constant_result  # computed while a model is compiled
def cached_fault(
    rule: Rule, dtype: torch.dtype, device: torch.device, width: int, value_width: int, order: Order,
    options: Collection[CallOption] = (),
) -> str | None:  # fmt: skip
    """Returns the result of ``find_fault``, cached."""
    kind = f"{rule.text} {dtype} {device} {width} {value_width} {order} {options}"
    if kind not in FAULTS:
        if device.type == "cuda" and torch.cuda.is_current_stream_capturing():  # a test cannot run during capture
            return (
                "the kernel has not been tested yet and cannot be while a CUDA graph is captured; call it once before"
            )
        FAULTS[kind] = find_fault(rule, dtype, device, width, value_width, order, options)
        if FAULTS[kind] is not None:
            warn_once(str(FAULTS[kind]))
    return FAULTS[kind]


def find_fault(
    rule: Rule, dtype: torch.dtype, device: torch.device, width: int, value_width: int, order: Order,
    options: Collection[CallOption] = (),
) -> str | None:  # fmt: skip
    """Tests the kernels of a rule on small examples; returns a description of the fault, or None.

    ``options``: those of ``KERNEL_OPTIONS`` that the examples use.
    """
    try:
        both = []
        for (length, memory), window, factor in zip(TEST_LENGTHS, WINDOWS, QUERY_FACTORS, strict=True):
            lengths = (length, length + (memory if order == "causal" else 0))
            both += examples(rule, dtype, device, (width, value_width), lengths, order, options, window, factor)
    except WrongUseError:
        raise
    except Exception as error:  # Triton, its compiler and the driver raise errors of many classes
        return f"the kernel of {type(rule).__name__} fails on this GPU ({type(error).__name__}: {error})"
    for one, other in both:
        allowed = TOLERANCE[dtype] * float(other.detach().abs().max())
        if not float((one - other).detach().abs().max()) <= allowed:
            return f"results of the kernel of {type(rule).__name__} are wrong on this GPU in {dtype}; please report it"
    return None


def examples(
    rule: Rule, dtype: torch.dtype, device: torch.device, widths: tuple[int, int], lengths: tuple[int, int],
    order: Order, options: Collection[CallOption], window: int, factor: float,
) -> list[tuple[Tensor, Tensor]]:  # fmt: skip
    """Returns pairs of output and gradients of a small example: by the kernels, and by the engine in float64.

    In prefix forms queries are multiplied by ``factor``, keys have earlier queries, and the states are compared too.
    """
    from seqarena.common.attention.triton import operators  # noqa: PLC0415  # needs Triton

    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices), torch.inference_mode(False), torch.enable_grad():
        (rows, keys), memory = lengths, lengths[1] - lengths[0]
        key_real = torch.ones(2, keys, dtype=torch.bool, device=device)
        key_real[1, memory + rows // 2 :] = False
        segments = (torch.arange(keys, device=device) // SEGMENT).expand(2, -1) if "segments" in options else None
        visibility = Visibility(
            query_real=key_real[:, memory:], key_real=key_real, order=order, memory=memory, segments=segments,
            window=window if "window" in options else None,
        )  # fmt: skip
        biased, dropout = "bias" in options, DROPOUT if "dropout" in options else 0.0
        torch.manual_seed(0)
        qkv = [
            torch.randn(2, 2, each, width, device=device).to(dtype).requires_grad_()
            for each, width in ((rows, widths[0]), (keys, widths[0]), (keys, widths[1]))
        ]
        is_prefix = rule.rounds > 0 and order != "none"
        state = torch.randn(2, 2, memory if order == "causal" else keys, device=device) if is_prefix else None
        if is_prefix:
            qkv[0] = (factor * qkv[0].detach()).requires_grad_()
        bias = [torch.randn(2, 2, rows, keys, device=device).to(dtype).requires_grad_()] if biased else []
        wide, wide_bias = ([each.detach().double().requires_grad_() for each in some] for some in (qkv, bias))
        # u of hybrid attention, the mixture that reads scores too
        u = [torch.full((1, 1, 1), 0.3, device=device).requires_grad_()] if rule.rounds and rule.reads_scores else []
        wide_u = [each.detach().double().requires_grad_() for each in u]
        torch.manual_seed(1)
        ours, our_state = (
            operators.attend_doubly_normalized(
                qkv[0], qkv[1], qkv[2], visibility, bias[0] if biased else None, dropout,
                u[0].reshape(-1).expand(2) if u else None, state,
            ) if rule.rounds
            else (operators.attend_elementwise(
                cast("Any", rule), qkv[0], qkv[1], qkv[2], visibility, bias[0] if biased else None, dropout
            ), None)
        )  # fmt: skip
        torch.manual_seed(1)
        theirs, their_state = attend_blockwise(
            rule, wide[0], wide[1], wide[2], visibility, wide_bias[0] if biased else None,
            mixing_weight=wide_u[0] if u else None, dropout=dropout, state=None if state is None else state.double(),
        )  # fmt: skip
        states = [each.masked_fill(~key_real[:, None], 0.0) for each in (our_state, their_state) if each is not None]
        weight = torch.randn_like(ours)
        grad_ours = torch.autograd.grad(ours, [*qkv, *bias, *u], weight)
        grad_theirs = torch.autograd.grad(theirs, [*wide, *wide_bias, *wide_u], weight.double())
        pairs = list(zip([ours, *grad_ours], [theirs, *grad_theirs], strict=True))
        return [*pairs, (states[0], states[1])] if states else pairs
