"""Byte-level BPE, as RoBERTa's: every text has tokens, and a token that begins a word contains the space before it."""

import json
from pathlib import Path

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, processors

from seqarena.common.data.tokenization.library import LibraryTokenizer
from seqarena.common.errors import BadDataError

VOCABULARY, MERGES = "vocab.json", "merges.txt"
"""Files of a byte-level tokenizer, in checkpoints without tokenizer.json."""
NAMES = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
"""Special tokens, in the order of their ids in RoBERTa's vocabulary, where ``<mask>`` is the last token."""


def read_byte_level(vocabulary: Path) -> LibraryTokenizer:
    """Returns RoBERTa's tokenizer of a ``vocab.json``, with the ``merges.txt`` in the same folder.

    Raises:
        BadDataError: no ``merges.txt``, or a vocabulary without the special tokens.
    """
    merges = vocabulary.with_name(MERGES)
    if not merges.exists():
        raise BadDataError(f"{merges} does not exist; expected it with {VOCABULARY}, or a tokenizer.json")
    ids = json.loads(vocabulary.read_text(encoding="utf-8"))
    missing = [token for token in NAMES if token not in ids]
    if missing:
        raise BadDataError(f"{vocabulary}: the vocabulary has no {', '.join(missing)}; expected {' '.join(NAMES)}")
    lines = merges.read_text(encoding="utf-8").split("\n")
    pairs = [(line.split()[0], line.split()[1]) for line in lines if line.strip() and not line.startswith("#version")]
    config = vocabulary.with_name("tokenizer_config.json")
    spaced = bool(json.loads(config.read_bytes()).get("add_prefix_space", False)) if config.exists() else False
    tokenizer = tokenizers.Tokenizer(models.BPE(ids, pairs))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=spaced)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([tokenizers.AddedToken(token, lstrip=token == "<mask>") for token in NAMES])
    tokenizer.post_processor = processors.RobertaProcessing(
        ("</s>", ids["</s>"]), ("<s>", ids["<s>"]), trim_offsets=True, add_prefix_space=spaced
    )
    return LibraryTokenizer(inner=tokenizer, source=str(vocabulary))
