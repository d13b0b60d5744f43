"""Pairs and public readers of each family against transformers, on tiny random models and vocabularies."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from seqarena.common.data.tokenization import Tokenizer, load_tokenizer, train_tokenizer, word_tokenizer
from seqarena.common.model.bert.checkpoint import copy_tensors, read_config, read_weights
from seqarena.qa.data.mnli import Pair
from seqarena.qa.data.pairs import encode
from seqarena.qa.data.squad import Squad
from seqarena.qa.data.windows import windows_of
from seqarena.qa.model import Model, Reader
from tests.common.data.byte_level import write_byte_level
from tests.common.model.test_families_oracle import KINDS, inputs
from tests.qa.questions import PARAGRAPH, asked

pytestmark = pytest.mark.extras

PAIRS = [("The Normans lived in France.", "They gave their name to Normandy; ça?"), ("Why", "not"), ("", "a  b")]
BODIES = {"bert": "Bert", "albert": "Albert", "roberta": "Roberta", "distilbert": "DistilBert", "electra": "Electra"}
"""Family -> first part of the names of the library's classes."""


def public_tokenizer(family: str, folder: Path) -> Any:
    """Returns the library's tokenizer of a family, and writes its files."""
    import transformers  # noqa: PLC0415

    texts = [PARAGRAPH, *(text for pair in PAIRS for text in pair)]
    if family == "roberta":
        write_byte_level(folder, texts)
        return transformers.RobertaTokenizer.from_pretrained(folder)
    if family == "albert":
        train_tokenizer(texts, "sentencepiece", 100).save(folder)
        return transformers.AlbertTokenizer.from_pretrained(folder, keep_accents=True, do_lower_case=False)
    word_tokenizer(PARAGRAPH.lower().replace(".", " .").split()).save(folder)
    (folder / "tokenizer.json").unlink()
    return transformers.BertTokenizerFast.from_pretrained(folder)


def assert_same_rows(tokens: torch.Tensor, real: torch.Tensor, expected: list[list[int]]) -> None:
    assert [row[mask].tolist() for row, mask in zip(tokens, real, strict=True)] == expected


@pytest.mark.parametrize("family", list(BODIES))
def test_pairs_are_those_of_the_public_tokenizer(family: str, tmp_path: Path) -> None:
    public, tokenizer = public_tokenizer(family, tmp_path), load_tokenizer(tmp_path)
    encoded = encode([Pair(premise=one, hypothesis=two, label=0) for one, two in PAIRS], tokenizer, 200)
    batch = encoded.batch(np.arange(len(PAIRS)))
    expected = public([one for one, _ in PAIRS], [two for _, two in PAIRS], return_token_type_ids=True)
    assert_same_rows(batch.tokens, batch.real, expected["input_ids"])
    if family != "roberta":  # whose types are all 0, and are not read
        assert_same_rows(batch.types, batch.real, expected["token_type_ids"])
    assert (batch.tokens[~batch.real] == public.pad_token_id).all()


@pytest.mark.parametrize("family", list(BODIES))
def test_windows_are_those_of_the_public_tokenizer(family: str, tmp_path: Path) -> None:
    public, tokenizer = public_tokenizer(family, tmp_path), load_tokenizer(tmp_path)
    length = len(public("What about 0?", PARAGRAPH)["input_ids"]) - 5
    whole = len(public("What about 0?", add_special_tokens=False)["input_ids"])
    data = Squad(length=length, question_length=whole, window_step=None, window_overlap=3)
    batch = _windows(data, tokenizer)
    expected = public("What about 0?", PARAGRAPH, truncation="only_second", max_length=length, stride=3,
                      return_overflowing_tokens=True)  # fmt: skip
    assert len(expected["input_ids"]) == 2
    assert_same_rows(batch.tokens, batch.real, expected["input_ids"])


def _windows(data: Squad, tokenizer: Tokenizer) -> Any:
    windows = windows_of(asked([["Normandy"]]), data, tokenizer, all_windows=True)
    return windows.batch(np.arange(len(windows)))


@pytest.mark.parametrize("family", list(BODIES))
def test_a_public_reader_of_each_family_is_read_whole(family: str, tmp_path: Path) -> None:
    import transformers  # noqa: PLC0415

    reader = getattr(transformers, f"{BODIES[family]}ForQuestionAnswering")
    torch.manual_seed(0)
    theirs = reader(reader.config_class(**KINDS[family][1])).eval()
    theirs.save_pretrained(tmp_path)
    config = read_config(tmp_path)
    model = Reader(Model(**{name: getattr(config, name) for name in type(config).__dataclass_fields__})).eval()
    report = copy_tensors(model, read_weights(tmp_path), "theirs")
    assert (report.new, report.unused) == ((), ())
    given = inputs(family)
    real, types = given["attention_mask"].bool(), (torch.arange(14) > 5).long().expand(3, -1)
    with torch.no_grad():
        found = theirs(**given)
        start, end, _ = model(given["input_ids"], types, real, real, torch.zeros(3, dtype=torch.long))
    assert (start - found.start_logits)[real].abs().max() <= 1e-5
    assert (end - found.end_logits)[real].abs().max() <= 1e-5
