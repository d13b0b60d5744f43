"""Checks of use: config, sizes, batches, repeated calls, steps, compilation, memory, speed."""

import json
import statistics
import time
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from seqarena.common.attention import find_attention
from seqarena.common.attention.base import IMPLEMENTATIONS, AttentionConfig, Kernel
from seqarena.common.attention.visibility import ORDERS, Order
from seqarena.common.runs.config import from_json, to_json
from seqarena.scripts.verify.subject import (
    Example,
    FailedCheckError,
    NotApplicableError,
    Subject,
    example,
    mode_name,
    require_close,
)

LENGTH = 1024
"""Length of the inputs that are timed."""
CHUNKED_LENGTH = 1500
"""Length at which the formula is evaluated in two chunks of queries."""


def config(subject: Subject) -> str:
    """The config goes to JSON and back, and ``build`` draws no random numbers."""
    made = subject.config
    require_json(made)
    state = torch.random.get_rng_state()
    kernel = made.build(heads=2)
    if not torch.equal(state, torch.random.get_rng_state()):
        raise FailedCheckError("build draws random numbers, so models of two variants would start from other weights")
    first, second = kernel.state_dict(), made.build(heads=2).state_dict()
    if first.keys() != second.keys() or not all(torch.equal(first[name], second[name]) for name in first):
        raise FailedCheckError("two builds have other parameters")
    return f"orders {', '.join(made.orders)}"


def require_json(made: AttentionConfig) -> None:
    """Raises a ``FailedCheckError`` if the orders of a config are invalid, or JSON does not give it back."""
    if not made.orders or set(made.orders) - set(ORDERS) or set(made.stepwise) - set(made.orders):
        raise FailedCheckError(f"orders {made.orders}, stepwise {made.stepwise}: expected some of {ORDERS}")
    try:
        again = from_json(AttentionConfig, json.loads(json.dumps(to_json(made))))  # type: ignore[type-abstract]
    except (TypeError, ValueError) as error:
        raise FailedCheckError(f"it cannot be written to JSON and read back: {error}") from error
    if again != made:
        raise FailedCheckError(f"JSON gives back {again}, not {made}")


def sizes(subject: Subject) -> str:
    """Any number of queries, keys, heads and any head_dim work."""
    count = 0
    for each in _inputs_of_many_sizes(subject):
        batch, heads, queries, dim = each.query.shape
        output = each.run(subject.kernel(heads))
        if output.shape != (batch, heads, queries, dim):
            raise FailedCheckError(f"{each.label}: the output has shape {tuple(output.shape)}")
        if not bool(torch.isfinite(output).all()):
            raise FailedCheckError(f"{each.label}: the output is not finite")
        count += 1
    return f"{count} cases"


def implementations(subject: Subject) -> str:
    """Every implementation that supports a call gives the same as the kernel does."""
    found = set()
    for each in _inputs_of_many_sizes(subject):
        kernel = subject.kernel(each.query.shape[1])
        expected = each.run(kernel)
        for name in IMPLEMENTATIONS:
            output = kernel.compute(name, each.query, each.key, each.value, each.visibility)
            if output is not None:
                found.add(name)
                require_close(output, expected, f"implementation {name}; {each.label}")
    for order in subject.orders:
        each, kernel = example(order, 1, 1, CHUNKED_LENGTH, 2, keys=CHUNKED_LENGTH, scale=1.0), subject.kernel(1)
        chunked, whole = (
            kernel.compute(name, each.query, each.key, each.value, each.visibility) for name in ("chunked", "reference")
        )
        if chunked is not None and whole is not None:
            found.add("chunked")
            require_close(chunked, whole, f"implementation chunked; {each.label}")
    return f"the same by {', '.join(name for name in IMPLEMENTATIONS if name in found)}"


def _inputs_of_many_sizes(subject: Subject) -> Iterator[Example]:
    for order in subject.orders:
        for queries, keys, heads, dim in ((1, 1, 1, 1), (3, 1, 1, 1), (1, 4, 3, 3), (7, 5, 3, 8), (150, 150, 1, 2)):
            has_memory = "memory" in subject.config.supports
            if order != "causal" or keys == queries or (keys > queries and has_memory):
                memory = keys - queries if order == "causal" else 0
                yield example(order, 1, heads, queries, dim, memory=memory, keys=keys, scale=1.0)


