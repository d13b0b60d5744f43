"""Requests of models of the transformers library that are refused: one line each."""

from pathlib import Path
from typing import Any

import pytest
import torch

from seqarena.common.errors import WrongUseError
from tests.common.attention.library_models import TINY, made, tokens

pytestmark = pytest.mark.extras


def test_what_cannot_be_honoured_is_refused() -> None:
    import transformers  # noqa: PLC0415

    from seqarena.common.attention.transformers import attach  # noqa: PLC0415

    model = made("Bert", "dnas")
    for asked in ("softcap", "position_bias", "s_aux", "sinks", "cu_seq_lens_q", "cu_seq_lens_k", "alibi"):
        with pytest.raises(WrongUseError, match=f"attention 'dnas' does not support {asked}"):
            model(tokens(), **{asked: torch.ones(1)})
    with pytest.raises(WrongUseError, match="has a sliding window, but passes no mask"):
        model(tokens(), sliding_window=4)
    with pytest.raises(WrongUseError, match="'recency' is not defined for order 'none'"):
        made("Bert", "recency")(tokens())
    with pytest.raises(WrongUseError, match="PegasusXModel computes some or all of its attention itself"):
        transformers.PegasusXModel(transformers.PegasusXConfig(attn_implementation="x3", d_model=16, encoder_layers=1))
    for kind in ("DebertaV2", "MPNet"):
        config = getattr(transformers, f"{kind}Config")(**TINY, attn_implementation="dnas")
        with pytest.raises(WrongUseError, match=f"{kind}Model computes some or all of its attention itself"):
            getattr(transformers, f"{kind}Model")(config)
        theirs = getattr(transformers, f"{kind}Config")(**TINY)
        with pytest.raises(WrongUseError, match="none of its modules uses the library's AttentionInterface"):
            attach(getattr(transformers, f"{kind}Model")(theirs))
    plain = transformers.BertModel(transformers.BertConfig(**TINY, attn_implementation="hnas"))
    with pytest.raises(WrongUseError, match=r"attach\(model\)"):
        plain(tokens())
    decoder = made("Bert", "dnas", is_decoder=True, add_cross_attention=True)
    with pytest.raises(WrongUseError, match="not supported in cross-attention"):
        decoder(tokens(), encoder_hidden_states=torch.zeros(2, 4, 24, dtype=torch.float64), use_cache=False)


def test_cross_attention_by_the_class_of_self_attention_is_refused() -> None:
    """Also if both sequences have the same length: a padded source's mask would hide tokens of the other."""
    import transformers  # noqa: PLC0415

    from seqarena.common.attention.transformers import register  # noqa: PLC0415

    register()
    settings = {"n_embd": 16, "n_layer": 1, "n_head": 2, "vocab_size": 60, "bos_token_id": 1, "eos_token_id": 2}
    model = transformers.GPT2Model(transformers.GPT2Config(**settings, add_cross_attention=True))
    model.set_attn_implementation("dnas")
    ids = tokens()
    source = torch.zeros(*ids.shape, 16)
    with pytest.raises(WrongUseError, match="not supported in cross-attention"):
        model(ids, encoder_hidden_states=source, use_cache=False)
    settings = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16,
                "encoder_hidden_size": 16, "cross_attention_frequency": 1}  # fmt: skip
    reader = transformers.Blip2QFormerModel(transformers.Blip2QFormerConfig(**settings))
    for name in ("dnas", "sinkhorn"):
        reader.set_attn_implementation(name)
        with pytest.raises(WrongUseError, match="not supported in cross-attention"):
            reader(query_embeds=source, encoder_hidden_states=source)


@pytest.mark.parametrize("kind", ["SiglipVision", "Aimv2Vision"])
def test_a_model_whose_last_layer_pools_by_its_own_attention_is_refused(kind: str) -> None:
    import transformers  # noqa: PLC0415

    from seqarena.common.attention.transformers import register  # noqa: PLC0415

    register()
    settings = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
                "image_size": 8, "patch_size": 4}  # fmt: skip
    config = getattr(transformers, f"{kind}Config")(**settings)
    with pytest.raises(WrongUseError, match=f"{kind}Model computes the attention of .*head.* itself"):
        getattr(transformers, f"{kind}Model")._from_config(config, attn_implementation="x3")


