"""Headline models from checkpoints of other families than BERT: what starts from them, and what is refused."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from seqarena.common.attention.visibility import Visibility
from seqarena.common.data.tokenization import load_tokenizer
from seqarena.common.errors import WrongUseError
from seqarena.common.model.bert.checkpoint import load
from seqarena.summarization.data import wire
from seqarena.summarization.data.text import decode, encode
from seqarena.summarization.model import Summarizer
from seqarena.summarization.trainer import _start
from tests.common.data.byte_level import write_byte_level
from tests.common.model.families import write_checkpoint
from tests.summarization.test_model import run
from tests.summarization.test_training import TINY, measure

TEXTS = [" ".join(wire.words())]


@pytest.mark.parametrize("family", ["bert", "electra", "distilbert", "roberta"])
def test_both_parts_start_from_a_family(family: str, tmp_path: Path) -> None:
    source = write_checkpoint(tmp_path, family, TEXTS)
    config = run("--model.encoder_init", source, "--model.decoder_init", source).model
    summarizer = Summarizer(config).eval()
    notes = _start(summarizer, source)
    assert "not in the checkpoint" not in notes[0]
    new = notes[1].partition("not in the checkpoint: ")[2].partition(";")[0]
    assert all("cross" in name for name in new.split(", "))
    model, _ = load(source)
    tokens = torch.randint(5, config.vocabulary, (2, 7))
    real = torch.ones(2, 7, dtype=torch.bool)
    with torch.no_grad():
        expected = model.eval().bert(tokens, torch.zeros_like(tokens), Visibility(query_real=real, key_real=real))
        assert torch.equal(summarizer.encode(tokens, real), expected)
    embeddings, layers = model.bert.embeddings.state_dict(), model.bert.encoder.state_dict()
    own = {**summarizer.target.state_dict(), **summarizer.decoder.state_dict()}
    for name, tensor in {**embeddings, **layers}.items():
        assert name == "word.weight" or torch.equal(own[name], tensor)
    for name, tensor in model.masked.state_dict().items():
        assert torch.equal(summarizer.masked.state_dict()[name], tensor)


def test_a_run_starts_from_roberta(tmp_path: Path) -> None:
    source = write_checkpoint(tmp_path / "checkpoint", "roberta", TEXTS)
    model = replace(TINY.model, encoder_init=source, decoder_init=source)
    result, _ = measure(replace(TINY, model=model).completed(()), tmp_path)
    assert result.status == "finished"


def test_shared_layers_are_refused(tmp_path: Path) -> None:
    source = write_checkpoint(tmp_path, "albert", TEXTS)
    for part in ("encoder", "decoder"):
        with pytest.raises(WrongUseError, match=r"model.shared_layers: .* another family than ALBERT"):
            run(f"--model.{part}_init", source).check()


def test_headlines_of_byte_level_tokens_are_text_again(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(write_byte_level(tmp_path, TEXTS))
    texts = ["police in UNK said ##.# percent", "UNK", "fire"]
    assert [decode(each.tolist(), tokenizer) for each in encode(texts, tokenizer)] == texts
