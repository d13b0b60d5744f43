from dataclasses import replace

import pytest
import torch

from common.attention import ATTENTIONS
from common.blocks import NORMS
from common.errors import WrongUseError
from common.runtime import parameter_count
from lra.data import Sequences
from lra.model import Classifier, Model
from lra.presets import LRA_JAX, XIONG2021

TINY = Model(
    vocabulary=16, max_length=12, classes=10, layers=1, dim=8, heads=2, ffn_dim=16, dropout=0.0, attention_dropout=0.0
)
ENCODER_VARIANTS = [name for name, config in ATTENTIONS.items() if "none" in config.orders]


def batch(length: int = 6) -> tuple[torch.Tensor, torch.Tensor]:
    tokens = torch.randint(1, 16, (3, length))
    real = torch.arange(length) < torch.tensor([[length], [length - 2], [1]])
    return tokens * real, real


def test_xiongs_parameters_are_counted() -> None:
    """lra.md section 2.1, with the legacy vocabulary of 32."""
    assert parameter_count(Classifier(replace(XIONG2021.model, vocabulary=32))) == 209_802


def test_lra_jax_has_its_shapes() -> None:
    model = Classifier(LRA_JAX.model)
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
            assert all(torch.equal(value, other[key]) for key, value in softmax.items())


def test_models_that_cannot_read_the_task_are_refused() -> None:
    TINY.check_task(longest=12, symbols=16, classes=10)
    with pytest.raises(WrongUseError, match=r"max_length 12 is below the longest sequence, 13"):
        replace(TINY, pooling="cls").check_task(longest=12, symbols=16, classes=10)
    with pytest.raises(WrongUseError, match="at least 11"):
        TINY.check_task(longest=5, symbols=16, classes=11)
    with pytest.raises(WrongUseError, match="vocabulary 16 is below the 17 symbols"):
        TINY.check_task(longest=5, symbols=17, classes=10)


def test_a_batch_is_cut_moved_and_counted() -> None:
    tokens, real = batch()
    whole = Sequences(tokens_padded=tokens, real=real, labels=torch.tensor([1, 2, 3]))
    assert (len(whole), whole.weight(), whole.tokens()) == (3, 3, 6 + 4 + 1)
    assert whole.rows(1, 3).labels.tolist() == [2, 3]
    assert whole.to(torch.device("cpu")).labels.tolist() == [1, 2, 3]
