"""Converts text to tokens and back, with one rule for unknown words.

Gigaword marks a rare word by ``<unk>`` in its training and validation pairs and by ``UNK`` in its test pairs; other
systems write ``[UNK]`` or ``unk``. Here all become one marker: ``UNK`` in text, the vocabulary's [UNK] in tokens. A
model may generate it, and it is scored as a word.
"""

import itertools
import re
from collections.abc import Sequence

import numpy as np

from seqarena.common.data.tokenization import CONTINUED, Ids, Tokenizer

UNKNOWN = "UNK"
MARKER = re.compile(r"<unk>|\[unk\]|(?<!\w)unk(?!\w)", re.IGNORECASE)
DIGITS = ((re.compile(r"(?<=#) (?=#)"), ""), (re.compile(r"(?<=#) ?([.:-]) ?(?=#)"), r"\1"))
"""Joins tokens that WordPiece splits: digits, decimals, sports results. Scores are not affected."""


def normalized(text: str) -> str:
    """Returns a text with every marker of an unknown word as ``UNK``, and single spaces."""
    return " ".join(MARKER.sub(UNKNOWN, text).split())


def without_unknown(text: str) -> str:
    """Returns a text with its unknown words removed."""
    return " ".join(MARKER.sub(" ", text).split())


def encode(texts: Sequence[str], tokenizer: Tokenizer) -> list[Ids]:
    """Returns the tokens of each text, with [UNK] for each marker and without special tokens."""
    parts = [MARKER.split(text) for text in texts]
    encoded = iter(tokenizer.encode([part for some in parts for part in some]))
    unknown = np.array([tokenizer.id("[UNK]")], dtype=np.int32)
    found = []
    for some in parts:
        pieces = [piece for _ in some for piece in (unknown, next(encoded))]
        found.append(np.concatenate(pieces[1:]))
    return found


def decode(tokens: Sequence[int], tokenizer: Tokenizer) -> str:
    """Returns the text of tokens, with a marker for each [UNK]."""
    unknown, special = tokenizer.id("[UNK]"), tokenizer.special
    words = []
    for is_unknown, group in itertools.groupby(tokens, key=lambda token: token == unknown):
        some = list(group)
        known = [token for token in some if not special[token]]
        words += [UNKNOWN] * len(some) if is_unknown else [_decode_known(known, tokenizer)]
    text = " ".join(" ".join(words).split())
    for apart, together in DIGITS:
        text = apart.sub(together, text)
    return text


def _decode_known(tokens: Sequence[int], tokenizer: Tokenizer) -> str:
    """Returns the text of known tokens; a leading continuation piece starts a word."""
    text = tokenizer.decode(list(tokens))
    return text.removeprefix(CONTINUED) if tokens and tokenizer.continues[tokens[0]] else text
