"""SentencePiece, ALBERT's tokenizer, by its own library.

A vocabulary trained here is encoded exactly as the library's processor encodes it: the model itself makes text
lower-case (nmt_nfkc_cf). ALBERT's published model does not, and its code prepares the text and corrects the tokens:

- capitals become lower-case, combining marks are dropped (é becomes e), white space becomes blanks;
- a token such as ``9,``, a digit before a comma, is split again, so that the comma is a token of its own.

``published`` turns this on. The code is google-research/albert, tokenization.py (preprocess_text, encode_pieces).
"""

import functools
import hashlib
import io
import itertools
import json
import os
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import sentencepiece

from seqarena.common.data.tokenization.conversion import convert
from seqarena.common.data.tokenization.interface import ALIASES, BEGUN, SPECIAL, Ids, Tokenizer
from seqarena.common.files import write_atomically, write_json

MODEL = "spiece.model"
CONFIG = "tokenizer_config.json"
SYMBOLS = ("(", ")", '"', "-", ".", "\N{EN DASH}", "£", "€")
"""Tokens of every trained vocabulary, which no longer token contains (google-research/albert, README)."""
COVERAGE = 0.99995
"""Fraction of the text's characters that have tokens; rarer characters are unknown (ibid.)."""
THREADS = 16
"""Threads of the training, as in the library. Their sums are added up, so that another number rounds differently."""
LONGEST = 2**30
"""Maximum bytes of a text in training; the library's 4,192 would drop longer ones in silence."""


@dataclass(frozen=True, kw_only=True)
class SentencePieceTokenizer(Tokenizer):
    """A model of SentencePiece."""

    model: bytes
    """Content of ``spiece.model``."""
    published: bool = False
    """Whether text is prepared and tokens are corrected as in ALBERT's code."""

    @functools.cached_property
    def processor(self) -> sentencepiece.SentencePieceProcessor:
        """The library's own processor."""
        return sentencepiece.SentencePieceProcessor(model_proto=self.model)

    @functools.cached_property
    def tokens(self) -> Sequence[str]:
        """The tokens, in the order of their ids."""
        return self.processor.IdToPiece(list(range(len(self.processor))))

    @property
    def begun(self) -> str:
        """Prefix of the tokens that begin a word."""
        return BEGUN

    @property
    def fingerprint(self) -> str:
        """Hash of 12 hex digits that changes whenever a text could get other tokens."""
        return hashlib.sha256(self.model + bytes([self.published])).hexdigest()[:12]

    def encode(self, texts: Sequence[str]) -> list[Ids]:
        """Returns the token ids of each text, without special tokens."""
        prepared = [prepare(text) for text in texts] if self.published else list(texts)
        found: list[Ids] = self.processor.Encode(prepared, return_type="numpy", num_threads=_threads())
        return [self._correct(ids) for ids in found] if self.published else found

    def encode_with_offsets(self, texts: Sequence[str]) -> list[tuple[Ids, Ids]]:
        """Returns the token ids of each text, and the character offsets of each token's begin and end; T and T 2.

        White space before a word belongs to no token. A token that is ``BEGUN`` alone has the offsets of the character
        after it. A character that is normalised to several, as ½ to 1⁄2, belongs to each token of these.
        """
        return [self._encode_with_offsets(text) for text in texts]

    def _encode_with_offsets(self, text: str) -> tuple[Ids, Ids]:
        prepared = prepare(text) if self.published else text
        found = self.processor.Encode(prepared, return_type="offset_mapping")
        tokens = list(zip(found["ids"], found["pieces"], strict=True))
        if self.published:
            tokens = [each for token in tokens for each in self._splits.get(token[0], [token])]
        # The pieces, joined, are the normalised text; starts has the index in the text of each of its characters.
        starts = np.array(self.processor.Normalize(prepared, with_offsets=True)[1], dtype=np.int32)
        if self.published:
            starts = _origins(text)[starts]
        ends = np.cumsum([len(piece) for _, piece in tokens], dtype=np.int64)
        marked = np.array([piece.startswith(BEGUN) for _, piece in tokens], dtype=np.int64)
        begins = np.concatenate([[0], ends])[:-1] + marked
        last = np.maximum(ends - 1, begins)
        after = np.searchsorted(starts, starts[last], side="right").clip(max=len(starts) - 1)
        ids = np.array([number for number, _ in tokens], dtype=np.int32)
        return ids, np.stack([starts[begins], starts[after]], axis=1)

    def _correct(self, ids: Ids) -> Ids:
        """Returns ids in which each token of a digit before a comma is split."""
        if not np.isin(ids, list(self._splits)).any():
            return ids
        parts = ([new for new, _ in self._splits.get(old, [(old, "")])] for old in ids.tolist())
        return np.array(list(itertools.chain.from_iterable(parts)), dtype=np.int32)

    @functools.cached_property
    def _splits(self) -> Mapping[int, list[tuple[int, str]]]:
        """Ids and tokens that replace a token which ends with a digit and a comma, by its id."""
        unknown = self.processor.unk_id()
        splits = {}
        for number, token in enumerate(self.tokens):
            if len(token) > 1 and token[-1] == "," and token[-2].isdigit():
                pieces = self.processor.Encode(token[:-1].replace(BEGUN, ""), return_type=str)
                if not token.startswith(BEGUN):
                    pieces[0] = pieces[0].removeprefix(BEGUN)
                pieces = [*filter(None, pieces), ","]
                splits[number] = [(self.numbers.get(piece, unknown), piece) for piece in pieces]
        return splits

    def decode(self, ids: Sequence[int]) -> str:
        """Returns the text of token ids, without special tokens."""
        text: str = self.processor.Decode([int(number) for number in ids if not self.special[number]])
        return text

    def save(self, folder: Path) -> None:
        """Writes ``spiece.model``, and for the transformers library ``tokenizer.json`` with its config."""
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / MODEL, lambda file: file.write(self.model))
        scores = self.processor.GetScore(list(range(len(self))))
        pad, unknown, cls, sep, mask = (self.tokens[self.id(name)] for name in SPECIAL)
        names = {"pad_token": pad, "unk_token": unknown, "cls_token": cls, "sep_token": sep, "mask_token": mask}
        library = convert(self.model, list(zip(self.tokens, scores, strict=True)), names, self.published)
        write_atomically(folder / "tokenizer.json", lambda file: file.write(library.to_str(pretty=True).encode()))
        config = {"do_lower_case": self.published, "keep_accents": not self.published}
        write_json(folder / CONFIG, {"tokenizer_class": "PreTrainedTokenizerFast", **config, **names})


