"""Masks inside models of the transformers library: of every shape and kind, with caches, windows, packed sequences."""

from typing import Any

import pytest
import torch
from torch import nn

from seqarena.common.attention import ATTENTIONS, Visibility
from seqarena.common.attention.doubly_normalized import DoublyNormalized
from seqarena.common.errors import WrongUseError
from seqarena.common.training.runtime import seed_torch
from tests.common.attention.library_models import BIDIRECTIONAL, hidden, lengths, made, tokens

pytestmark = pytest.mark.extras
EXACT = {"atol": 1e-9, "rtol": 1e-9}


class Causal(nn.Module):
    """The attributes of a module that the interface reads."""

    def __init__(self, is_causal: bool = True) -> None:
        super().__init__()
        self.is_causal = is_causal


def attended(name: str, module: nn.Module, *tensors: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    from transformers import AttentionInterface  # noqa: PLC0415

    from seqarena.common.attention.transformers import register  # noqa: PLC0415

    register()
    output: torch.Tensor = AttentionInterface()[name](module, *tensors, mask)[0]
    return output.transpose(1, 2)


def qkv(queries: int = 6, keys: int = 6) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    return [torch.randn(2, 3, size, 4, generator=generator).double() for size in (queries, keys, keys)]


@pytest.mark.parametrize("name", ["sdpa", *BIDIRECTIONAL])
@pytest.mark.parametrize("real", [lengths(9, 5), lengths(9, 5).flip(1)])
def test_a_mask_of_keys_hides_padded_queries_too(name: str, real: torch.Tensor) -> None:
    """(batch, 1, 1, keys), as True and as numbers to add, is the mask of tokens; padding behind or in front."""
    model, ids = made("Bert", name), tokens()
    expected = hidden(model, ids, attention_mask=real)[real.bool()]
    keys = real.bool()[:, None, None, :]
    numbers = torch.zeros(keys.shape, dtype=torch.float64)
    for mask in (keys, *(numbers.masked_fill(~keys, each) for each in (-1e4, torch.finfo(torch.float64).min))):
        found = hidden(model, ids, attention_mask=mask)[real.bool()]
        torch.testing.assert_close(found, expected, atol=2e-6, rtol=1e-6)


@pytest.mark.parametrize("name", ["softmax", "dnas", "x3"])
@pytest.mark.parametrize("shape", [(1, 1, 6, 6), (2, 1, 6, 1), (1, 3, 1, 6), (1, 1, 1, 1), (2, 3, 6, 6)])
def test_axes_of_size_1_are_repeated(name: str, shape: tuple[int, ...]) -> None:
    mask = torch.rand(shape, generator=torch.Generator().manual_seed(0)) > 0.3
    tensors, module = qkv(), Causal(is_causal=False)
    expected = attended(name, module, *tensors, mask=mask.expand(2, 3, 6, 6).clone())
    torch.testing.assert_close(attended(name, module, *tensors, mask=mask), expected, **EXACT)


@pytest.mark.parametrize("name", ["softmax", "dnas", "x3"])
def test_a_mask_of_another_kind_is_one_line(name: str) -> None:
    model, ids = made("Bert", name), tokens()
    for mask in (lengths(9, 5)[:, None, None, :], torch.ones(2, 1, 9, 9, dtype=torch.int32)):
        with pytest.raises(
            WrongUseError, match=r"True and False \(mask.bool\(\)\), or floating-point .* found torch.int"
        ):
            model(ids, attention_mask=mask)
    with pytest.raises(
        WrongUseError, match=r"expected shape \(2, 3, 9, 9\) .*, or 1 on any axis; found \(2, 1, 9, 8\)"
    ):
        model(ids, attention_mask=torch.ones(2, 1, 9, 8).bool())
    with pytest.raises(WrongUseError, match=r"expected shape \(batch, keys\), or .* found \(2, 9, 9\)"):
        model(ids, attention_mask=torch.ones(2, 9, 9))


def swin(name: str, monkeypatch: pytest.MonkeyPatch, hiding: float) -> Any:
    """Returns a Swin whose shifted windows hide by adding a number, with trained biases of its windows."""
    import transformers  # noqa: PLC0415
    from transformers.models.swin import modeling_swin  # noqa: PLC0415

    from seqarena.common.attention.transformers import attach, register  # noqa: PLC0415

    register()
    layer = modeling_swin.SwinLayer
    theirs = vars(layer).get("theirs", layer.get_attn_mask)
    monkeypatch.setattr(layer, "theirs", theirs, raising=False)

    def mask_of(self: Any, *rest: Any, **named: Any) -> Any:
        mask = theirs(self, *rest, **named)
        return None if mask is None else mask * (hiding / -100)

    monkeypatch.setattr(layer, "get_attn_mask", mask_of)
    settings = {"image_size": 16, "patch_size": 2, "num_channels": 1, "embed_dim": 16, "depths": [2], "num_heads": [2],
                "window_size": 4, "initializer_range": 0.5}  # fmt: skip
    seed_torch(0)
    model = transformers.SwinModel(transformers.SwinConfig(**settings, attn_implementation=name)).double().eval()
    for parameter_name, parameter in model.named_parameters():
        if parameter_name.endswith("relative_position_bias_table"):
            nn.init.normal_(parameter, std=2.0)
    return attach(model).double() if name == "hnas" else model


@pytest.mark.parametrize("name", ["x3-14", *BIDIRECTIONAL])
def test_a_finite_number_hides_as_an_infinite_one(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Swin's -100, added to a bias of its windows, which stays and is trained."""
    pictures = torch.randn(2, 1, 16, 16, generator=torch.Generator().manual_seed(0)).double()
    outputs = {each: swin(name, monkeypatch, each)(pictures).last_hidden_state for each in (-100.0, -1e9)}
    torch.testing.assert_close(outputs[-100.0], outputs[-1e9], **EXACT)
    if name == "softmax":
        torch.testing.assert_close(outputs[-100.0], swin("sdpa", monkeypatch, -100.0)(pictures).last_hidden_state)
    model = swin(name, monkeypatch, -100.0)
    biases = [each for path, each in model.named_parameters() if path.endswith("relative_position_bias_table")]
    model(pictures).last_hidden_state.square().sum().backward()
    assert all(each.grad is not None and bool(each.grad.any()) for each in biases)
    with torch.no_grad():
        biases[0].add_(torch.randn_like(biases[0]))
        assert (model(pictures).last_hidden_state - outputs[-100.0]).abs().max() > 1e-4


def test_a_mask_over_pairs_is_refused_where_inputs_are_transformed() -> None:
    from seqarena.common.attention.transformers import masks  # noqa: PLC0415

    kernel, config = DoublyNormalized(beta="uniform").build(heads=3), DoublyNormalized(beta="uniform")
    mask = torch.ones(1, 1, 6, 6, dtype=torch.bool)
    with pytest.raises(WrongUseError, match="'dnas' does not support a mask over pairs of tokens"):
        masks.attend_pairs("dnas", config, kernel, *qkv(), mask, causal=False)


def test_a_number_that_may_be_a_bias_or_hide_is_refused_where_that_matters() -> None:
    tensors, module = qkv(), Causal(is_causal=False)
    numbers = torch.zeros(1, 1, 6, 6, dtype=torch.float64)
    doubtful = numbers.clone()
    doubtful[..., 2, 3] = -30
    for name in ("dnas", "x3", "exp"):
        with pytest.raises(WrongUseError, match=r"the mask has -30, which may be a bias or hide its pair"):
            attended(name, module, *tensors, mask=doubtful)
        with pytest.raises(WrongUseError, match="the mask has nan"):
            attended(name, module, *tensors, mask=numbers + torch.nan)
    expected = nn.functional.scaled_dot_product_attention(*tensors, attn_mask=doubtful)
    torch.testing.assert_close(attended("softmax", module, *tensors, mask=doubtful), expected, **EXACT)
    kernel, bias = ATTENTIONS["x3"].build(heads=3), torch.randn(1, 3, 6, 6).double()
    torch.testing.assert_close(
        attended("x3", module, *tensors, mask=bias), kernel(*tensors, Visibility(), bias), **EXACT
    )


@pytest.mark.parametrize("name", ["softmax", "recency", "x3"])
@pytest.mark.parametrize(("kind", "changes"), [("Llama", {}), ("Mistral", {"sliding_window": 4})])
@pytest.mark.parametrize("cache_kind", ["DynamicCache", "StaticCache"])
def test_step_by_step_with_a_cache_is_all_at_once(
    name: str, kind: str, changes: dict[str, Any], cache_kind: str
) -> None:
    """Distances too; the second row's first two tokens are padding."""
    import transformers  # noqa: PLC0415

    model, ids = made(kind, name, num_attention_heads=4, num_key_value_heads=2, **changes), tokens()
    real = lengths(7, 9).flip(1)
    whole = hidden(model, ids, attention_mask=real, use_cache=False)
    room = {"max_cache_len": 20} if cache_kind == "StaticCache" else {}
    cache = getattr(transformers, cache_kind)(config=model.config, **room)
    for start, stop in ((0, 4), (4, 6), (6, 7), (7, 8), (8, 9)):
        found = hidden(model, ids[:, start:stop], attention_mask=real[:, :stop], past_key_values=cache)
        shown = real[:, start:stop].bool()
        torch.testing.assert_close(found[shown], whole[:, start:stop][shown], atol=2e-6, rtol=1e-6)


@pytest.mark.parametrize("name", ["softmax", "recency", "x3", "dnas", "hnas"])
def test_packed_sequences_of_a_causal_model_equal_separate_runs(name: str) -> None:
    """By positions that begin again, of which the library makes a mask; compiled it makes one whatever they are."""
    model, ids = made("Llama", name, num_key_value_heads=3), tokens(rows=1)
    positions = torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3, 4]])
    packed = hidden(model, ids, position_ids=positions, use_cache=False)
    for start, stop in ((0, 4), (4, 9)):
        alone = hidden(model, ids[:, start:stop], use_cache=False)
        torch.testing.assert_close(packed[:, start:stop], alone, atol=2e-6, rtol=1e-6)


