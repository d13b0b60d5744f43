"""Checks of token mixers, which have no queries and keys: hidden states of a layer take their place."""

import functools
import itertools
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from types import MappingProxyType

import torch
from torch import Tensor, nn

from seqarena.common.attention.mixer import LayerShape
from seqarena.common.attention.module import self_attention
from seqarena.common.attention.softmax import Softmax
from seqarena.common.attention.visibility import Order, Visibility
from seqarena.common.errors import WrongUseError
from seqarena.scripts.verify import behaviour
from seqarena.scripts.verify.masks import LONG, TIMES
from seqarena.scripts.verify.numbers import difference_along, finite_differences
from seqarena.scripts.verify.subject import (
    FailedCheckError,
    NotApplicableError,
    Subject,
    mode_name,
    require_close,
    require_support,
)

SHAPE = LayerShape(dim=8, heads=2, width=8, length=16)
LENGTH = 1024
"""Length of the inputs that are timed."""
HALF = 8
"""Largest error under autocast, relative to the largest output, in units of the dtype's precision."""


@dataclass(frozen=True, kw_only=True)
class Stream:
    """Hidden states of a layer, and what is visible in them."""

    hidden: Tensor
    visibility: Visibility

    @property
    def label(self) -> str:
        """Sizes and settings, for messages."""
        batch, tokens, dim = self.hidden.shape
        return f"order {self.visibility.order}, {tokens} tokens, batch {batch}, width {dim}"

    def run_seeded(self, mixer: nn.Module) -> Tensor:
        """Returns the output with the same random numbers at every call, so that dropout drops the same."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            output: Tensor = mixer(self.hidden, self.visibility)
            return output


def made(subject: Subject, shape: LayerShape = SHAPE, dtype: torch.dtype = torch.float64) -> nn.Module:
    """Returns the layer in evaluation, the same at every call."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return self_attention(subject.config, shape).to(dtype).eval()


def streams(subject: Subject) -> Iterator[Stream]:
    """Yields random hidden states of growing size, in each order."""
    for (batch, tokens), order in itertools.product(((1, 1), (1, 2), (1, 3), (2, 5)), subject.orders):
        yield stream(order, batch, tokens)


def stream(order: Order, batch: int = 2, tokens: int = 5, dim: int = 8) -> Stream:
    """Returns random hidden states."""
    generator = torch.Generator().manual_seed(tokens)
    hidden = torch.randn(batch, tokens, dim, generator=generator, dtype=torch.float64)
    return Stream(hidden=hidden, visibility=Visibility(order=order))


def config(subject: Subject) -> str:
    """The config goes to JSON and back; the layer draws as many random numbers as multi-head attention."""
    behaviour.require_json(subject.config)
    states = []
    for each in (subject.config, Softmax()):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self_attention(each, SHAPE)
            states.append(torch.random.get_rng_state())
    if not torch.equal(*states):
        raise FailedCheckError("models of this mixer and of softmax would start from other weights")
    return f"orders {', '.join(subject.orders)}"


def sizes(subject: Subject) -> str:
    """Any number of tokens works, and heads that are together narrower than the stream."""
    count = 0
    for order, tokens, (heads, width) in itertools.product(subject.orders, (1, 2, 7, 16), ((1, 8), (2, 8), (2, 4))):
        each = stream(order, 1, tokens)
        output = made(subject, replace(SHAPE, heads=heads, width=width))(each.hidden, each.visibility)
        if output.shape != each.hidden.shape or not bool(torch.isfinite(output).all()):
            raise FailedCheckError(f"{each.label}: the output is not finite, or has shape {tuple(output.shape)}")
        count += 1
    return f"{count} cases"


def repeated_calls(subject: Subject) -> str:
    """Two calls give the same bits, draw no random numbers, and leave their input as it is.

    A call in training, without dropout, gives the same numbers.
    """
    for each in streams(subject):
        mixer, before, state = made(subject), each.hidden.clone(), torch.random.get_rng_state()
        first, second = (mixer(each.hidden, each.visibility) for _ in range(2))
        if not torch.equal(state, torch.random.get_rng_state()):
            raise FailedCheckError(f"in evaluation; {each.label}: a call draws random numbers")
        if not torch.equal(before, each.hidden) or not torch.equal(first, second):
            raise FailedCheckError(f"{each.label}: a call changes its input, or two calls give other numbers")
        if each.hidden[..., 0].numel() > 1:  # layers with statistics refuse a single token
            where = f"in training without dropout, compared with evaluation; {each.label}"
            # Spectral normalisation moves its estimate in training.
            require_close(mixer.train()(each.hidden, each.visibility), first, where, 1e-6)
    return "the same bits, in training the same numbers"


