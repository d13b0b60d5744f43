"""Google's checkpoints against transformers, whose models get the same numbers by a map that is written here alone."""

from typing import Any

import pytest
import torch

from seqarena.common.attention.visibility import Visibility
from seqarena.common.model.bert.checkpoint import load
from tests.common.model.google.write import CONFIGS, HERE, NAMES, values, variables

pytestmark = pytest.mark.extras


def module_of(model: Any, kind: str, scope: str) -> Any:
    """Returns the module of the library that has the variables of a scope of Google's code."""
    body = model.bert if kind == "bert" else model.albert
    layer = body.encoder.albert_layer_groups[0].albert_layers[0] if kind == "albert" else None
    head = model.cls.predictions.transform if kind == "bert" else model.predictions
    outside = {
        "bert/embeddings/LayerNorm": body.embeddings.LayerNorm,
        "bert/pooler/dense": body.pooler.dense if kind == "bert" else body.pooler,
        "cls/predictions/transform/dense": head.dense, "cls/predictions/transform/LayerNorm": head.LayerNorm,
    }  # fmt: skip
    if scope in outside:
        return outside[scope]
    if layer is not None:
        group = "bert/encoder/transformer/group_0/inner_group_0"
        return {
            "bert/encoder/embedding_hidden_mapping_in": body.encoder.embedding_hidden_mapping_in,
            f"{group}/attention_1/self/query": layer.attention.query,
            f"{group}/attention_1/self/key": layer.attention.key,
            f"{group}/attention_1/self/value": layer.attention.value,
            f"{group}/attention_1/output/dense": layer.attention.dense,
            f"{group}/LayerNorm": layer.attention.LayerNorm,
            f"{group}/ffn_1/intermediate/dense": layer.ffn,
            f"{group}/ffn_1/intermediate/output/dense": layer.ffn_output,
            f"{group}/LayerNorm_1": layer.full_layer_layer_norm,
        }[scope]
    index, _, part = scope.removeprefix("bert/encoder/layer_").partition("/")
    each = body.encoder.layer[int(index)]
    return {
        "attention/self/query": each.attention.self.query, "attention/self/key": each.attention.self.key,
        "attention/self/value": each.attention.self.value, "attention/output/dense": each.attention.output.dense,
        "attention/output/LayerNorm": each.attention.output.LayerNorm, "intermediate/dense": each.intermediate.dense,
        "output/dense": each.output.dense, "output/LayerNorm": each.output.LayerNorm,
    }[part]  # fmt: skip


def library(kind: str) -> Any:
    """Returns a model of the library with the numbers of a checkpoint."""
    import transformers  # noqa: PLC0415

    name = {"bert": "Bert", "albert": "Albert"}[kind]
    config = dict(CONFIGS[kind])
    config |= {"hidden_act": "gelu_new"} if kind == "albert" else {}
    model = getattr(transformers, f"{name}ForPreTraining")(getattr(transformers, f"{name}Config")(**config)).eval()
    body = model.bert if kind == "bert" else model.albert
    single = {
        "bert/embeddings/word_embeddings": body.embeddings.word_embeddings.weight,
        "bert/embeddings/position_embeddings": body.embeddings.position_embeddings.weight,
        "bert/embeddings/token_type_embeddings": body.embeddings.token_type_embeddings.weight,
        "cls/predictions/output_bias": model.cls.predictions.bias if kind == "bert" else model.predictions.bias,
    }
    order = model.cls.seq_relationship if kind == "bert" else model.sop_classifier.classifier
    single |= {"cls/seq_relationship/output_weights": order.weight, "cls/seq_relationship/output_bias": order.bias}
    filled = set()
    for name, shape in variables(kind).items():
        numbers = torch.from_numpy(values(name, shape))
        scope, _, last = name.rpartition("/")
        if name in single:
            parameter = single[name]
        else:
            module = module_of(model, kind, scope)
            parameter = module.weight if last in ("kernel", "gamma") else module.bias
        assert parameter.shape == (numbers.T.shape if last == "kernel" else numbers.shape)
        parameter.data = numbers.T if last == "kernel" else numbers
        filled.add(id(parameter))
    model.tie_weights()
    assert {id(each) for each in model.parameters()} == filled
    return model


@pytest.mark.parametrize("kind", list(NAMES))
def test_hidden_states_and_scores_are_the_librarys(kind: str) -> None:
    theirs = library(kind)
    ours, report = load(str(HERE / kind))
    assert (report.new, report.unused) == ((), ())
    length = 20
    real = torch.arange(length)[None] < torch.tensor([[length], [length - 5], [1]])
    tokens = torch.randint(0, 24, (3, length), generator=torch.Generator().manual_seed(1))
    types = (torch.arange(length) > 7).long().expand(3, -1)
    seen = Visibility(query_real=real, key_real=real)
    given = {"input_ids": tokens, "token_type_ids": types, "attention_mask": real.long()}
    with torch.no_grad():
        hidden = ours.eval().bert(tokens, types, seen)
        scores, order = ours(tokens, types, seen, torch.arange(3 * length))
        body, found = theirs.base_model(**given), theirs(**given)
    logits = found.seq_relationship_logits if kind == "bert" else found.sop_logits
    assert order is not None
    for one, other in [
        (hidden[real], body.last_hidden_state[real]), (order, logits),
        (scores.view(3, length, -1)[real], found.prediction_logits[real]),
    ]:  # fmt: skip
        assert (one - other).abs().max() <= 1e-5
        assert other.abs().max() > 0.1
