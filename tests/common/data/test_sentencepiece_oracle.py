"""The transformers library reads the same ids and offsets from the files of a SentencePiece vocabulary."""

from pathlib import Path

import numpy as np
import pytest

from seqarena.common.data.corpus import chapters
from seqarena.common.data.tokenization import load_tokenizer
from seqarena.common.data.tokenization.sentencepiece import train_sentencepiece

pytestmark = pytest.mark.extras
VERSES = [verse for verses in chapters()[:80] for verse in verses]
TEXTS = [
    *VERSES[-500:], "(and) the  LORD\tsaid -\n \"go\", 12 – £5.", "ﬁne ｆｕｌｌ ½ 😀", "Façade, Ångström; naïve ß", "",
]  # fmt: skip


@pytest.mark.parametrize("name", ["AlbertTokenizer", "AutoTokenizer"])
def test_transformers_reads_the_same_tokens_and_offsets(name: str, tmp_path: Path) -> None:
    import transformers  # noqa: PLC0415

    train_sentencepiece(VERSES, 1_000).save(tmp_path)
    made = load_tokenizer(tmp_path)
    theirs = getattr(transformers, name).from_pretrained(tmp_path)
    found = theirs(TEXTS, add_special_tokens=False, return_offsets_mapping=True)
    for text, (ids, offsets), other, spans in zip(
        TEXTS, made.encode_with_offsets(TEXTS), found["input_ids"], found["offset_mapping"], strict=True
    ):
        assert ids.tolist() == other, text
        assert offsets.tolist() == np.array(spans).reshape(-1, 2).tolist(), text
    names = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
    pad, unknown, cls, sep, mask = (made.id(name) for name in names)
    of_theirs = (theirs.pad_token_id, theirs.unk_token_id, theirs.cls_token_id, theirs.sep_token_id)
    assert (*of_theirs, theirs.mask_token_id) == (pad, unknown, cls, sep, mask)
    (one,), (two,) = made.encode(["the lord"]), made.encode(["said"])
    pair = theirs("the lord", "said")
    assert pair["input_ids"] == [cls, *one, sep, *two, sep]
    assert theirs.decode(one) == made.decode(one.tolist()) == "the lord"
