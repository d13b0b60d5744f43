"""P3, Figure 1: BERT and ALBERT of depth 100 at initialisation."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from seqarena.common.attention.visibility import Visibility
from seqarena.common.model.bert.model import Bert, BertConfig
from seqarena.common.model.diagnostics import mean_cosine, token_similarity
from seqarena.common.training.runtime import seed_torch
from seqarena.scripts.figures.drawing import Drawing, FigureOptions, FigureResult, Finding, Line, Panel

DEPTH, TOKENS, VOCABULARY = 100, 128, 30_522
BASE = BertConfig(vocabulary=VOCABULARY, layers=DEPTH, dim=768, heads=12, ffn_dim=3_072, activation="gelu")


@dataclass(frozen=True, kw_only=True)
class Stream:
    """Measurements of random tokens in a stack: at its input and after each layer."""

    similarity: list[float]
    cosine: list[float]
    gradient: list[float]
    """Norm of the gradient of a random projection of the last output by each layer's output."""


def stream(config: BertConfig, tokens: int, seed: int, *, shared: bool) -> Stream:
    """Returns the measurements; ``shared``: one layer at all depths, as in ALBERT."""
    seed_torch(seed)
    model = Bert(replace(config, layers=1) if shared else config, pooler=False).eval()
    model.requires_grad_(False)
    for (
        module
    ) in model.modules():  # not cut off at two deviations, as Google's code has it: P3 took the library's models
        if isinstance(module, nn.Linear | nn.Embedding):
            module.weight.normal_(std=config.initial_std)
    ids = torch.randperm(config.vocabulary)[None, :tokens]
    hidden = model.embeddings(ids, torch.zeros_like(ids)).requires_grad_()
    layers = [model.encoder.layers[0 if shared else number] for number in range(config.layers)]
    found: list[Tensor] = [hidden]
    for layer in layers:
        hidden = layer(hidden, Visibility())
        hidden.retain_grad()
        found.append(hidden)
    torch.autograd.backward((hidden * torch.randn_like(hidden)).sum())
    gradients = [each.grad for each in found]
    with torch.no_grad():
        return Stream(
            similarity=[float(token_similarity(each)) for each in found],
            cosine=[float(mean_cosine(each)) for each in found],
            gradient=[float(each.norm()) for each in gradients if each is not None],
        )


def make(settings: FigureOptions) -> FigureResult:
    """Returns the figure. --quick: 24 layers of a quarter of the width."""
    small = replace(BASE, layers=24, dim=192, heads=3, ffn_dim=768, initial_std=0.04)  # same spread of products
    config = small if settings.quick else BASE
    found = {
        "BERT": stream(config, TOKENS, 0, shared=False),
        "ALBERT (one layer)": stream(config, TOKENS, 0, shared=True),
    }
    depth = range(config.layers + 1)
    panels = [
        Panel(title=title, x="layer", y=unit, log_y=name == "gradient",
              lines=[Line(label=label, x=depth, y=getattr(each, name)) for label, each in found.items()])
        for name, title, unit in (
            ("similarity", "token similarity", "fraction of ||X||² in the mean, 0 to 1"),
            ("cosine", "mean cosine of two tokens", "cosine"),
            ("gradient", "gradient by each layer's output", "norm"),
        )
    ]  # fmt: skip
    return FigureResult(panels=panels, findings=[*_findings(found, settings.quick)])


def _findings(found: dict[str, Stream], quick: bool) -> Sequence[Finding]:
    made = []
    for name, each in found.items():
        end, cosine = each.similarity[-1], each.cosine[-1]
        least = 0.5 if quick else 0.99
        made.append(
            Finding(
                claim=f"{name}: similarity and cosine go to 1",
                found=f"{each.similarity[0]:.3f} to {end:.4f}, cosine {cosine:.4f}, layer {len(each.similarity) - 1}",
                agrees=end > least and cosine > least,
            )
        )
        spread = max(each.gradient) / min(each.gradient)
        made.append(
            Finding(
                claim=f"{name}: the gradient's norm stays constant",
                found=f"largest over smallest: {spread:.1f}",
                agrees=spread < 10,
            )
        )
    return made


DRAWING = Drawing(
    name="p3-start",
    source="P3, Figure 1",
    shows="token similarity in a deep BERT at initialisation, and with one shared layer as in ALBERT",
    make=make,
)
