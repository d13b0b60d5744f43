"""Tokenizers: WordPiece, as BERT's, and SentencePiece's unigram model, as ALBERT's, behind one interface."""

import functools
import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from seqarena.common.errors import BadDataError, WrongUseError, damage
from seqarena.common.files import write_atomically

Kind = Literal["wordpiece", "unigram"]
VOCABULARIES = ("tokenizer.json", "vocab.txt", "tokenizer_config.json")
"""Files of a checkpoint that define its tokenizer."""
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
"""Special tokens, in the order of their ids in a vocabulary that is trained here. Public vocabularies have other
ids."""
ALIASES = {"[PAD]": "<pad>", "[UNK]": "<unk>"}
"""Names of the special tokens in ALBERT's vocabularies."""
CONTINUED, BEGUN = "##", "▁"
"""Prefixes of tokens: ``CONTINUED`` of a WordPiece token that continues a word, ``BEGUN`` of a SentencePiece token
that begins one."""
ALPHABET = 1_000
"""Maximum letters of a trained WordPiece vocabulary. Rarer ones are unknown."""
Ids = npt.NDArray[np.int32]


@dataclass(frozen=True, kw_only=True)
class Tokenizer:
    """A vocabulary and the rules that split a text into its tokens."""

    inner: tokenizers.Tokenizer
    source: str
    """File or description of the vocabulary, for messages."""

    def __post_init__(self) -> None:
        missing = [token for token in SPECIAL if self.id(token) < 0]
        if missing:
            raise BadDataError(
                f"{self.source}: the vocabulary has no {', '.join(missing)}; expected {' '.join(SPECIAL)}"
            )

        most = max(self.numbers.values())
        if most >= len(self):
            raise BadDataError(f"{self.source}: {len(self):,} tokens, but ids up to {most:,}; some tokens are missing")
        # A text that contains [MASK] gets no special token.
        self.inner.encode_special_tokens = True

    def __len__(self) -> int:
        return self.inner.get_vocab_size()

    def id(self, token: str) -> int:
        """Returns a token's id, by any of its names; -1 for a token that is not in the vocabulary."""
        found = [self.inner.token_to_id(name) for name in (token, ALIASES.get(token, token))]
        return next((number for number in found if number is not None), -1)

    @functools.cached_property
    def special(self) -> npt.NDArray[np.bool_]:
        """Mask of the tokens that represent no text: those of ``SPECIAL`` and ``[unusedN]``; one entry per id."""
        known = (*SPECIAL, *ALIASES.values())
        marks = [token in known or token.startswith("[unused") for token in self._tokens]
        return np.array(marks)

    @functools.cached_property
    def continues(self) -> npt.NDArray[np.bool_]:
        """Mask of the tokens that continue a word; one entry per id. SentencePiece punctuation is a word of its own."""

        def inside(token: str) -> bool:
            return not token.startswith(BEGUN) and any(letter.isalnum() for letter in token)

        spaced = isinstance(self.inner.model, models.Unigram)
        marks = [inside(token) if spaced else token.startswith(CONTINUED) for token in self._tokens]
        return np.array(marks) & ~self.special

    @property
    def _tokens(self) -> list[str]:
        tokens = [self.inner.id_to_token(number) for number in range(len(self))]
        return [token or "" for token in tokens]

    @property
    def numbers(self) -> dict[str, int]:
        """Ids by token."""
        numbers: dict[str, int] = self.inner.get_vocab()
        return numbers

    @property
    def fingerprint(self) -> str:
        """Hash of 12 hex digits that changes whenever a text could get other tokens."""
        return hashlib.sha256(self.inner.to_str().encode()).hexdigest()[:12]

    def encode(self, texts: Sequence[str]) -> list[Ids]:
        """Returns the token ids of each text, without special tokens."""
        found = self.inner.encode_batch_fast(list(texts), add_special_tokens=False)
        return [np.array(each.ids, dtype=np.int32) for each in found]

    def encode_with_offsets(self, texts: Sequence[str]) -> list[tuple[Ids, Ids]]:
        """Returns the token ids of each text, and the character offsets of each token's begin and end; T and T 2."""
        found = self.inner.encode_batch(list(texts), add_special_tokens=False)
        return [
            (np.array(each.ids, dtype=np.int32), np.array(each.offsets, dtype=np.int32).reshape(-1, 2))
            for each in found
        ]

    def decode(self, ids: Sequence[int]) -> str:
        """Returns the text of token ids, without special tokens."""
        text: str = self.inner.decode(list(ids))
        return text

    def save(self, folder: Path) -> None:
        """Writes ``tokenizer.json``, and for WordPiece ``vocab.txt``, in the layout of public checkpoints."""
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / "tokenizer.json", lambda file: file.write(self.inner.to_str(pretty=True).encode()))
        if isinstance(self.inner.model, models.WordPiece):
            lines = "".join(f"{token}\n" for token in self._tokens)
            write_atomically(folder / "vocab.txt", lambda file: file.write(lines.encode()))


