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
    """Norm of the gradient of a random projection of the last output by each layer's weights; empty for one layer at
    all depths, whose gradient is a sum over depths."""


def stream(config: BertConfig, tokens: int, seed: int, *, shared: bool) -> Stream:
    """Returns the measurements; ``shared``: one layer at all depths, as in ALBERT."""
    seed_torch(seed)
    model = Bert(replace(config, layers=1) if shared else config, pooler=False).eval()
    model.embeddings.requires_grad_(False)
    with torch.no_grad():
        for module in model.modules():
            # Without Google's truncation at two deviations: we assume that P3 used models of the transformers library.
            if isinstance(module, nn.Linear | nn.Embedding):
                module.weight.normal_(std=config.initial_std)
    ids = torch.randperm(config.vocabulary)[None, :tokens]
    hidden = model.embeddings(ids, torch.zeros_like(ids))
    layers = [model.encoder.layers[0 if shared else number] for number in range(config.layers)]
    found: list[Tensor] = [hidden]
    with torch.set_grad_enabled(not shared):
        for layer in layers:
            hidden = layer(hidden, Visibility())
            found.append(hidden.detach())
    if not shared:
        torch.autograd.backward((hidden * torch.randn_like(hidden)).sum())
    return Stream(
        similarity=[float(token_similarity(each)) for each in found],
        cosine=[float(mean_cosine(each)) for each in found],
        gradient=[] if shared else [_gradient_norm(layer) for layer in layers],
    )


def _gradient_norm(layer: nn.Module) -> float:
    gradients = [each.grad for each in layer.parameters() if each.grad is not None]
    return float(torch.stack([each.square().sum() for each in gradients]).sum().sqrt())


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
        Panel(title=title, x="layer", y=unit,
              lines=[Line(label=label, x=depth, y=getattr(each, name)) for label, each in found.items()])
        for name, title, unit in (
            ("similarity", "token similarity", "fraction of ||X||² in the mean, 0 to 1"),
            ("cosine", "mean cosine of two tokens", "cosine"),
        )
    ]  # fmt: skip
    gradient = found["BERT"].gradient
    panels.append(
        Panel(title="gradient by each layer's weights", x="layer", y="norm", limits=(0.0, 1.2 * max(gradient)),
              lines=[Line(label="BERT", x=depth[1:], y=gradient)])
    )  # fmt: skip
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
        if each.gradient:
            spread = max(each.gradient) / min(each.gradient)
            made.append(
                Finding(
                    claim=f"{name}: the gradient by the weights has the same norm in every layer",
                    found=f"largest over smallest: {spread:.2f}",
                    agrees=spread < 2,
                )
            )
    return made


DRAWING = Drawing(
    name="p3-start",
    duration="minutes",
    source="P3, Figure 1",
    shows="token similarity in a deep BERT at initialisation, and with one shared layer as in ALBERT",
    make=make,
)
