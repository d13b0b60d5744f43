"""Each family of checkpoints against transformers, both ways, on random tiny models: hidden states, scores, u = 0."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from seqarena.common.attention.hybrid import Hybrid
from seqarena.common.attention.visibility import Visibility
from seqarena.common.model.bert.checkpoint import load, save
from seqarena.common.model.bert.model import BertForPretraining

pytestmark = pytest.mark.extras

SIZES: dict[str, Any] = {
    "num_hidden_layers": 3, "hidden_size": 24, "num_attention_heads": 4, "intermediate_size": 40, "vocab_size": 50,
    "max_position_embeddings": 16,
}  # fmt: skip
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("BertForPreTraining", SIZES),
    "albert": ("AlbertForPreTraining", {**SIZES, "embedding_size": 10}),
    "albert, embeddings as wide as layers": ("AlbertForMaskedLM", {**SIZES, "embedding_size": 24}),
    "roberta": ("RobertaForMaskedLM", {**SIZES, "type_vocab_size": 1, "layer_norm_eps": 1e-5}),
    "distilbert": ("DistilBertForMaskedLM", {
        "n_layers": 3, "dim": 24, "n_heads": 4, "hidden_dim": 40, "vocab_size": 50, "max_position_embeddings": 16,
        "sinusoidal_pos_embds": True,
    }),
    "electra": ("ElectraForMaskedLM", {**SIZES, "embedding_size": 10}),
    "electra, embeddings as wide as layers": ("ElectraForMaskedLM", {**SIZES, "embedding_size": 24}),
    "electra, a discriminator": ("ElectraForPreTraining", {**SIZES, "embedding_size": 10}),
}  # fmt: skip
HEADS = {"BertForPreTraining", "AlbertForPreTraining"}
"""Classes with a head of the segment order."""


def made(kind: str) -> tuple[torch.nn.Module, str]:
    """Returns a model of the library whose norms and biases are random too, and its model type."""
    import transformers  # noqa: PLC0415

    architecture, sizes = KINDS[kind]
    model_class = getattr(transformers, architecture)
    torch.manual_seed(0)
    theirs = model_class(model_class.config_class(**sizes)).eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
        if kind == "roberta":  # rows of no position
            theirs.roberta.embeddings.position_embeddings.weight[:2] = 0
    return theirs, kind.partition(",")[0]


def inputs(kind: str) -> dict[str, torch.Tensor]:
    """Returns sequences of three lengths with two segments, with token ids above those of padding."""
    length = 14
    real = torch.arange(length)[None] < torch.tensor([[length], [length - 3], [1]])
    pad = 1 if kind == "roberta" else 0
    tokens = torch.where(real, torch.randint(2, 50, (3, length), generator=torch.Generator().manual_seed(1)), pad)
    types = (torch.arange(length) > 5).long().expand(3, -1)
    found = {"input_ids": tokens, "attention_mask": real.long()}
    return found if kind in ("distilbert", "roberta") else {**found, "token_type_ids": types}


def ours(model: BertForPretraining, given: dict[str, torch.Tensor]) -> tuple[torch.Tensor, ...]:
    real = given["attention_mask"].bool()
    seen = Visibility(query_real=real, key_real=real)
    types = (torch.arange(14) > 5).long().expand(3, -1)  # ignored by models without two types
    with torch.no_grad():
        hidden = model.eval().bert(given["input_ids"], types, seen)
        scores, order = model(given["input_ids"], types, seen, torch.arange(given["input_ids"].numel()))
    return hidden, scores.view(*hidden.shape[:2], -1), order


def assert_same(model: BertForPretraining, theirs: Any, kind: str) -> None:
    given = inputs(kind.partition(",")[0])
    real = given["attention_mask"].bool()
    with torch.no_grad():
        body = theirs.base_model(**given)
        found = theirs(**given)
    hidden, scores, order = ours(model, given)
    assert (hidden - body.last_hidden_state)[real].abs().max() <= 1e-5
    assert (model.bert.pooler is not None) == (getattr(body, "pooler_output", None) is not None)
    if model.bert.pooler is not None:
        assert (model.bert.pooled(hidden) - body.pooler_output).abs().max() <= 1e-5
    logits = found.get("prediction_logits", found.get("logits"))
    if logits.ndim == 3:  # a discriminator has no scores of tokens
        assert (scores - logits)[real].abs().max() <= 1e-5
    assert (order is None) == (type(theirs).__name__ not in HEADS)
    if order is not None:
        names = ("seq_relationship_logits", "sop_logits")
        assert (order - next(found[name] for name in names if name in found)).abs().max() <= 1e-5


@pytest.mark.parametrize("kind", list(KINDS))
def test_we_read_what_they_write_and_they_read_what_we_write(kind: str, tmp_path: Path) -> None:
    theirs, family = made(kind)
    theirs.save_pretrained(tmp_path / "theirs")  # type: ignore[operator]
    model, report = load(str(tmp_path / "theirs"))
    is_discriminator = kind.endswith("discriminator")
    assert {name.split(".")[0] for name in report.unused} == (
        {"discriminator_predictions"} if is_discriminator else set()
    )
    assert {name.split("_")[0] for name in report.new} == ({"generator"} if is_discriminator else set())
    assert_same(model, theirs, kind)
    save(tmp_path / "ours", model)
    again = type(theirs).from_pretrained(tmp_path / "ours").eval()  # type: ignore[attr-defined]
    assert again.config.model_type == family
    if not is_discriminator:
        assert_same(model, again, kind)
    body = theirs.state_dict()
    for name, tensor in again.base_model.state_dict(prefix=f"{again.base_model_prefix}.").items():
        assert torch.equal(tensor, body[name]), name
    second, report = load(str(tmp_path / "ours"))
    assert (report.new, report.unused) == ((), ())
    assert second.bert.config == model.bert.config
    assert all(torch.equal(tensor, second.state_dict()[name]) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize("kind", list(KINDS))
def test_automodel_opens_what_we_write(kind: str, tmp_path: Path) -> None:
    import transformers  # noqa: PLC0415

    theirs, family = made(kind)
    theirs.save_pretrained(tmp_path / "theirs")  # type: ignore[operator]
    model, _ = load(str(tmp_path / "theirs"))
    save(tmp_path / "ours", model)
    body = transformers.AutoModel.from_pretrained(tmp_path / "ours").eval()
    given = inputs(family)
    with torch.no_grad():
        found = body(**given).last_hidden_state
    assert (found - ours(model, given)[0])[given["attention_mask"].bool()].abs().max() <= 1e-5


@pytest.mark.parametrize("kind", list(KINDS))
def test_a_body_alone_is_read(kind: str, tmp_path: Path) -> None:
    """MiniLM, BGE and E5 are stored like this, without prefix and heads."""
    theirs, family = made(kind)
    theirs.base_model.save_pretrained(tmp_path)  # type: ignore[operator, union-attr]
    model, report = load(str(tmp_path))
    assert report.unused == ()
    given = inputs(family)
    with torch.no_grad():
        found = theirs.base_model(**given).last_hidden_state  # type: ignore[operator, union-attr]
    assert (found - ours(model, given)[0])[given["attention_mask"].bool()].abs().max() <= 1e-5


@pytest.mark.parametrize("kind", list(KINDS))
def test_hnas_with_u_zero_is_their_function(kind: str, tmp_path: Path) -> None:
    theirs, family = made(kind)
    theirs.save_pretrained(tmp_path / "theirs")  # type: ignore[operator]
    plain, _ = load(str(tmp_path / "theirs"))
    model, report = load(str(tmp_path / "theirs"), attention=Hybrid(u=0.0))
    weights = [name for name in report.new if ".u." in name]
    assert len(weights) == (1 if family == "albert" else 3)
    given = inputs(family)
    assert torch.equal(ours(model, given)[0], ours(plain, given)[0])
    save(tmp_path / "ours", model)
    assert json.loads((tmp_path / "ours" / "config.json").read_text())["model_type"] == f"seqarena-{family}"
    again, report = load(str(tmp_path / "ours"))
    assert (report.new, report.unused) == ((), ())
    assert all(torch.equal(tensor, again.state_dict()[name]) for name, tensor in model.state_dict().items())
