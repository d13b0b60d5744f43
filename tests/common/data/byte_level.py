"""A byte-level vocabulary as RoBERTa's, trained on some texts."""

import json
from collections.abc import Sequence
from pathlib import Path

import tokenizers
from tokenizers import models, pre_tokenizers, trainers

from seqarena.common.data.tokenization.byte_level import MERGES, NAMES, VOCABULARY


def write_byte_level(folder: Path, texts: Sequence[str], size: int = 400) -> Path:
    """Writes vocab.json and merges.txt with ``<mask>`` as the last token, and returns the folder."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        texts, trainers.BpeTrainer(vocab_size=size - 1, special_tokens=list(NAMES[:-1]), initial_alphabet=alphabet,
                                   show_progress=False)
    )  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.model.save(str(folder))
    vocabulary = json.loads((folder / VOCABULARY).read_text())
    (folder / VOCABULARY).write_text(json.dumps({**vocabulary, NAMES[-1]: len(vocabulary)}))
    assert (folder / MERGES).exists()
    return folder