@pytest.mark.parametrize("kind", ["FNet", "Mamba"])
def test_a_model_that_asks_for_no_attention_is_refused(kind: str, tmp_path: Path) -> None:
    """However it is made: from a config, or with its attention changed later."""
    import transformers  # noqa: PLC0415

    from seqarena.common.attention.transformers import register  # noqa: PLC0415

    register()
    settings = {"vocab_size": 60, "hidden_size": 16, "num_hidden_layers": 1, "intermediate_size": 16}
    config = getattr(transformers, f"{kind}Config")(**settings)
    with pytest.raises(
        WrongUseError, match=f"{kind}Model: none of its modules uses the library's AttentionInterface, 'x3'"
    ):
        transformers.AutoModel.from_config(config, attn_implementation="x3")
    plain = transformers.AutoModel.from_config(config, attn_implementation="eager")
    with pytest.raises(
        WrongUseError, match=f"{kind}Model: none of its modules uses the library's AttentionInterface, 'x3'"
    ):
        plain.set_attn_implementation("x3")
    plain.save_pretrained(tmp_path)
    with pytest.raises(
        WrongUseError, match=f"{kind}Model: none of its modules uses the library's AttentionInterface, 'x3'"
    ):
        transformers.AutoModel.from_pretrained(tmp_path, attn_implementation="x3")


def test_a_part_without_attention_refuses_no_model_that_has_it() -> None:
    """A detector's backbone of convolutions has nothing to ask for."""
    import transformers  # noqa: PLC0415

    from seqarena.common.attention.transformers import register  # noqa: PLC0415

    register()
    pictures = transformers.ResNetConfig(embedding_size=8, hidden_sizes=[8], depths=[1], attn_implementation="x3")

    class Both(transformers.PreTrainedModel):
        config_class = transformers.BertConfig

        def __init__(self, config: Any) -> None:
            super().__init__(config)
            self.pictures, self.text = transformers.ResNetModel(pictures), transformers.BertModel(config)
            self.post_init()

    assert Both(transformers.BertConfig(**TINY, attn_implementation="x3")).pictures.config._attn_implementation == "x3"
    with pytest.raises(WrongUseError, match="ResNetModel: none of its modules uses"):
        transformers.ResNetModel(pictures)
    with pytest.raises(WrongUseError, match="DebertaV2Model computes some or all of its attention itself"):
        transformers.DebertaV2Model(transformers.DebertaV2Config(**TINY)).set_attn_implementation("x3")


def test_an_empty_batch_is_one_line() -> None:
    from seqarena.common.attention.transformers.interface import AttentionInterface  # noqa: PLC0415

    made("Bert", "x3")
    nothing = torch.zeros(0, 2, 3, 4)
    for mask in (None, torch.ones(0, 1, 1, 3).bool(), torch.ones(0, 1, 3, 3).bool()):
        with pytest.raises(WrongUseError, match=r"each at least 1; found query \(0, 2, 3, 4\)"):
            AttentionInterface()["x3"](torch.nn.Module(), nothing, nothing, nothing, mask)


def test_a_softmax_is_found_in_any_function_of_a_class_but_not_in_a_comment() -> None:
    from seqarena.common.attention.transformers import interface  # noqa: PLC0415

    class Static:
        @staticmethod
        def weights(scores: torch.Tensor) -> torch.Tensor:
            return scores.softmax(-1)

    class Property:
        @property
        def weights(self) -> Any:
            return torch.nn.Softmax(dim=-1)

    class Inside:
        def weights(self, scores: list[torch.Tensor]) -> list[torch.Tensor]:
            return list(map(lambda each: torch.nn.functional.softmax(each, -1), scores))  # noqa: C417

    class Comment:
        def weights(self, scores: torch.Tensor) -> torch.Tensor:
            """Returns scores without softmax."""
            return scores  # no softmax

    for kind, is_found in ((Static, True), (Property, True), (Inside, True), (Comment, False)):
        assert any("softmax" in name.lower() for name in interface._names_in(kind)) == is_found, kind