def batches(subject: Subject) -> str:
    """An example gives the same alone and in a batch, also in training."""
    for order in subject.orders:
        each = stream(order, batch=3)
        other = replace(each, hidden=torch.cat([each.hidden[:1], 3 - each.hidden[1:]]))
        for is_training, dropout in subject.modes:
            shape = replace(SHAPE, dropout=dropout)
            found, expected = (some.run_seeded(made(subject, shape).train(is_training)) for some in (other, each))
            where = f"all examples but the first changed; {each.label}, {mode_name(is_training, dropout)}"
            require_close(found[:1], expected[:1], where)
        together = made(subject)(each.hidden, each.visibility)
        for number in range(3):
            alone = made(subject)(each.hidden[number : number + 1], each.visibility)
            require_close(alone, together[number : number + 1], f"example {number} of 3 alone; {each.label}")
    return "examples are independent"


def padding(subject: Subject) -> str:
    """Padding after the last token changes nothing, whatever it contains; gradients are finite."""
    require_support(subject, "padding")
    for each in streams(subject):
        expected = made(subject)(each.hidden, each.visibility)
        batch, tokens, dim = each.hidden.shape
        for content in (0.0, 1e4, float("nan")):
            longer = torch.cat([each.hidden, torch.full((batch, 2, dim), content, dtype=torch.float64)], dim=1)
            real = torch.arange(tokens + 2).expand(batch, -1) < tokens
            longer.requires_grad_()
            output = made(subject)(longer, replace(each.visibility, query_real=real, key_real=real))
            require_close(output[:, :tokens], expected, f"2 tokens of padding with {content:g}; {each.label}")
            if output.requires_grad:
                torch.autograd.backward(output[:, :tokens].square().sum())
            if longer.grad is not None and not bool(torch.isfinite(longer.grad).all()):
                raise FailedCheckError(f"2 tokens of padding with {content:g}; {each.label}: a gradient is not finite")
    for order in subject.orders:
        each = stream(order, batch=3)
        lengths = torch.tensor([2, 5, 4])
        real = torch.arange(5) < lengths[:, None]
        output = made(subject)(each.hidden, replace(each.visibility, query_real=real, key_real=real))
        for number, length in enumerate(lengths.tolist()):
            alone = made(subject)(each.hidden[number : number + 1, :length], each.visibility)
            where = f"example {number} of a batch with {', '.join(map(str, lengths.tolist()))} tokens; order {order}"
            require_close(output[number : number + 1, :length], alone, where)
    return "changes nothing"


def future(subject: Subject) -> str:
    """In order causal, an output does not change with later tokens."""
    if "causal" not in subject.orders:
        raise NotApplicableError("the config lists only order 'none'")
    for each in streams(subject):
        if each.visibility.order != "causal":
            continue
        expected = made(subject)(each.hidden, each.visibility)
        for first in range(1, each.hidden.shape[1]):
            other = torch.cat([each.hidden[:, :first], 3 - each.hidden[:, first:]], dim=1)
            where = f"tokens from {first} on changed; {each.label}"
            require_close(made(subject)(other, each.visibility)[:, :first], expected[:, :first], where)
            shorter = made(subject)(each.hidden[:, :first], each.visibility)
            require_close(shorter, expected[:, :first], f"tokens from {first} on removed; {each.label}")
    each = stream("causal", 1, LONG)
    for is_training, dropout in subject.modes:
        shape = replace(SHAPE, length=LONG, dropout=dropout)
        expected = each.run_seeded(made(subject, shape).train(is_training))
        for last in TIMES:
            later = torch.cat([each.hidden[:, : last + 1], 3 - each.hidden[:, last + 1 :]], dim=1)
            found = replace(each, hidden=later).run_seeded(made(subject, shape).train(is_training))
            where = f"tokens after token {last} changed; {each.label}, {mode_name(is_training, dropout)}"
            require_close(found[:, : last + 1], expected[:, : last + 1], where)
    return "excluded"