def batches(subject: Subject) -> str:
    """An example gives the same alone and in a batch, a head the same beside any others; also in training.

    A head is not tried alone, since a variant can have a constant for each head, such as a slope.
    """
    for order in subject.orders:
        each = example(order, batch=3, heads=3)
        for is_training, dropout in subject.modes:
            kernel = subject.kernel(3, dropout).train(is_training)
            first, other = each.run_seeded(kernel), each.map(_with_other_examples).run_seeded(kernel)
            mode = f"{each.label}, {mode_name(is_training, dropout)}"
            require_close(other[:1], first[:1], f"all examples but the first changed; {mode}")
            for number in range(3):
                own = torch.arange(3)[:, None, None] == number
                changed = each.map(lambda tensor, own=own: torch.where(own, tensor, 3 - tensor))  # type: ignore[misc]
                where = f"all heads but number {number} of 3 changed; {mode}"
                require_close(changed.run_seeded(kernel)[:, number], first[:, number], where)
        together = each.run(subject.kernel(3))
        for number in range(3):
            alone = each.map(lambda tensor, number=number: tensor[number : number + 1])  # type: ignore[misc]
            where = f"example {number} of 3 alone; {each.label}"
            require_close(alone.run(subject.kernel(3)), together[number : number + 1], where)
    return "examples and heads are independent"


def _with_other_examples(tensor: Tensor) -> Tensor:
    return torch.cat([tensor[:1], 3 - tensor[1:]])


def repeated_calls(subject: Subject) -> str:
    """Two calls give the same bits, draw no random numbers, and leave their inputs as they are.

    A call in training, without dropout, gives the same numbers, and its repetition changes no buffer.
    """
    for each in subject.examples():
        kernel = subject.kernel(each.query.shape[1])
        before = each.map(lambda tensor: tensor.clone())
        state = torch.random.get_rng_state()
        first, second = each.run(kernel), each.run(kernel)
        if not torch.equal(state, torch.random.get_rng_state()):
            raise FailedCheckError(f"in evaluation; {each.label}: a call draws random numbers")
        for name in ("query", "key", "value"):
            if not torch.equal(getattr(before, name), getattr(each, name)):
                raise FailedCheckError(f"{each.label}: a call changes its {name}")
        if not torch.equal(first, second):
            raise FailedCheckError(f"{each.label}: two calls give other numbers")
        where = f"in training without dropout, compared with evaluation; {each.label}"
        require_close(each.run(kernel.train()), first, where)
        before_second = {name: buffer.clone() for name, buffer in kernel.named_buffers()}
        each.run(kernel)
        for name, buffer in kernel.named_buffers():
            if not torch.equal(buffer.nan_to_num(), before_second[name].nan_to_num()):
                raise FailedCheckError(
                    f"in training; {each.label}: a second call with the same inputs changes the buffer {name}; a step "
                    "calls normalize several times, for chunks of queries and to recompute them"
                )
    return "the same bits, in training the same numbers"


def steps(subject: Subject) -> str:
    """Step by step gives the same as at once, in the orders that the config lists in ``stepwise``."""
    if not subject.config.stepwise:
        raise NotApplicableError("the config's stepwise is empty")
    for each in subject.examples(subject.config.stepwise):
        kernel, queries = subject.kernel(each.query.shape[1]), each.query.shape[2]
        expected = each.run(kernel)
        for width in (1, 2):
            state, found = None, list[Tensor]()
            for start in range(0, queries, width):
                rows = slice(start, min(start + width, queries))
                seen = each.visibility.memory + rows.stop if each.visibility.order == "causal" else each.key.shape[2]
                memory = each.visibility.memory + start if each.visibility.order == "causal" else 0
                output, state = kernel.step(
                    state, each.query[:, :, rows], each.key[:, :, :seen], each.value[:, :, :seen],
                    replace(each.visibility, memory=memory),
                )  # fmt: skip
                found.append(output)
            require_close(torch.cat(found, dim=2), expected, f"{width} queries at a time; {each.label}")
    return f"equal in {', '.join(subject.config.stepwise)}"


