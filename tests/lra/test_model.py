from dataclasses import replace

import numpy as np
import pytest
import torch

from seqarena.common.attention import ATTENTIONS
from seqarena.common.attention.mixer import MixerConfig
from seqarena.common.data.batches import Ragged
from seqarena.common.errors import WrongUseError
from seqarena.common.model.norms import NORMS
from seqarena.common.model.norms.base import LayerPosition
from seqarena.common.training.runtime import parameter_count
from seqarena.lra.data import Sequences
from seqarena.lra.data.listops import ListOps
from seqarena.lra.model import Classifier, Model
from seqarena.lra.presets import PRESETS

TINY = Model(
    vocabulary=16, max_length=12, classes=10, layers=1, dim=8, heads=2, ffn_dim=16, dropout=0.0, attention_dropout=0.0
)
ENCODER_VARIANTS = [name for name, config in ATTENTIONS.items() if "none" in config.orders]


def batch(length: int = 6) -> tuple[torch.Tensor, torch.Tensor]:
    tokens = torch.randint(1, 16, (3, length))
    real = torch.arange(length) < torch.tensor([[length], [length - 2], [1]])
    return tokens * real, real


@pytest.mark.parametrize(
    ("task", "vocabulary", "parameters"),
    [("listops", 32, 209_802), ("text", 512, 370_562), ("retrieval", 512, 395_138), ("image", 512, 174_986),
     ("pathfinder", 512, 173_954)],
)  # fmt: skip
def test_xiongs_parameters_are_counted(task: str, vocabulary: int, parameters: int) -> None:
    """lra.md section 2.1, with the vocabularies of the published code."""
    run = PRESETS[task]["xiong2021"].run
    model = Classifier(replace(run.model, vocabulary=vocabulary), run.data.sequences)
    assert parameter_count(model) == parameters


def test_lra_jax_has_its_shapes() -> None:
    model = Classifier(PRESETS["listops"]["lra-jax"].run.model)
    assert model.head[0].weight.shape == (1024, 512)
    assert len(model.encoder.layers) == 4
    assert model.encoder.layers[0].attention.query.bias is None
    assert model.cls is not None
    assert not model.cls.any()


@pytest.mark.parametrize("name", ENCODER_VARIANTS)
@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_padding_changes_no_logit(name: str, pooling: str) -> None:
    torch.manual_seed(0)
    model = Classifier(replace(TINY, attention=ATTENTIONS[name], pooling=pooling)).double()
    tokens, real = batch()
    longer = torch.cat([tokens, torch.zeros(3, 5, dtype=torch.long)], dim=1)
    more = torch.cat([real, torch.zeros(3, 5, dtype=torch.bool)], dim=1)
    torch.testing.assert_close(model(longer, more), model(tokens, real), rtol=0, atol=1e-12)


@pytest.mark.parametrize("pairing", ["product", "concat"])
def test_two_documents_go_through_one_tower_apart(pairing: str) -> None:
    torch.manual_seed(0)
    model = Classifier(replace(TINY, pairing=pairing, head_dims=(6, 5)), 2).double()
    (first, real), (second, more) = batch(6), batch(6)
    tokens, seen = torch.stack([first, second], dim=1), torch.stack([real, more], dim=1)
    a, b = (model._pool(*model._encode(*each)) for each in ((first, real), (second, more)))
    expected = model.head(torch.cat([a, b, a * b, a - b] if pairing == "product" else [a, b], dim=1))
    torch.testing.assert_close(model(tokens, seen), expected, rtol=0, atol=1e-12)
    assert [layer.out_features for layer in model.head if hasattr(layer, "out_features")] == [6, 5, 10]


def test_a_batch_can_be_padded_to_all_that_the_model_reads() -> None:
    """What the step benchmark compares with: the same logits, by the formula on the full matrix."""
    tokens, real = batch()
    for pooling in ("mean", "cls"):
        config = replace(TINY, pooling=pooling)
        whole = Sequences(tokens=tokens, real=real, labels=torch.zeros(3, dtype=torch.long))
        longer = whole.longer(config.longest)
        assert longer.real.shape == (3, config.longest)
        assert longer.token_count() == whole.token_count()
        model = Classifier(config).double()
        torch.testing.assert_close(model(longer.tokens, longer.real), model(tokens, real), rtol=0, atol=1e-12)


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_a_batch_without_padding_needs_no_mask(pooling: str) -> None:
    tokens, _ = batch()
    real = torch.ones_like(tokens, dtype=torch.bool)
    whole = Sequences(tokens=tokens, real=real, labels=torch.zeros(3, dtype=torch.long))
    on_device = whole.to(torch.device("cpu"))
    assert on_device.real is None
    assert on_device.token_count() == whole.token_count() == tokens.numel()
    assert on_device.rows(0, 1).real is None
    some = replace(whole, real=real & (torch.arange(tokens.shape[1]) < 3)).to(torch.device("cpu"))
    assert some.real is not None
    longer = on_device.longer(tokens.shape[1] + 2).real
    assert longer is not None
    assert torch.equal(longer, torch.nn.functional.pad(real, (0, 2)))
    model = Classifier(replace(TINY, pooling=pooling))
    assert torch.equal(model(tokens, None), model(tokens, real))