@pytest.mark.parametrize("name", ["softmax", "recency", "x3", "dnas"])
def test_a_causal_window_is_the_suites(name: str) -> None:
    """A mask over pairs, by the formula, against the suite's own windows, block by block."""
    tensors, window = qkv(), torch.ones(1, 1, 6, 6).bool().tril().triu(-2)
    expected = ATTENTIONS[name].build(heads=3)(*tensors, Visibility(order="causal", window=3))
    torch.testing.assert_close(attended(name, Causal(), *tensors, mask=window), expected, atol=1e-6, rtol=1e-6)


def test_a_mask_of_another_order_of_time_than_the_module_is_refused() -> None:
    """Sums over queries would let the future through, and a distance to a later token is none."""
    tensors, future = qkv(), torch.ones(1, 1, 6, 6).bool()
    for name in ("dnas", "recency"):
        with pytest.raises(WrongUseError, match=f"'{name}' is causal in this module, but the mask shows later tokens"):
            attended(name, Causal(), *tensors, mask=future)
    with pytest.raises(WrongUseError, match="'dnas' is not causal in this module, but the mask hides all later tokens"):
        attended("dnas", Causal(is_causal=False), *tensors, mask=future.tril())
    attended("x3", Causal(), *tensors, mask=future)
    attended("x3", Causal(is_causal=False), *tensors, mask=future.tril())


