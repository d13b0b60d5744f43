"""The same weights in the transformers library: the same scores, and the same headlines by ``generate``."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from seqarena.common.model.norms import NORMS
from seqarena.summarization.benchmark import as_transformers, generate
from seqarena.summarization.decoding import Decoding, search
from seqarena.summarization.model import Summarizer
from tests.summarization.tiny import model, texts

pytestmark = pytest.mark.extras

START, END, PAD = 1, 2, 0
SPECIAL = (START, END, PAD)
SEARCHES = [
    Decoding(beam=1, max_length=12, normalization="none"),
    *(
        Decoding(beam=4, max_length=12, normalization="power", alpha=alpha, stop=stop)  # type: ignore[arg-type]
        for alpha in (0.0, 1.0)
        for stop in ("bound", "current", "full")
    ),
    Decoding(beam=3, max_length=9, normalization="power", alpha=0.6, min_length=4, no_repeat=2, stop="current"),
]


def post_norm(seed: int) -> Summarizer:
    summarizer = model(vocabulary=20, norm="post", seed=seed)
    assert summarizer.config.norm == NORMS["post"]
    return summarizer


def test_scores_are_those_of_its_encoder_decoder() -> None:
    summarizer = post_norm(0)
    theirs = as_transformers(summarizer).double()
    source, real = texts(5, 20)
    target = torch.randint(3, 20, (5, 7))
    whole = torch.ones_like(target, dtype=torch.bool)
    with torch.no_grad():
        hidden = summarizer.decode(target, whole, summarizer.encode(source, real), real)
        ours = summarizer.masked(hidden.flatten(0, 1), summarizer.bert.embeddings.table).view(5, 7, -1)
        expected = theirs(input_ids=source, attention_mask=real.long(), decoder_input_ids=target).logits
    torch.testing.assert_close(ours, expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("how", SEARCHES, ids=str)
@pytest.mark.parametrize("banned", [(START,), (0, START, 5)])  # its no_repeat counts the beginning as said
def test_headlines_are_those_of_generate(how: Decoding, banned: tuple[int, ...]) -> None:
    for seed in range(4):
        summarizer = post_norm(seed)
        theirs = as_transformers(summarizer).double()
        source, real = texts(8, 20)
        found = search(summarizer, source, real, how, start=START, end=END, banned=banned)
        batch = SimpleNamespace(source=source, source_real=real)
        if how.stop == "bound":  # theirs goes on until all of a beam's are certain, ours until the best one is
            wide = replace(how, n_best=how.beam)
            assert [some[0] for some in found] == [
                some[0] for some in search(summarizer, source, real, wide, start=START, end=END, banned=banned)
            ]
        assert [some[0].tokens for some in found] == generate(theirs, batch, how, SPECIAL, banned)
