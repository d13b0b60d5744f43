"""What a language model's training remembers: of which streams, until when, and what of it a checkpoint holds."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from seqarena.common.attention import ATTENTIONS
from seqarena.common.errors import BadDataError
from seqarena.common.training.runtime import make_accelerator
from seqarena.pretraining.transformer_xl import TransformerXL
from seqarena.pretraining.wikitext.run import LanguageRun, Segments
from seqarena.pretraining.wikitext.streams import Streams
from seqarena.pretraining.wikitext.trainer import RememberingLoss
from tests.pretraining.language import RUNNING, loaded, tiny


def steps(run: LanguageRun, folder: Path, count: int, micro: int | None, cut: int | None = None) -> Iterator[float]:
    """The losses of steps, dropout off; after ``cut`` of them by another stepper that has only the state."""
    run = replace(run, train=replace(run.train, micro_batch_size=micro))
    text, model = loaded(run, folder)
    batches = Streams(ids=text.ids["train"], count=4, length=8)
    accelerator = make_accelerator("float32")
    stepper = run.train.stepper(model, RememberingLoss(run.segments), run.optim, 0, accelerator)
    for step in range(count):
        if step == cut:
            state = stepper.state_dict()
            other = replace(run, train=replace(run.train, micro_batch_size=None)).train
            stepper = other.stepper(TransformerXL(run.model), RememberingLoss(run.segments), run.optim, 0, accelerator)
            stepper.load_state_dict(state)
        yield float(stepper.take(stepper.share(batches[step]), step)[0])


@pytest.mark.parametrize("attention", ["softmax", "hnas"])
def test_parts_of_a_step_remember_their_own_streams(tmp_path: Path, attention: str) -> None:
    """Whole batches, two streams at a time, three and one, and another size after a restart: the same losses."""
    run = tiny(tmp_path, attention=ATTENTIONS[attention], norm=RUNNING)
    expected = list(steps(run, tmp_path, 14, None))
    for micro, cut in ((2, None), (3, None), (1, 5), (2, 7)):
        assert list(steps(run, tmp_path, 14, micro, cut)) == pytest.approx(expected, rel=1e-4)
    forgetful = list(steps(replace(run, segments=replace(run.segments, memory=0)), tmp_path, 14, None))
    assert forgetful[0] == pytest.approx(expected[0], rel=1e-5)
    assert forgetful[1] != pytest.approx(expected[1], rel=1e-3)


def test_an_epoch_begins_without_a_memory_and_training_reads_as_it_is_told(tmp_path: Path) -> None:
    """Two epochs, the memory kept by hand; distances clamped and windows of one length."""
    run = tiny(tmp_path)
    text, model = loaded(run, tmp_path)
    batches = Streams(ids=text.ids["train"], count=4, length=8)
    run = replace(run, segments=Segments(length=8, memory=6, clamp=4, same_length=True))
    loss, memory = RememberingLoss(run.segments), model.empty_memory(4)
    model.train()
    for step in range(2 * batches.segments):
        batch = batches[step]
        memory = model.empty_memory(4) if step % batches.segments == 0 else memory
        total, memory = model(batch.tokens, batch.targets, memory, memory_length=6, clamp=4, window=6)
        assert loss(model, batch).item() == pytest.approx(total.item() / batch.targets.numel(), rel=1e-5)


def test_a_checkpoint_at_the_end_of_an_epoch_leaves_nothing_of_it(tmp_path: Path) -> None:
    """Restored where an epoch begins, then again a step later: the second checkpoint is of the new epoch alone."""
    run = replace(tiny(tmp_path), segments=Segments(length=8, memory=16))
    text, model = loaded(run, tmp_path)
    batches = Streams(ids=text.ids["train"], count=4, length=8)
    model.train()
    whole, cut = RememberingLoss(run.segments), RememberingLoss(run.segments)
    for step in range(batches.segments + 3):
        if step >= batches.segments:
            state, cut = cut.state_dict(), RememberingLoss(run.segments)
            cut.load_state_dict(state)
        expected, found = whole(model, batches[step]), cut(model, batches[step])
        assert found.item() == expected.item()
    assert {len(layers[0]["past"][0]) for layers in cut.state_dict().values()} == {16}


def test_a_process_keeps_nothing_of_the_streams_of_others(tmp_path: Path) -> None:
    run = tiny(tmp_path)
    text, model = loaded(run, tmp_path)
    batches = Streams(ids=text.ids["train"], count=4, length=8)
    model.train()
    both, mine = RememberingLoss(run.segments), RememberingLoss(run.segments)
    both(model, batches[0])
    mine.load_state_dict(both.state_dict())
    mine(model, batches[1].rows(2, 4))
    assert sorted(mine.state_dict()) == [2, 3]
    mine(model, batches[2].rows(2, 4))
    assert mine.restored == {}
    partial = RememberingLoss(run.segments)
    partial.load_state_dict({stream: layers for stream, layers in both.state_dict().items() if stream != 2})
    with pytest.raises(BadDataError, match="the checkpoint has the memory of 3 of 4 streams; --overwrite"):
        partial(model, batches[1])


def test_a_model_that_is_looked_at_forgets_nothing(tmp_path: Path) -> None:
    run = tiny(tmp_path)
    text, model = loaded(run, tmp_path)
    batches, loss = Streams(ids=text.ids["train"], count=4, length=8), RememberingLoss(run.segments)
    model.train()
    loss(model, batches[0])
    kept = loss.state_dict()
    with torch.no_grad():
        loss(model.eval(), batches[1].rows(0, 2))
    again = loss.state_dict()
    assert sorted(kept) == sorted(again) == [0, 1, 2, 3]
    assert all(torch.equal(kept[row][0]["past"], again[row][0]["past"]) for row in kept)