def segments(subject: Subject) -> str:
    """Packed sequences give the same as each alone."""
    require_support(subject, "segments")
    for order in subject.orders:
        one, other = stream(order, 1, 3), stream(order, 1, 4)
        packed = torch.cat([one.hidden, other.hidden], dim=1)
        numbers = torch.tensor([[0] * 3 + [1] * 4])
        found = made(subject)(packed, replace(one.visibility, segments=numbers))
        expected = torch.cat([made(subject)(each.hidden, each.visibility) for each in (one, other)], dim=1)
        require_close(found, expected, f"two packed sequences; order {order}")
    return "packed equals apart"


def window(subject: Subject) -> str:
    """Under a window, older tokens change no output. A window of the whole length changes nothing."""
    require_support(subject, "window")
    if "causal" not in subject.orders:
        raise NotApplicableError("the config does not list order 'causal'")
    each, mixer = stream("causal"), made(subject)
    narrow = replace(each.visibility, window=2)
    changed = torch.cat([3 - each.hidden[:, :-2], each.hidden[:, -2:]], dim=1)
    found, expected = (mixer(hidden, narrow)[:, -1:] for hidden in (changed, each.hidden))
    require_close(found, expected, f"tokens before a window of 2 changed; {each.label}", 1e-12)
    wide = replace(each.visibility, window=each.hidden.shape[1])
    where = f"a window of the whole length; {each.label}"
    require_close(mixer(each.hidden, wide), mixer(each.hidden, each.visibility), where)
    return "older tokens change nothing"


def refusals(subject: Subject) -> str:
    """A call that needs an option which the config does not list is refused."""
    calls = {
        "segments": Visibility(order=subject.orders[0], segments=torch.zeros(2, 5, dtype=torch.long)),
        "window": Visibility(order="causal", window=2),
        "padding": Visibility(order=subject.orders[0], key_real=torch.ones(2, 5, dtype=torch.bool)),
    }
    calls = {name: each for name, each in calls.items() if name not in subject.config.supports}
    if "causal" not in subject.orders:
        calls["order causal"] = Visibility(order="causal")
    for name, visibility in calls.items():
        try:
            made(subject)(stream("none").hidden, visibility)
        except WrongUseError:
            continue
        raise FailedCheckError(f"a call with {name} is not refused")
    return f"refuses {', '.join(calls) or 'nothing'}"


def parameters(subject: Subject) -> str:
    """Every parameter has a gradient, and is saved and loaded."""
    shape = replace(SHAPE, length=5)
    mixer, each = made(subject, shape), stream(subject.orders[0])
    output = mixer(each.hidden, each.visibility)
    if output.requires_grad:
        torch.autograd.backward(output.pow(3).sum())
    without = [name for name, value in mixer.named_parameters() if value.grad is None or not bool(value.grad.any())]
    if without:
        raise FailedCheckError(f"{each.label}: no gradient of {', '.join(without)}")
    other = made(subject, shape)
    with torch.no_grad():
        for parameter in mixer.parameters():
            parameter.mul_(0.9)
    other.load_state_dict(mixer.state_dict())
    require_close(other(each.hidden, each.visibility), mixer(each.hidden, each.visibility), "after loading", 1e-12)
    count = sum(each.numel() for each in mixer.parameters())
    return f"{count} numbers at width {SHAPE.dim} and {shape.length} tokens"


def gradients(subject: Subject) -> str:
    """Gradients equal finite differences in float64: of the hidden states, and of each parameter in one direction."""
    for each in streams(subject):
        hidden = each.hidden.clone().requires_grad_()
        value = functools.partial(_weighted_sum, made(subject), hidden, each.visibility)
        torch.autograd.backward(value())
        assert hidden.grad is not None
        with torch.no_grad():
            expected = finite_differences(hidden, lambda value=value: float(value()))  # type: ignore[misc]
        require_close(hidden.grad, expected, each.label, 1e-4, "gradient of the input")
    for order in subject.orders:
        each, mixer = stream(order), made(subject)
        torch.autograd.backward(_weighted_sum(mixer, each.hidden, each.visibility))
        for name, parameter in mixer.named_parameters():
            generator = torch.Generator().manual_seed(0)
            direction = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            found = direction.new_zeros(()) if parameter.grad is None else (parameter.grad * direction).sum()
            value = functools.partial(_weighted_sum, mixer, each.hidden, each.visibility)
            expected = torch.tensor(difference_along(parameter, direction, lambda value=value: float(value())))  # type: ignore[misc]
            require_close(found, expected, f"in one direction; {each.label}", 1e-4, f"gradient of {name}")
    return "equal finite differences"