def test_the_first_token_can_stand_for_all() -> None:
    torch.manual_seed(0)
    tokens, real = batch()
    model = Classifier(replace(TINY, pooling="first"))
    assert torch.equal(model._pool(*model._encode(tokens, real)), model._encode(tokens, real)[0][:, 0])


def test_black_pixels_are_tokens_and_padding_only_where_asked() -> None:
    split = Ragged.of([np.array([0, 7, 0, 9], dtype=np.uint8)], [1], shift=1)
    tokens, real = split.padded(np.array([0]))
    assert tokens.tolist() == [[1, 8, 1, 10]]
    assert real.tolist() == [[True] * 4]
    tokens, real = replace(split, zero_is_padding=True).padded(np.array([0]))
    assert real.tolist() == [[False, True, False, True]]
    model = Classifier(TINY)
    nothing = torch.zeros(1, 4, dtype=torch.bool)
    assert model(tokens, nothing).isfinite().all()  # an image that is all black


def test_heads_may_be_narrower_than_the_stream() -> None:
    model = Classifier(replace(TINY, attention_dim=4))
    assert model.encoder.layers[0].attention.query.weight.shape == (4, 8)
    assert model.encoder.layers[0].attention.output.weight.shape == (8, 4)
    with pytest.raises(WrongUseError, match=r"model.attention_dim 5 is not a multiple of model.heads 2"):
        replace(TINY, attention_dim=5).check_task(ListOps(), longest=5)


def test_mean_pooling_is_over_real_tokens_and_the_legacy_one_over_all() -> None:
    torch.manual_seed(0)
    tokens, real = batch()
    model = Classifier(TINY)
    hidden, _ = model._encode(tokens, real)
    expected = torch.stack([hidden[n, : int(real[n].sum())].mean(dim=0) for n in range(3)])
    torch.testing.assert_close(model._pool(hidden, real), expected)
    legacy = Classifier(TINY, padded_length=12)
    torch.testing.assert_close(legacy._pool(hidden, real), expected * real.sum(dim=1, keepdim=True) / 12)


def test_variants_and_norms_start_from_the_same_numbers() -> None:
    def start(name: str, norm: str) -> dict[str, torch.Tensor]:
        torch.manual_seed(5)
        return Classifier(replace(TINY, attention=ATTENTIONS[name], norm=NORMS[norm])).state_dict()

    softmax = start("softmax", "post")
    for name in ENCODER_VARIANTS:
        for norm in NORMS:
            other = start(name, norm)
            scale = NORMS[norm].initial_scale(LayerPosition(depth=TINY.layers))
            own = ".attention." if isinstance(ATTENTIONS[name], MixerConfig) else "none"  # a mixer's own weights
            for key in (key for key in softmax.keys() & other.keys() if own not in key):
                assert any(torch.equal(factor * softmax[key], other[key]) for factor in (1.0, scale)), key


def test_models_that_cannot_read_the_task_are_refused() -> None:
    TINY.check_task(ListOps(), longest=12)
    with pytest.raises(
        WrongUseError, match=r"max_length: expected at least 13, the length of the longest sequence, found 12"
    ):
        replace(TINY, pooling="cls").check_task(ListOps(), longest=12)
    with pytest.raises(WrongUseError, match="classes: expected at least the task's 10, found 9"):
        replace(TINY, classes=9).check_task(ListOps(), longest=5)
    with pytest.raises(WrongUseError, match="vocabulary: expected at least the task's 16, found 15"):
        replace(TINY, vocabulary=15).check_task(ListOps(), longest=5)


def test_a_batch_is_cut_moved_and_counted() -> None:
    tokens, real = batch()
    whole = Sequences(tokens=tokens, real=real, labels=torch.tensor([1, 2, 3]))
    assert (len(whole), whole.weight(), whole.token_count()) == (3, 3, 6 + 4 + 1)
    assert whole.rows(1, 3).labels.tolist() == [2, 3]
    assert whole.to(torch.device("cpu")).labels.tolist() == [1, 2, 3]
