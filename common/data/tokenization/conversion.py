"""A model of SentencePiece as a tokenizer.json, for the transformers library."""

from collections.abc import Mapping, Sequence

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from seqarena.common.data.protobuf import fields

NORMALIZER, RULES = 3, 2
"""Fields of protocol buffers: the normaliser of a model, and its compiled rules (sentencepiece_model.proto)."""


def convert(
    model: bytes, scores: Sequence[tuple[str, float]], names: Mapping[str, str], published: bool
) -> tokenizers.Tokenizer:
    """Returns a tokenizer of the tokenizers library that gives the same tokens of ordinary text.

    The library normalises some control and combining characters in another way.

    ``scores``: tokens and their scores. ``names``: special tokens by their names in the transformers library.
    ``published``: prepares text as ALBERT's code does. Its tokens of a digit before a comma are not split.
    """
    unknown = [token for token, _ in scores].index(names["unk_token"])
    tokenizer = tokenizers.Tokenizer(models.Unigram(list(scores), unk_id=unknown))
    before = [normalizers.NFKD(), normalizers.StripAccents(), normalizers.Lowercase()] if published else []
    rules = field(field(model, NORMALIZER), RULES)
    compiled = [normalizers.Precompiled(rules)] if rules else []
    tokenizer.normalizer = normalizers.Sequence([*before, *compiled])
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(" ", "removed"), pre_tokenizers.Metaspace()]
    )
    tokenizer.decoder = decoders.Metaspace()
    cls, sep = names["cls_token"], names["sep_token"]
    numbers = [(token, number) for number, (token, _) in enumerate(scores) if token in (cls, sep)]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{cls} $A {sep}", pair=f"{cls} $A {sep} $B:1 {sep}:1", special_tokens=numbers
    )
    return tokenizer


def field(message: bytes, wanted: int) -> bytes:
    """Returns the last field of text or bytes of a message in protocol buffers, by its number; empty: there is none."""
    values = [value for number, value in fields(message) if number == wanted and isinstance(value, bytes)]
    return values[-1] if values else b""
