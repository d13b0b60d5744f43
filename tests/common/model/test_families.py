"""Families of checkpoints without transformers: names, positions, refusals, shared layers. See test_families_oracle."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from seqarena.common.attention import ATTENTIONS
from seqarena.common.attention.visibility import Visibility
from seqarena.common.checksums import CHECKSUMS
from seqarena.common.errors import BadDataError, WrongUseError
from seqarena.common.model.attention_maps import attention_maps
from seqarena.common.model.bert.checkpoint import load, save
from seqarena.common.model.bert.families import FAMILIES
from seqarena.common.model.bert.model import BertConfig, BertForPretraining
from seqarena.common.model.diagnostics import diagnose
from seqarena.common.model.norms import NORMS
from seqarena.common.runs.config import from_json, to_json
from tests.common.model.families import CONFIGS, SMALL

TOKENS = torch.randint(0, 400, (2, 9), generator=torch.Generator().manual_seed(0))
TYPES = (torch.arange(9) > 4).long().expand(2, -1)
NAMES = {
    "bert": {"bert.embeddings.word_embeddings.weight", "bert.encoder.layer.2.attention.self.query.bias"},
    "albert": {"albert.encoder.embedding_hidden_mapping_in.weight", "predictions.LayerNorm.weight",
               "albert.encoder.albert_layer_groups.0.albert_layers.0.ffn_output.weight"},
    "electra": {"electra.embeddings_project.bias", "electra.encoder.layer.1.output.LayerNorm.weight",
                "generator_lm_head.bias", "generator_predictions.dense.weight"},
    "distilbert": {"distilbert.transformer.layer.0.attention.q_lin.weight", "vocab_projector.bias",
                   "distilbert.transformer.layer.2.sa_layer_norm.weight", "vocab_layer_norm.weight"},
    "roberta": {"roberta.encoder.layer.0.intermediate.dense.bias", "lm_head.layer_norm.weight", "lm_head.bias"},
}  # fmt: skip
"""Some tensors of each family by their public names."""


def model_of(family: str, **changes: Any) -> BertForPretraining:
    torch.manual_seed(1)
    return BertForPretraining(replace(CONFIGS[family], **changes), sentences=False, family=family).eval()


def hidden(model: BertForPretraining) -> torch.Tensor:
    with torch.no_grad():
        return model.eval().bert(TOKENS, TYPES, Visibility())


def as_public(folder: Path, model: BertForPretraining) -> dict[str, Any]:
    """Writes a model as a checkpoint that is not of this project, and returns its config.json."""
    save(folder, model)
    for name in ("seqarena.json", CHECKSUMS):
        (folder / name).unlink()
    config: dict[str, Any] = json.loads((folder / "config.json").read_text())
    return config


@pytest.mark.parametrize("family", list(CONFIGS))
def test_a_family_has_its_names_and_is_read_again(family: str, tmp_path: Path) -> None:
    model = model_of(family)
    assert as_public(tmp_path, model)["model_type"] == family
    tensors = load_file(tmp_path / "model.safetensors")
    assert tensors.keys() >= NAMES[family]
    assert not [name for name in tensors if name.startswith("seqarena.")]
    again, report = load(str(tmp_path))
    assert (report.new, report.unused) == ((), ())
    assert again.bert.config == model.bert.config
    assert torch.equal(hidden(model), hidden(again))


@pytest.mark.parametrize("family", list(CONFIGS))
@pytest.mark.parametrize("norm", list(NORMS))
def test_another_variant_keeps_every_shared_tensor(family: str, norm: str, tmp_path: Path) -> None:
    as_public(tmp_path, model_of(family))
    if (family, norm) == ("albert", "peri"):
        with pytest.raises(WrongUseError, match="the first layer of the norm peri differs"):
            load(str(tmp_path), norm=NORMS[norm])
        return
    plain, _ = load(str(tmp_path))
    model, report = load(str(tmp_path), attention=ATTENTIONS["hnas"], norm=NORMS[norm])
    assert all(name.startswith("seqarena.") for name in report.new)
    norms = {FAMILIES[family].public_name(f"bert.encoder.layers.0.residual.{part}.weight").split(".")[-2]
             for part in ("attention_norm", "feed_forward_norm")}  # fmt: skip
    assert {name.split(".")[-2] for name in report.unused} == (norms if norm == "rezero" else set())
    theirs = plain.state_dict()
    assert all(torch.equal(tensor, theirs[name]) for name, tensor in model.state_dict().items() if name in theirs)
    save(tmp_path / "own", model)
    assert json.loads((tmp_path / "own" / "config.json").read_text())["model_type"] == f"seqarena-{family}"
    again, report = load(str(tmp_path / "own"))
    assert (report.new, report.unused) == ((), ())
    assert torch.equal(hidden(model), hidden(again))


def test_two_rows_of_robertas_positions_are_of_no_token(tmp_path: Path) -> None:
    model = model_of("roberta")
    assert as_public(tmp_path, model)["max_position_embeddings"] == 82
    stored = load_file(tmp_path / "model.safetensors")["roberta.embeddings.position_embeddings.weight"]
    assert torch.equal(stored[2:], model.bert.embeddings.position.weight)
    assert not stored[:2].any()


def test_a_shared_layer_is_every_layer() -> None:
    """Its parameters are counted once, and hnas has one u; diagnostics have as many layers as the model."""
    shared = model_of("albert", attention=ATTENTIONS["hnas"])
    apart = model_of("albert", attention=ATTENTIONS["hnas"], shared_layers=False)
    one = shared.bert.encoder.layers[0].state_dict()
    for layer in apart.bert.encoder.layers:
        layer.load_state_dict(one)
    apart.bert.embeddings.load_state_dict(shared.bert.embeddings.state_dict())
    assert torch.equal(hidden(shared), hidden(apart))
    count = sum(each.numel() for each in one.values())
    sizes = [sum(each.numel() for each in model.parameters()) for model in (shared, apart)]
    assert sizes[1] - sizes[0] == 2 * count
    found = diagnose(shared, lambda: hidden(shared))
    assert (len(found["token_similarity"]), len(found["hybrid_weight"])) == (3, 1)
    names = [each["name"].partition(", ")[2] for each in attention_maps(shared, lambda: hidden(shared))]
    assert names == ["", "call 2", "call 3"]


def test_a_model_without_two_types_ignores_segments() -> None:
    for family in ("distilbert", "roberta"):
        model = model_of(family)
        with torch.no_grad():
            assert torch.equal(hidden(model), model.bert(TOKENS, torch.zeros_like(TYPES), Visibility()))


@pytest.mark.parametrize(("config", "family"), [
    *((CONFIGS[name], name) for name in ("bert", "albert", "electra", "distilbert")),
    (replace(SMALL, embedding_dim=8), "seqarena-bert"), (replace(SMALL, token_types=0, norm_eps=1e-5), "seqarena-bert"),
    (replace(SMALL, shared_layers=True), "seqarena-bert"),
    (replace(CONFIGS["electra"], activation="relu"), "seqarena-bert"),
])  # fmt: skip
def test_a_new_model_is_written_in_the_first_family_that_has_its_fields(
    config: BertConfig, family: str, tmp_path: Path
) -> None:
    model = BertForPretraining(config)
    save(tmp_path, model)
    assert json.loads((tmp_path / "config.json").read_text())["model_type"] == family
    again, report = load(str(tmp_path))
    assert (report.new, report.unused) == ((), ())
    assert torch.equal(hidden(model), hidden(again))


@pytest.mark.parametrize(("family", "changes", "message"), [
    ("albert", {"num_hidden_groups": 2}, "expected num_hidden_groups 1, found 2"),
    ("albert", {"inner_group_num": 3}, "expected inner_group_num 1, found 3"),
    ("roberta", {"position_embedding_type": "relative_key"}, "expected position_embedding_type absolute"),
    ("roberta", {"pad_token_id": 0}, "expected pad_token_id 1, found 0"),
    ("roberta", {"hidden_act": "relu"}, "expected hidden_act gelu, found relu"),
    ("distilbert", {"activation": "silu"}, "expected activation gelu, gelu_new, gelu_pytorch_tanh, relu, found silu"),
    ("electra", {"hidden_size": None}, "int"),
    ("bert", {"is_decoder": True}, "expected an encoder, found is_decoder or add_cross_attention true"),
    ("bert", {"num_hidden_layers": 2.7}, "expected a number for num_hidden_layers, whole if it counts, found 2.7"),
    ("bert", {"num_hidden_layers": True}, "expected a number for num_hidden_layers, whole if it counts, found True"),
    *(("bert", {"model_type": kind}, f"expected model_type {', '.join(FAMILIES)}, found {kind}")
      for kind in ("modernbert", "deberta-v2", "t5", "xlm-roberta", "seqarena-bert")),
])  # fmt: skip
def test_what_is_not_read_is_one_message(family: str, changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    config = as_public(tmp_path, model_of(family))
    (tmp_path / "config.json").write_text(json.dumps(config | changes))
    with pytest.raises(BadDataError, match=message):
        load(str(tmp_path))


def test_tensors_of_another_family_are_not_its_body(tmp_path: Path) -> None:
    config = as_public(tmp_path, model_of("bert"))
    (tmp_path / "config.json").write_text(json.dumps(config | {"model_type": "roberta", "pad_token_id": 1}))
    with pytest.raises(BadDataError, match=r"not a whole roberta, .* tensors of its body are missing"):
        load(str(tmp_path))


def test_configs_from_before_a_field_was_added_are_read() -> None:
    values = to_json(SMALL)
    added = ("embedding_dim", "shared_layers", "relative_positions", "query_key_norm")
    earlier = {name: value for name, value in values.items() if name not in added}
    assert from_json(BertConfig, earlier) == SMALL
    assert to_json(SMALL, later=False).keys() == earlier.keys()
    assert to_json(replace(SMALL, shared_layers=True), later=False).keys() == {*earlier, "shared_layers"}
    with pytest.raises(ValueError, match=r"unknown or missing fields \['token_types'\]"):
        from_json(BertConfig, {name: value for name, value in earlier.items() if name != "token_types"})
