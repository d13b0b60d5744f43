"""P3, Figure 4, language models: any checkpoint of the transformers library, on the bundled text."""

import itertools
import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from seqarena.common.data.corpus import chapters
from seqarena.common.errors import BadDataError, WrongUseError
from seqarena.common.model.diagnostics import mean_cosine, token_similarity
from seqarena.scripts.figures.drawing import Drawing, FigureOptions, FigureResult, Finding, Line, MissingError, Panel

ATTENTIONS = ("self_attn", "attn", "attention", "self_attention")
"""Attribute names of a layer's attention."""


@dataclass(frozen=True, kw_only=True)
class LayerMeasurements:
    """Measurements by layer, means over texts; the first of each list is of the embeddings."""

    similarity: list[float]
    cosine: list[float]
    stream: list[float]
    """Frobenius norm of X."""
    read: list[float]
    """Frobenius norm of LN(X), the attention's input; empty if that is the stream itself, as under post-norm."""
    added: list[float]
    """Frobenius norm of P LN(X) W, the attention's output."""


def read_model(folder: Path) -> tuple[Any, Any]:
    """Returns a model and its tokenizer.

    Raises:
        WrongUseError: the transformers library is not installed.
        BadDataError: the folder has no model or tokenizer that the library can load.
    """
    if not (folder / "config.json").exists():
        raise BadDataError(f"{folder}: there is no config.json in it; expected a folder written by save_pretrained")
    try:
        import transformers  # noqa: PLC0415  # an extra
    except ImportError as error:
        raise WrongUseError("p3-checkpoint needs an extra: pip install 'seqarena[transformers]'") from error
    try:
        model = transformers.AutoModel.from_pretrained(folder, local_files_only=True).eval()
        return model, transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # different kinds of damage raise unrelated classes
        raise BadDataError(f"{folder}: transformers could not load it: {error}") from error


def measure(folder: Path, *, texts: int, length: int) -> LayerMeasurements:
    """Returns the measurements of a model on ``texts`` chapters of ``length`` tokens, or of its maximum length.

    Raises:
        BadDataError: the model cannot read text, or its layers have no attention of a known name.
    """
    model, tokenizer = read_model(folder)
    length = min(length, getattr(model.config, "max_position_embeddings", length))
    cut = (
        tokenizer(" ".join(chapter), truncation=True, max_length=length, return_tensors="pt")["input_ids"]
        for chapter in chapters()
    )
    long = itertools.islice((ids for ids in cut if ids.shape[1] == length), texts)
    try:
        found = [_read(model, ids) for ids in long]
    except (RuntimeError, IndexError, ValueError, TypeError) as error:
        raise BadDataError(f"{folder}: {type(model).__name__} could not read a text: {error}") from error
    if not found:
        raise BadDataError(f"{folder}: no chapter of the bundled text has {length} tokens under its tokenizer")
    names = LayerMeasurements.__dataclass_fields__
    return LayerMeasurements(**{name: _means([getattr(each, name) for each in found]) for name in names})


def _means(series: list[list[float]]) -> list[float]:
    return [statistics.fmean(values) for values in zip(*series, strict=True)]


@torch.no_grad()
def _read(model: nn.Module, ids: Tensor) -> LayerMeasurements:
    """Measures one text by hooks on the layers, because the library's last hidden state is after the final norm."""
    inner, outer = attentions(model)
    attention_calls: list[tuple[Tensor, Tensor]] = []
    layer_calls: list[tuple[Tensor, Tensor]] = []

    def record(calls: list[tuple[Tensor, Tensor]]) -> Callable[..., None]:
        def hook(_: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any], output: Any) -> None:
            read = arguments[0] if arguments else named["hidden_states"]
            calls.append((read, output[0] if isinstance(output, tuple) else output))

        return hook

    handles = [part.register_forward_hook(record(attention_calls), with_kwargs=True) for part in inner]
    handles += [part.register_forward_hook(record(layer_calls), with_kwargs=True) for part in outer]
    try:
        model(ids)
    finally:
        for handle in handles:
            handle.remove()
    streams = [layer_calls[0][0], *(output for _, output in layer_calls)]
    is_pre_norm = not torch.equal(attention_calls[0][0], streams[0])
    return LayerMeasurements(
        similarity=[float(token_similarity(each)) for each in streams],
        cosine=[float(mean_cosine(each)) for each in streams],
        stream=[float(each.norm()) for each in streams],
        read=[float(read.norm()) for read, _ in attention_calls] if is_pre_norm else [],
        added=[float(added.norm()) for _, added in attention_calls] if is_pre_norm else [],
    )


def attentions(model: nn.Module) -> tuple[list[nn.Module], list[nn.Module]]:
    """Returns the outermost attention modules, found by name, and the layers that contain them.

    Raises:
        ValueError: there is none.
    """
    parts = dict(model.named_modules())
    named = [name for name in parts if name.rsplit(".", 1)[-1] in ATTENTIONS]
    outermost = [name for name in named if not any(name.startswith(f"{other}.") for other in named)]
    if not outermost:
        raise ValueError(f"no module is called {', '.join(ATTENTIONS)}")
    return [parts[name] for name in outermost], [parts[name.rpartition(".")[0]] for name in outermost]


def check(settings: FigureOptions) -> Path:
    """Returns the model's folder; raises a ``MissingError`` if none is given, and the errors of ``read_model``."""
    if settings.checkpoint is None:
        raise MissingError(
            "p3-checkpoint needs a model: --checkpoint FOLDER, a folder written by save_pretrained of transformers"
        )
    read_model(settings.checkpoint)
    return settings.checkpoint


def make(settings: FigureOptions) -> FigureResult:
    """Returns the figure. --quick: one chapter instead of 16, and 32 tokens instead of 128."""
    texts, length = (1, 32) if settings.quick else (16, 128)
    folder = check(settings)
    inside = measure(folder, texts=texts, length=length)
    layers = range(len(inside.stream))
    norms = [Line(label="X", x=layers, y=inside.stream)]
    if inside.read:
        norms.append(Line(label="LN(X)", x=layers[:-1], y=inside.read))
        norms.append(Line(label="P LN(X) W", x=layers[:-1], y=inside.added))
    growth = inside.stream[-1] / inside.stream[0]
    findings = [
        Finding(claim="ours: similarity does not reach 1 at this depth", agrees=inside.similarity[-1] < 0.99,
                found=f"{inside.similarity[0]:.3f} to {inside.similarity[-1]:.3f} in {len(layers) - 1} layers"),
    ]  # fmt: skip
    if inside.read:
        highest = max(inside.stream) / inside.stream[0]
        findings.append(
            Finding(claim="ours: under pre-norm the stream grows", agrees=highest > 2,
                    found=f"||X|| at the end {growth:.3g} times the embeddings', at most {highest:.3g} times")
        )  # fmt: skip
    name = folder.resolve().name
    return FigureResult(
        panels=[
            Panel(title=f"similarity, {name}", x="layer", y="0 to 1", lines=[
                Line(label="token similarity", x=layers, y=inside.similarity),
                Line(label="mean cosine", x=layers, y=inside.cosine),
            ]),
            Panel(title=f"norms of {length} tokens, {name}", x="layer", y="Frobenius norm", lines=norms,
                  log_y=math.isfinite(growth)),
        ],
        findings=findings,
    )  # fmt: skip


DRAWING = Drawing(
    name="p3-checkpoint", source="P3, Figure 4, language models", make=make, check=check,
    shows="token similarity and norms by layer of your checkpoint (--checkpoint)",
)  # fmt: skip