@pytest.mark.parametrize("name", ["softmax", "recency", "x3", "dnas"])
def test_a_module_that_does_not_say_so_is_causal(name: str) -> None:
    """The library's default; an encoder whose modules do not say otherwise has a mask that does."""
    import transformers  # noqa: PLC0415

    model, ids = made("Llama", name, num_key_value_heads=3), tokens()
    expected = hidden(model, ids, use_cache=False)
    for layer in model.layers:
        del layer.self_attn.is_causal
    torch.testing.assert_close(hidden(model, ids, use_cache=False), expected, **EXACT)
    query = qkv(queries=1)
    if name != "dnas":
        known = attended(name, Causal(), *query, mask=None)
        torch.testing.assert_close(attended(name, nn.Module(), *query, mask=None), known, **EXACT)
    if name == "recency":
        return
    bert, splinter = (made(kind, name, question_token_id=1) for kind in ("Bert", "Splinter"))
    assert not hasattr(splinter.encoder.layer[0].attention.self, "is_causal")
    assert isinstance(splinter, transformers.SplinterModel)
    splinter.encoder.load_state_dict(bert.encoder.state_dict())
    splinter.embeddings.load_state_dict(bert.embeddings.state_dict())
    for mask in (None, lengths(9, 5)):
        torch.testing.assert_close(hidden(splinter, ids, attention_mask=mask), hidden(bert, ids, attention_mask=mask))


