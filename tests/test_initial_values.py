"""The models of all tasks: runs of one seed begin with the same values, and weight decay spares biases and norms."""

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from seqarena.common.attention import PAPERS
from seqarena.common.attention.visibility import Order
from seqarena.common.model.bert.model import BertForPretraining
from seqarena.common.model.norms import NORMS
from seqarena.common.model.norms.base import LayerPosition, Residual
from seqarena.common.model.norms.post import PostNorm
from seqarena.common.training.optim import Optim, build_optimizer
from seqarena.lra.model import Classifier
from seqarena.lra.pictures.model import PictureModel
from seqarena.lra.recall.model import RecallModel
from seqarena.lra.recall.run import RecallRun
from seqarena.pretraining.model import has_order
from seqarena.pretraining.transformer_xl import TransformerXL
from seqarena.pretraining.wikitext.run import LanguageRun
from seqarena.qa.model import PairClassifier, Reader
from seqarena.scripts.packages import PACKAGES, find_package
from seqarena.summarization.model import Summarizer
from seqarena.vqa.data.scenes import Scenes
from seqarena.vqa.model import Answerer

SIZES = {"max_length": 24, "layers": 2, "dim": 8, "heads": 2, "ffn_dim": 8, "vocabulary": 40, "cutoffs": (10, 20)}
ORDERS: Mapping[str, Order] = {"decoder_attention": "causal", "cross_attention": "ordered_queries"}
"""Fields of a config that hold one more attention, and the order that it has there."""


def lra(run: Any, config: Any) -> nn.Module:
    if isinstance(run, RecallRun):
        return RecallModel(config)
    return config.build() if isinstance(config, PictureModel) else Classifier(config, run.data.sequences)


def pretraining(run: Any, config: Any) -> nn.Module:
    is_language = isinstance(run, LanguageRun)
    return TransformerXL(config) if is_language else BertForPretraining(config, sentences=has_order(run.data))


def qa(run: Any, config: Any) -> nn.Module:
    return PairClassifier(config, 3) if run.task == "mnli" else Reader(config, answerable=run.data.unanswerable)


BUILT: Mapping[str, Callable[[Any, Any], nn.Module]] = {
    "lra": lra,
    "summarization": lambda _, config: Summarizer(config),
    "pretraining": pretraining,
    "qa": qa,
    "vqa": lambda _, config: Answerer(config, Scenes(scenes=8, held_out=4).load(Path())),
}


def variations(run: Any, config: Any) -> Iterator[dict[str, Any]]:
    """Every attention that the model takes with every norm, and every attention that its decoder takes."""
    order: Order = "causal" if isinstance(run, LanguageRun | RecallRun) else "none"
    norms = [norm.causal() if order == "causal" else norm for norm in NORMS.values()] if hasattr(config, "norm") else []
    attentions = [each for each in PAPERS.values() if order in each.orders]
    for attention, norm in itertools.product(attentions, norms or [None]):
        yield {"attention": attention, **({} if norm is None else {"norm": norm})}
    for field, own in ORDERS.items():
        if hasattr(config, field):
            yield from ({field: attention} for attention in PAPERS.values() if own in attention.orders)


TASKS = [(package, task) for package in PACKAGES for task in find_package(package).tasks]


def small(package: str, task: str) -> tuple[Any, Any]:
    """The quick run of a task, and its model's config in a small size."""
    run = find_package(package).presets[task]["quick"].run
    config: Any = run.model
    return run, replace(config, **{name: size for name, size in SIZES.items() if hasattr(config, name)})


def different_models() -> list[tuple[str, str]]:
    """One task of all those whose small models are the same: same config, and same of what ``BUILT`` reads in a run."""
    found: dict[object, tuple[str, str]] = {}
    for package, task in TASKS:
        run, config = small(package, task)
        read = [getattr(run.data, name, None) for name in ("sequences", "unanswerable")]
        found.setdefault((package, repr(config), *read, type(run), task == "mnli"), (package, task))
    return list(found.values())


@pytest.mark.parametrize(("package", "task"), different_models())
def test_all_variants_of_a_task_begin_with_the_same_values(package: str, task: str) -> None:
    run, config = small(package, task)
    seen: dict[str, torch.Tensor] = {}
    for changes in variations(run, config):
        torch.manual_seed(5)
        model = BUILT[package](run, replace(config, **changes))
        scales = {scale for each in model.modules() if (scale := getattr(each, "initial_scale", 1.0)) != 1}
        for name, value in model.state_dict().items():
            first = seen.setdefault(name, value)
            shared = [scale for scale in (1.0, *scales) if torch.equal(scale * first, value)]
            assert shared, f"{name} begins otherwise with {changes}"


class Drawing(PostNorm):
    """A norm that draws random numbers when it is built, as one of a user may."""

    def residual(self, dim: int, eps: float, position: LayerPosition) -> Residual:
        torch.rand(3)
        return super().residual(dim, eps, position)

    def final_norm(self, dim: int, eps: float) -> nn.Module:
        return nn.Linear(dim, dim)

    def causal(self) -> "Drawing":
        return self


@pytest.mark.parametrize(
    ("package", "task"), [("lra", "listops"), ("pretraining", "mlm"), ("pretraining", "wikitext2"),
                          ("qa", "squad1"), ("summarization", "wire")],
)  # fmt: skip
def test_a_norm_that_draws_numbers_leaves_the_other_weights(package: str, task: str) -> None:
    run, config = small(package, task)
    values = []
    for norm in (PostNorm(), Drawing()):
        torch.manual_seed(5)
        values.append(BUILT[package](run, replace(config, norm=norm)).state_dict())
    assert values[0].keys() < values[1].keys()
    assert all(torch.equal(value, values[1][name]) for name, value in values[0].items())


DECAYED = {"weight", "table", "clusters", "original1", "weight_ih_l0", "weight_hh_l0"}
"""Last names of the parameters that are decayed: matrices, embeddings, directions (weight norm), a GRU's matrices."""


def test_weight_decay_is_of_matrices_and_embeddings_alone() -> None:
    """Biases are excluded whatever their shape: u and v of Transformer-XL have three dimensions."""
    decayed, spared = set(), set()
    for package, task in TASKS:
        run, config = small(package, task)
        model = BUILT[package](run, replace(config, attention=PAPERS["hnas"]))
        groups = build_optimizer(Optim(lr=1.0, weight_decay=0.1), model).param_groups
        ids = {id(each) for group in groups if group["weight_decay"] for each in group["params"]}
        for name, parameter in model.named_parameters():
            (decayed if id(parameter) in ids else spared).add(name.rpartition(".")[2])
            assert id(parameter) not in ids or parameter.ndim == 2, name
    assert decayed == DECAYED
    assert {"bias", "content_bias", "position_bias", "cluster_bias", "raw"} <= spared
