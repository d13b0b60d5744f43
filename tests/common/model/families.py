"""A small checkpoint of each family, with the vocabulary that its models have."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from seqarena.common.data.tokenization import load_tokenizer, train_tokenizer, word_tokenizer
from seqarena.common.model.bert.checkpoint import save
from seqarena.common.model.bert.model import BertConfig, BertForPretraining
from tests.common.data.byte_level import write_byte_level

SMALL = BertConfig(vocabulary=400, max_length=80, layers=3, dim=8, heads=2, ffn_dim=12)
CONFIGS = {
    "bert": SMALL,
    "albert": replace(SMALL, shared_layers=True, embedding_dim=6, activation="gelu_tanh"),
    "electra": replace(SMALL, embedding_dim=6),
    "distilbert": replace(SMALL, token_types=0),
    "roberta": replace(SMALL, token_types=1, norm_eps=1e-5),
}


def write_checkpoint(folder: Path, family: str, texts: Sequence[str]) -> str:
    """Writes a checkpoint with a vocabulary of the words of some texts, and returns its folder."""
    if family == "roberta":
        tokenizer = load_tokenizer(write_byte_level(folder, texts))
    elif family == "albert":
        tokenizer = train_tokenizer(texts, "sentencepiece", 150)
        tokenizer.save(folder)
    else:
        tokenizer = word_tokenizer(word for text in texts for word in text.lower().replace(".", " .").split())
        tokenizer.save(folder)
    torch.manual_seed(2)
    model = BertForPretraining(replace(CONFIGS[family], vocabulary=len(tokenizer)), sentences=False, family=family)
    save(folder, model)
    return str(folder)
