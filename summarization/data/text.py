"""Text to tokens and back, with one rule for what is unknown.

Gigaword says ``<unk>`` for a rare word in its training and validation pairs and ``UNK`` in its test pairs; other
systems write ``[UNK]`` or ``unk``. All are one marker here: ``UNK`` in text, the vocabulary's own [UNK] among tokens. A
model may write it, and it is scored as a word.
"""

import itertools
import re
from collections.abc import Sequence

import numpy as np

from seqarena.common.data.tokenization import CONTINUED, Ids, Tokenizer

UNKNOWN = "UNK"
MARKER = re.compile(r"<unk>|\[unk\]|(?<!\w)unk(?!\w)", re.IGNORECASE)
DIGITS = ((re.compile(r"(?<=#) (?=#)"), ""), (re.compile(r"(?<=#) ?([.:-]) ?(?=#)"), r"\1"))
"""Tokens that WordPiece splits and a reader wants joined: digits, decimals, results. Scores are not affected."""


def normalized(text: str) -> str:
    """Returns a text with ``UNK`` for whatever marks an unknown word, and single spaces."""
    return " ".join(MARKER.sub(UNKNOWN, text).split())


def without_unknown(text: str) -> str:
    """Returns a text without its unknown words."""
    return " ".join(MARKER.sub(" ", text).split())


def encode(texts: Sequence[str], tokenizer: Tokenizer) -> list[Ids]:
    """Returns the tokens of each text, [UNK] for each marker, without special ones."""
    parts = [MARKER.split(text) for text in texts]
    encoded = iter(tokenizer.encode([part for some in parts for part in some]))
    unknown = np.array([tokenizer.id("[UNK]")], dtype=np.int32)
    found = []
    for some in parts:
        pieces = [piece for _ in some for piece in (unknown, next(encoded))]
        found.append(np.concatenate(pieces[1:]))
    return found


def decode(tokens: Sequence[int], tokenizer: Tokenizer) -> str:
    """Returns the text of tokens, a marker for each [UNK]."""
    unknown, special = tokenizer.id("[UNK]"), tokenizer.special
    words = []
    for is_unknown, group in itertools.groupby(tokens, key=lambda token: token == unknown):
        some = list(group)
        known = [token for token in some if not special[token]]
        words += [UNKNOWN] * len(some) if is_unknown else [_joined(known, tokenizer)]
    text = " ".join(" ".join(words).split())
    for apart, together in DIGITS:
        text = apart.sub(together, text)
    return text


def _joined(tokens: Sequence[int], tokenizer: Tokenizer) -> str:
    """Returns the text of known tokens; one that goes on with a word and has none before it begins one."""
    text = tokenizer.decode(list(tokens))
    return text.removeprefix(CONTINUED) if tokens and tokenizer.continues[tokens[0]] else text