def _weighted_sum(mixer: nn.Module, hidden: Tensor, visibility: Visibility) -> Tensor:
    output: Tensor = mixer(hidden, visibility)
    return (output * torch.arange(1, output.numel() + 1, dtype=output.dtype).sin().view_as(output)).sum()


def half_precision(subject: Subject) -> str:
    """Under autocast to half precision, the output is that of float64 with rounding errors; gradients are finite."""
    for dtype, order in itertools.product((torch.bfloat16, torch.float16), subject.orders):
        each = stream(order, tokens=16)
        seen = each.visibility
        if "padding" in subject.config.supports:
            real = torch.arange(16) < torch.tensor([[16], [11]])
            seen = replace(seen, query_real=real, key_real=real)
        expected = made(subject)(each.hidden, seen).detach()
        hidden = each.hidden.float().requires_grad_()
        with torch.autocast("cpu", dtype=dtype):
            found = made(subject, dtype=torch.float32)(hidden, seen)
        where, scale = f"autocast to {dtype}; {each.label}", float(expected.abs().max()) or 1.0
        require_close(found.double() / scale, expected / scale, where, HALF * torch.finfo(dtype).eps)
        torch.autograd.backward(found.float().square().sum())
        if hidden.grad is None or not bool(torch.isfinite(hidden.grad).all()):
            raise FailedCheckError(f"{where}: a gradient is not finite")
    return "autocast to bfloat16 and float16 as float64, rounded"


def dropout(subject: Subject) -> str:
    """Dropout acts in training alone, and follows the seed."""
    require_support(subject, "dropout")
    each = stream(subject.orders[0])
    mixer = made(subject, replace(SHAPE, dropout=0.3))
    plain = made(subject)(each.hidden, each.visibility)
    require_close(mixer(each.hidden, each.visibility), plain, f"dropout 0.3, in evaluation; {each.label}", 1e-12)
    mixer.train()
    with torch.random.fork_rng(devices=[]):
        outputs = []
        for seed in (0, 0, *range(1, 9)):
            torch.manual_seed(seed)
            outputs.append(mixer(each.hidden, each.visibility))
    require_close(outputs[1], outputs[0], f"dropout 0.3, the same seed twice; {each.label}", 1e-12)
    if all(torch.equal(other, outputs[0]) for other in outputs):
        raise FailedCheckError(f"dropout 0.3, in training; {each.label}: it drops nothing")
    return "in training alone"


def compiled(subject: Subject) -> str:
    """``torch.compile`` makes one graph of it, whose output is the same."""
    for order in subject.orders:
        each, mixer = stream(order), made(subject, dtype=torch.float32)
        torch._dynamo.reset()
        try:
            found = torch.compile(mixer, fullgraph=True, backend="aot_eager")(each.hidden.float(), each.visibility)
        except Exception as error:
            raise FailedCheckError(f"{each.label}: {type(error).__name__}: {str(error).strip()[:200]}") from error
        require_close(found, mixer(each.hidden.float(), each.visibility), f"compiled; {each.label}", 1e-5)
    return "one graph"


def speed(subject: Subject) -> str:
    """Time of forward and backward, as a multiple of that of multi-head softmax attention."""
    order, shape = subject.orders[0], LayerShape(dim=128, heads=4, width=128, length=LENGTH)
    layers = {name: self_attention(each, shape) for name, each in (("softmax", Softmax()), ("it", subject.config))}
    each = stream(order, 1, LENGTH, 128)
    seconds: dict[str, list[float]] = {name: [] for name in layers}
    for _ in range(6):
        for name, layer in layers.items():
            started = time.perf_counter()
            torch.autograd.backward(layer(each.hidden.float(), each.visibility).sum())
            seconds[name].append(time.perf_counter() - started)
    ratio = statistics.median(seconds["it"][1:]) / statistics.median(seconds["softmax"][1:])
    return f"order {order}, length {LENGTH:,}: {ratio:.1f} times the time of softmax"


MIXER_CHECKS: MappingProxyType[str, Callable[[Subject], str]] = MappingProxyType(
    {
        "config": config,
        "sizes": sizes,
        "repeated calls": repeated_calls,
        "batches and heads": batches,
        "padded keys": padding,
        "the future": future,
        "segments": segments,
        "window": window,
        "refusals": refusals,
        "parameters": parameters,
        "gradients": gradients,
        "half precision": half_precision,
        "dropout": dropout,
        "compilation": compiled,
        "speed": speed,
    }
)
"""The checks that apply to token mixers, by the names of the others."""