@pytest.mark.parametrize("name", ["softmax", "x3", "dnas"])
def test_a_mask_that_is_wanted_whatever_it_holds_is_made(name: str) -> None:
    from transformers.masking_utils import create_bidirectional_mask, create_causal_mask  # noqa: PLC0415

    ours, theirs = made("Bert", name), made("Bert", "sdpa")
    hidden_states, real = torch.zeros(2, 9, 24), lengths(9, 5)
    for mask in (None, real):
        one, other = (
            create_causal_mask(each.config, hidden_states, mask, None, allow_is_causal_skip=False)
            for each in (ours, theirs)
        )
        assert torch.equal(one, other)
        one, other = (
            create_bidirectional_mask(each.config, hidden_states, mask, allow_is_bidirectional_skip=False)
            for each in (ours, theirs)
        )
        assert torch.equal(one, other)


def merged(name: str) -> Any:
    """Returns a T5Gemma2, whose decoder attends to itself and to its encoder at once, under both masks in one."""
    import transformers  # noqa: PLC0415

    from seqarena.common.attention.transformers import register  # noqa: PLC0415

    register()
    text = {"vocab_size": 60, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "head_dim": 8,
            "num_attention_heads": 2, "num_key_value_heads": 1, "sliding_window": 4, "query_pre_attn_scalar": 8,
            "layer_types": ["sliding_attention", "full_attention"]}  # fmt: skip
    vision = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
              "image_size": 28, "patch_size": 14, "vision_use_head": False}  # fmt: skip
    config = transformers.T5Gemma2Config(
        encoder={"text_config": text, "vision_config": vision}, decoder=dict(text), attn_implementation=name
    )
    seed_torch(0)
    return transformers.T5Gemma2Model(config).eval()


def test_a_merged_mask_is_the_librarys() -> None:
    """Softmax is sdpa; x3 lets neither padding nor the future through; dnas knows no padding of two sequences."""
    ids, real = tokens(), lengths(9, 5)
    given = {"input_ids": ids, "decoder_input_ids": ids[:, :6], "attention_mask": real, "use_cache": False}
    with torch.no_grad():
        ours, theirs = (merged(name)(**given).last_hidden_state for name in ("softmax", "sdpa"))
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)
        model = merged("x3")
        before = model(**given).last_hidden_state
        changed = {**given, "input_ids": ids.where(real.bool(), 7), "decoder_input_ids": ids[:, :6].clone()}
        changed["decoder_input_ids"][:, 4:] = 7
        torch.testing.assert_close(model(**changed).last_hidden_state[:, :4], before[:, :4], atol=1e-5, rtol=1e-5)
        with pytest.raises(WrongUseError, match="'dnas' is not supported in cross-attention"):
            merged("dnas")(**given)


@pytest.mark.parametrize("name", ["x1", "x3", "relu", "dnas", "hnas", "recency", "softmax"])
def test_a_causal_model_is_one_graph_without_a_mask_too(name: str) -> None:
    torch._dynamo.reset()
    model, ids = made("Llama", name, num_key_value_heads=3), tokens()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(hidden(compiled, ids, use_cache=False), hidden(model, ids, use_cache=False))


def test_a_compiled_model_refuses_doubtful_numbers_when_it_runs() -> None:
    torch._dynamo.reset()
    model, ids = made("Bert", "x3"), tokens()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    mask = torch.zeros(2, 1, 9, 9, dtype=torch.float64)
    mask[..., 4:] = -100
    torch.testing.assert_close(hidden(compiled, ids, attention_mask=mask), hidden(model, ids, attention_mask=mask))
    with pytest.raises(WrongUseError, match="may be a bias or hide its pair"):
        compiled(ids, attention_mask=mask * 0.3)