def compiled(subject: Subject) -> str:
    """``torch.compile`` makes one graph of it, whose output and gradients are the same."""
    for order in subject.orders:
        each = example(order, dtype=torch.float32)
        kernel = subject.kernel(dtype=torch.float32)
        torch._dynamo.reset()
        graph = torch.compile(kernel, fullgraph=True, backend="aot_eager")
        plain, leaves = (each.map(lambda tensor: tensor.clone().requires_grad_()) for _ in range(2))
        try:
            found = graph(leaves.query, leaves.key, leaves.value, leaves.visibility, None)
        except Exception as error:
            reason = str(error).strip().partition("\n")[0]
            raise FailedCheckError(f"{each.label}: {type(error).__name__}: {reason}") from error
        expected = plain.run(kernel)
        require_close(found, expected, f"compiled; {each.label}", 1e-5)
        torch.autograd.backward([found.sum(), expected.sum()])
        for name in ("query", "key", "value"):
            tensors = [getattr(some, name) for some in (leaves, plain)]  # a variant may not use all of them
            pair = [torch.zeros_like(each) if each.grad is None else each.grad for each in tensors]
            require_close(pair[0], pair[1], f"compiled; {each.label}", 1e-4, f"gradient of {name}")
    return "one graph"


def memory(subject: Subject) -> str:
    """In the orders listed in ``stepwise``, stored and temporary tensors grow linearly with the length."""
    found = []
    for order in subject.config.stepwise or subject.orders:
        small, large = (_memory(subject.kernel(1, dtype=torch.float32), 2**power, order) for power in (10, 11))
        grown = [f"{name} {before / 2**20:.1f} to {after / 2**20:.1f}" for name, before, after in zip(
            ("stored", "largest tensor"), small, large, strict=True)]  # fmt: skip
        in_chunks = ", the longer call in chunks" if large[0] < small[0] else ""
        found.append(f"{order}: {', '.join(grown)} MiB{in_chunks}")
        if any(after > 3 * before for before, after in zip(small, large, strict=True)):
            if order not in subject.config.stepwise:
                raise NotApplicableError(f"{found[-1]} as the length doubles; {order} is not in stepwise")
            raise FailedCheckError(f"{found[-1]} as the length doubles; expected at most twice as much")
    return "; ".join(found)


class LargestTensor(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records the size in bytes of the largest tensor that an operator makes."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.bytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        """Runs an operator and looks at its outputs."""
        found = func(*args, **(kwargs or {}))
        for each in found if isinstance(found, tuple | list) else [found]:
            if isinstance(each, Tensor):
                self.bytes = max(self.bytes, each.untyped_storage().nbytes())
        return found


def _memory(kernel: Kernel, length: int, order: Order) -> tuple[int, int]:
    """Returns the bytes stored for the gradient of one call, and of the largest tensor made, forward or backward."""
    stored: dict[int, int] = {}

    def count(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        stored[storage.data_ptr()] = storage.nbytes()
        return tensor

    each = example(order, 1, 1, length, 8, dtype=torch.float32).map(lambda tensor: tensor.requires_grad_())
    with LargestTensor() as largest:
        with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
            output = each.run(kernel)
        torch.autograd.backward(output.square().sum())
    return sum(stored.values()), largest.bytes


def speed(subject: Subject) -> str:
    """Time of forward and backward, as a multiple of softmax's: a report, not a requirement."""
    order = subject.orders[0]
    others = {"softmax": find_attention("softmax"), "it": subject.config}
    kernels = {name: each.build(heads=4).train() for name, each in others.items()}
    inputs = example(order, 1, 4, LENGTH, 32, dtype=torch.float32).map(lambda tensor: tensor.requires_grad_())
    seconds: dict[str, list[float]] = {name: [] for name in kernels}
    for _ in range(6):
        for name, kernel in kernels.items():
            started = time.perf_counter()
            torch.autograd.backward(inputs.run(kernel).sum())
            seconds[name].append(time.perf_counter() - started)
    ratio = statistics.median(seconds["it"][1:]) / statistics.median(seconds["softmax"][1:])
    return f"order {order}, length {LENGTH:,}: {ratio:.1f} times the time of softmax"
