"""Runs of one seed begin alike: models of all norms and attentions share the initial values they have in common."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from common.attention import ATTENTIONS
from common.bert.model import BertForPretraining
from common.blocks import NORMS
from lra.model import Classifier
from lra.presets import PRESETS as LRA
from pretraining.presets import PRESETS as PRETRAINING
from pretraining.transformer_xl import Model as LanguageModel
from pretraining.transformer_xl import TransformerXL
from qa.model import PairClassifier, Reader
from qa.presets import PRESETS as QA
from summarization.model import Summarizer
from summarization.presets import PRESETS as SUMMARIZATION
from tests.vqa.test_model import MINI, SMALL
from vqa.model import Answerer

LANGUAGE = LanguageModel(vocabulary=11, layers=2, dim=8, heads=2, ffn_dim=12, dropout=0.0, cutoffs=(4, 7))
MODELS: dict[str, tuple[Any, Callable[[Any], nn.Module]]] = {
    "lra": (LRA["listops"]["quick"].run.model, Classifier),
    "reader": (QA["squad1"]["quick"].run.model, Reader),
    "pairs": (QA["mnli"]["quick"].run.model, lambda config: PairClassifier(config, 3)),
    "headlines": (SUMMARIZATION["wire"]["quick"].run.model, Summarizer),
    "masked": (PRETRAINING["mlm"]["quick"].run.model, BertForPretraining),
    "language": (LANGUAGE, TransformerXL),
    "vqa": (MINI, lambda config: Answerer(config, SMALL.load(Path()))),
}


def initial(name: str, **changes: object) -> dict[str, Tensor]:
    config, make = MODELS[name]
    torch.manual_seed(0)
    return make(replace(config, **changes)).state_dict()


@pytest.mark.parametrize("name", MODELS)
def test_all_variants_share_what_they_have_in_common(name: str) -> None:
    order = "causal" if name == "language" else "none"
    kinds = [{"attention": each} for each in ATTENTIONS.values() if order in each.orders]
    config, _ = MODELS[name]
    if hasattr(config, "norm"):
        norms = [replace(each, mean="running") if name == "language" and hasattr(each, "mean") else each
                 for each in NORMS.values()]  # fmt: skip
        kinds += [{"norm": each} for each in norms]
    first = initial(name, **kinds[0])
    for kind in kinds[1:]:
        other = initial(name, **kind)
        common = first.keys() & other.keys()
        assert len(common) > 0.7 * len(first)
        differing = [key for key in sorted(common) if not torch.equal(first[key], other[key])]
        assert not differing, kind