def load_tokenizer(path: Path) -> Tokenizer:
    """Returns the tokenizer of a checkpoint's folder (``tokenizer.json``, else ``vocab.txt``) or of one such file.

    Raises:
        BadDataError: no such file, a damaged one, or a vocabulary without ``[MASK]`` and the other special tokens.
    """
    if path.is_dir():
        path = next(
            (path / name for name in ("tokenizer.json", "vocab.txt") if (path / name).exists()), path / "vocab.txt"
        )
    if not path.exists():
        raise BadDataError(f"{path} does not exist; expected a folder with tokenizer.json or vocab.txt, or such a file")
    with damage(path, "tokenizer"):  # the library's from_file reports every failure as damage
        of_json = tokenizers.Tokenizer.from_str
        inner = of_json(path.read_text(encoding="utf-8")) if path.suffix == ".json" else _of_vocabulary(path)
    inner.no_truncation()
    inner.no_padding()
    return Tokenizer(inner=inner, source=str(path))


def _of_vocabulary(path: Path) -> tokenizers.Tokenizer:
    """Returns BERT's WordPiece tokenizer with the tokens of a vocabulary file, one per line."""
    tokens = [line.removesuffix("\r") for line in path.read_text(encoding="utf-8-sig").split("\n")]
    tokens = tokens[:-1] if not tokens[-1] else tokens
    if len(set(tokens)) != len(tokens):
        twice = next(token for number, token in enumerate(tokens) if token in tokens[:number])
        raise BadDataError(f"{path}: expected each token once, found {twice!r} twice")
    config = path.parent / "tokenizer_config.json"
    cased = any(token != token.lower() for token in tokens if not token.startswith("["))
    lowercase = bool(json.loads(config.read_bytes()).get("do_lower_case", not cased)) if config.exists() else not cased
    model = models.WordPiece({token: number for number, token in enumerate(tokens)}, unk_token="[UNK]")
    return _wordpiece(model, lowercase)


def _wordpiece(model: models.WordPiece, lowercase: bool) -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(prefix=CONTINUED)
    return tokenizer


def word_tokenizer(words: Iterable[str]) -> Tokenizer:
    """Returns a lower-case WordPiece tokenizer of whole words, in this order after the special tokens."""
    tokens = [*SPECIAL, *dict.fromkeys(words)]
    model = models.WordPiece({token: number for number, token in enumerate(tokens)}, unk_token="[UNK]")
    return Tokenizer(inner=_wordpiece(model, lowercase=True), source="a vocabulary of words")


def train_tokenizer(texts: Iterable[str], kind: Kind, size: int) -> Tokenizer:
    """Returns a lower-case tokenizer of ``size`` tokens, trained on texts.

    The library's training is not deterministic, so a trained vocabulary is stored and identified by its fingerprint.

    Raises:
        WrongUseError: a size below 100, or too small for the letters of the text.
    """
    if size < 100:
        raise WrongUseError(f"a vocabulary of {size} tokens: expected at least 100")
    if kind == "wordpiece":
        tokenizer = _wordpiece(models.WordPiece(unk_token="[UNK]"), lowercase=True)
        trainer: trainers.Trainer = trainers.WordPieceTrainer(
            vocab_size=size,
            special_tokens=list(SPECIAL),
            show_progress=False,
            continuing_subword_prefix=CONTINUED,
            limit_alphabet=min(ALPHABET, size // 2),
        )
    else:
        tokenizer = tokenizers.Tokenizer(models.Unigram())
        tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Metaspace(), pre_tokenizers.Punctuation()])
        tokenizer.decoder = decoders.Metaspace()
        trainer = trainers.UnigramTrainer(
            vocab_size=size, special_tokens=list(SPECIAL), unk_token="[UNK]", show_progress=False
        )
    try:
        tokenizer.train_from_iterator(texts, trainer)
    except Exception as error:  # the library raises its base class
        raise WrongUseError(f"no {kind} vocabulary of {size:,} tokens can be trained on this text: {error}") from error
    # Serialised and read once, since that rounds the scores.
    return Tokenizer(inner=tokenizers.Tokenizer.from_str(tokenizer.to_str()), source="a vocabulary trained here")
