"""WordPiece, BERT's tokenizer: vocabularies from files, of given words, and trained."""

import json
from collections.abc import Iterable
from pathlib import Path

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from seqarena.common.data.tokenization.interface import CONTINUED, SPECIAL
from seqarena.common.data.tokenization.library import LibraryTokenizer
from seqarena.common.errors import BadDataError

ALPHABET = 1_000
"""Maximum letters of a trained vocabulary. Rarer ones are unknown."""


def read_vocabulary(path: Path) -> LibraryTokenizer:
    """Returns BERT's tokenizer with the tokens of a vocabulary file, one per line.

    Text is made lower-case if ``tokenizer_config.json`` beside it says so, else if no token has a capital. The file
    also says whether accents are removed (by default, if the text is made lower-case) and Chinese characters are
    separated (by default).
    """
    tokens = [line.removesuffix("\r") for line in path.read_text(encoding="utf-8-sig").split("\n")]
    tokens = tokens[:-1] if not tokens[-1] else tokens
    if len(set(tokens)) != len(tokens):
        twice = next(token for number, token in enumerate(tokens) if token in tokens[:number])
        raise BadDataError(f"{path}: expected each token once, found {twice!r} twice")
    config = path.parent / "tokenizer_config.json"
    cased = any(token != token.lower() for token in tokens if not token.startswith("["))
    given = json.loads(config.read_bytes()) if config.exists() else {}
    tokenizer = _wordpiece(
        _model(tokens),
        bool(given.get("do_lower_case", not cased)),
        strip_accents=given.get("strip_accents"),
        separate_chinese=bool(given.get("tokenize_chinese_chars", True)),
    )
    return LibraryTokenizer(inner=tokenizer, source=str(path))


def word_tokenizer(words: Iterable[str]) -> LibraryTokenizer:
    """Returns a lower-case tokenizer of whole words, in this order after the special tokens."""
    model = _model([*SPECIAL, *dict.fromkeys(words)])
    return LibraryTokenizer(inner=_wordpiece(model, lowercase=True), source="a vocabulary of words")


def train_wordpiece(texts: Iterable[str], size: int) -> LibraryTokenizer:
    """Returns a lower-case tokenizer of ``size`` tokens, trained on texts.

    The library's training is not deterministic, so a trained vocabulary is stored and identified by its fingerprint.
    """
    tokenizer = _wordpiece(models.WordPiece(unk_token="[UNK]"), lowercase=True)
    trainer = trainers.WordPieceTrainer(
        vocab_size=size,
        special_tokens=list(SPECIAL),
        show_progress=False,
        continuing_subword_prefix=CONTINUED,
        limit_alphabet=min(ALPHABET, size // 2),
    )
    tokenizer.train_from_iterator(texts, trainer)
    # Serialised and read once, as a stored vocabulary will be.
    return LibraryTokenizer(inner=tokenizers.Tokenizer.from_str(tokenizer.to_str()), source="a vocabulary trained here")


def _model(tokens: Iterable[str]) -> models.WordPiece:
    return models.WordPiece({token: number for number, token in enumerate(tokens)}, unk_token="[UNK]")


def _wordpiece(
    model: models.WordPiece, lowercase: bool, *, strip_accents: bool | None = None, separate_chinese: bool = True
) -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.normalizer = normalizers.BertNormalizer(
        lowercase=lowercase, strip_accents=strip_accents, handle_chinese_chars=separate_chinese
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(prefix=CONTINUED)
    return tokenizer
