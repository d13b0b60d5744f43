"""The heads against transformers: BERT's two, and XLNet's poolers, from which ALBERT's conditioned head comes."""

import pytest
import torch

from seqarena.common.model.bert.checkpoint import Weights, copy_tensors, folder_of, read_weights, to_public
from seqarena.common.model.bert.families import BERT
from seqarena.qa.model import ConditionedHead, Model, PairClassifier, Reader

pytestmark = pytest.mark.extras

SMALL = Model(vocabulary=30, max_length=12, layers=2, dim=16, heads=2, ffn_dim=12)
TOKENS = torch.randint(0, 30, (3, 12), generator=torch.Generator().manual_seed(0))
TYPES = (torch.arange(12) > 4).long().expand(3, -1)
REAL = torch.arange(12)[None] < torch.tensor([[12], [8], [10]])
CONTEXT = REAL & (torch.arange(12) > 4)
GIVEN = {"input_ids": TOKENS, "token_type_ids": TYPES, "attention_mask": REAL.long()}


def test_a_public_reader_is_read_whole(tmp_path: object) -> None:
    import transformers  # noqa: PLC0415

    theirs = transformers.BertForQuestionAnswering(transformers.BertConfig(**to_public(SMALL))).eval()
    theirs.save_pretrained(tmp_path)
    model = Reader(SMALL).eval()
    report = copy_tensors(model, read_weights(folder_of(str(tmp_path))), "theirs")
    assert (report.new, report.unused) == ((), ())
    with torch.no_grad():
        found = theirs(**GIVEN)
        start, end, odds = model(TOKENS, TYPES, REAL, CONTEXT, torch.zeros(3, dtype=torch.long))
    assert odds is None
    assert (start - found.start_logits)[REAL].abs().max() <= 1e-5
    assert (end - found.end_logits)[REAL].abs().max() <= 1e-5
    assert (start[~REAL] == -torch.inf).all()


def test_pairs_are_classified_as_theirs() -> None:
    import transformers  # noqa: PLC0415

    theirs = transformers.BertForSequenceClassification(
        transformers.BertConfig(**to_public(SMALL), num_labels=3)
    ).eval()
    model = PairClassifier(SMALL, 3).eval()
    copy_tensors(model, Weights(tensors=dict(theirs.state_dict()), family=BERT), "theirs")
    model.classes.load_state_dict(theirs.classifier.state_dict())
    with torch.no_grad():
        assert (model(TOKENS, TYPES, REAL) - theirs(**GIVEN).logits).abs().max() <= 1e-5


def test_the_conditioned_head_is_xlnets() -> None:
    from transformers import XLNetConfig  # noqa: PLC0415
    from transformers.models.xlnet import modeling_xlnet as xlnet  # noqa: PLC0415

    config = XLNetConfig(d_model=16, n_head=2, layer_norm_eps=1e-12)
    head = ConditionedHead(SMALL, answerable=True).eval()
    starts, ends, answer = (
        xlnet.XLNetPoolerStartLogits(config), xlnet.XLNetPoolerEndLogits(config), xlnet.XLNetPoolerAnswerClass(config),
    )  # fmt: skip
    head.start.load_state_dict(starts.dense.state_dict())
    head.join.load_state_dict(ends.dense_0.state_dict())
    head.norm.load_state_dict(ends.LayerNorm.state_dict())
    head.end.load_state_dict(ends.dense_1.state_dict())
    assert head.answer is not None
    head.answer[0].load_state_dict(answer.dense_0.state_dict())
    head.answer[3].load_state_dict(answer.dense_1.state_dict())
    hidden = torch.randn(3, 12, 16)
    allowed = CONTEXT.clone()
    allowed[:, 0] = True
    chosen = torch.tensor([5, 6, 9])
    with torch.no_grad():
        mine, theirs = head.starts(hidden, allowed), starts(hidden, p_mask=(~allowed).float())
        assert (mine - theirs)[allowed].abs().max() <= 1e-5
        one = head.ends(hidden, allowed, chosen[:, None])[:, 0]
        other = ends(hidden, start_positions=chosen, p_mask=(~allowed).float())
        assert (one - other)[allowed].abs().max() <= 1e-5
        mean = torch.einsum("blh,bl->bh", hidden, mine.softmax(dim=-1))
        expected = answer(hidden, start_states=mean, cls_index=torch.zeros(3, dtype=torch.long))
        odds = head.unanswerable(hidden, mine)
        assert odds is not None
        assert (odds - expected).abs().max() <= 1e-5