def read_sentencepiece(path: Path) -> SentencePieceTokenizer:
    """Returns the tokenizer of a ``spiece.model``.

    Its text is prepared as in ALBERT's code if ``do_lower_case`` in ``tokenizer_config.json`` beside it says so, else
    if the model keeps capitals but has no token with one.

    Raises:
        ValueError: not a model of SentencePiece.
    """
    model, config = path.read_bytes(), path.parent / CONFIG
    try:
        processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        tokens = processor.IdToPiece(list(range(len(processor))))
    except RuntimeError as error:
        raise ValueError("it is no model of SentencePiece") from error
    is_lowercase = all(token == token.lower() for token in tokens if token not in SPECIAL)
    published = processor.Normalize("A").endswith("A") and is_lowercase
    if config.exists():
        published = bool(json.loads(config.read_bytes()).get("do_lower_case", published))
    return SentencePieceTokenizer(model=model, published=published, source=str(path))


def train_sentencepiece(texts: Iterable[str], size: int) -> SentencePieceTokenizer:
    """Returns a tokenizer of at most ``size`` tokens, trained on texts with ALBERT's settings.

    It depends on texts and size alone. ALBERT samples ten million sentences; the library's sample differs from time to
    time, so that here all texts are used.

    Raises:
        ValueError: a size that is too small for the letters of the text, or no text.
    """
    model = io.BytesIO()
    pad, unknown = (ALIASES[name] for name in SPECIAL[:2])
    try:
        sentencepiece.SentencePieceTrainer.Train(
            sentence_iterator=iter(texts), model_writer=model, model_type="unigram", vocab_size=size,
            hard_vocab_limit=False, pad_id=0, unk_id=1, bos_id=-1, eos_id=-1, pad_piece=pad, unk_piece=unknown,
            control_symbols=list(SPECIAL[2:]), user_defined_symbols=list(SYMBOLS), character_coverage=COVERAGE,
            normalization_rule_name="nmt_nfkc_cf", max_sentence_length=LONGEST, num_threads=THREADS, minloglevel=2,
        )  # fmt: skip
    except RuntimeError as error:
        reason = str(error).rpartition("] ")[2].strip()
        raise ValueError(reason or "it is empty") from error
    return SentencePieceTokenizer(model=model.getvalue(), source="a vocabulary trained here")


def prepare(text: str) -> str:
    """Returns a text as ALBERT's code prepares it: lower-case, without combining marks, with blanks for white space.

    Each character gives the same characters wherever it is, except for the two lower-case forms of Σ.
    """
    if not text.isascii():
        text = "".join(letter for letter in unicodedata.normalize("NFKD", text) if not unicodedata.combining(letter))
    return re.sub(r"\s", " ", text.lower())


def _origins(text: str) -> npt.NDArray[np.int32]:
    """Returns the index in a text of each character of the prepared text, and the length of the text."""
    counts = [len(prepare(letter)) for letter in text]
    return np.concatenate([np.repeat(np.arange(len(text)), counts), [len(text)]]).astype(np.int32)


def _threads() -> int:
    """Returns 1 in processes that keep the tokenizers library to one thread, else all threads (-1)."""
    return 1 if os.environ.get("TOKENIZERS_PARALLELISM") == "false" else -1
