"""Finetuning from end to end on generated text: it learns, resumes, starts from checkpoints, refuses what cannot be."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from seqarena.common.attention import ATTENTIONS, find_attention
from seqarena.common.data.tokenization import word_tokenizer
from seqarena.common.errors import BadDataError, WrongUseError, run_command
from seqarena.common.model.bert.checkpoint import Pretraining, save
from seqarena.common.model.bert.model import BertConfig, BertForPretraining
from seqarena.common.model.norms.pre import PreNorm
from seqarena.common.runs.cli import build_run
from seqarena.common.runs.config import to_json
from seqarena.common.runs.results import Result
from seqarena.common.runs.run import row_name, row_of, settings
from seqarena.common.runs.session import Session, execute
from seqarena.common.training.loop import Train
from seqarena.common.training.optim import Optim
from seqarena.common.training.runtime import make_accelerator
from seqarena.qa import official
from seqarena.qa.__main__ import PACKAGE
from seqarena.qa.data import Data, entailment, world
from seqarena.qa.data.mnli import Mnli
from seqarena.qa.data.squad import Squad
from seqarena.qa.data.windows import SpanBatch
from seqarena.qa.model import Model
from seqarena.qa.presets import PRESETS
from seqarena.qa.run import Run
from seqarena.qa.trainer import assemble, pair_loss, span_loss
from seqarena.scripts.leaderboard.protocol import protocol_of
from seqarena.scripts.seqarena import dispatch
from tests.interruption import stops_after
from tests.qa.questions import written

TINY = Model(vocabulary=112, max_length=48, layers=1, dim=16, heads=2, ffn_dim=16, norm=PreNorm(), initial_std=0.1)
TRAIN = Train(steps=12, batch_size=8, eval_every=6, checkpoint_seconds=0.0)
LONG = replace(TRAIN, checkpoint_seconds=30.0)
"""For runs of hundreds of steps, which would else spend their time on a checkpoint after each."""
OPTIM = Optim(lr=5e-3, clip=1.0)
SQUAD = Squad(length=48, question_length=8, window_step=20, generated=200, held_out=0.1)
RUNS = {
    "squad1": Run(task="squad1", preset="quick", data=SQUAD, model=TINY, optim=OPTIM, train=TRAIN),
    "squad2": Run(task="squad2", preset="quick", data=replace(SQUAD, version="2.0"), model=TINY, optim=OPTIM,
                  train=TRAIN),
    "mnli": Run(task="mnli", preset="quick", data=Mnli(length=20, generated=300, held_out=0.1), model=TINY, optim=OPTIM,
                train=TRAIN),
}  # fmt: skip


def measure(run: Run, out: Path) -> Result:
    return execute(PACKAGE, run, Session(out=out, data=out / "data"))


def checkpoint(folder: Path, attention: str = "softmax", words: list[str] | None = None) -> str:
    """A checkpoint of ours with the words of the world."""
    torch.manual_seed(2)
    config = BertConfig(vocabulary=112, max_length=48, layers=2, dim=8, heads=2, ffn_dim=8,
                        attention=ATTENTIONS[attention])  # fmt: skip
    save(folder, BertForPretraining(config))
    word_tokenizer(world.words() if words is None else words).save(folder)
    return str(folder)


@pytest.mark.usefixtures("unchecked_shapes")
def test_it_learns_which_kind_of_word_answers(tmp_path: Path) -> None:
    """Two things of the right kind stand in each paragraph: half are right by chance once kinds are known."""
    model = replace(TINY, dim=32, heads=4, ffn_dim=32, dropout=0.0, attention_dropout=0.0)
    data = replace(SQUAD, generated=1_000)
    run = replace(RUNS["squad1"], model=model, data=data, train=replace(LONG, steps=200, batch_size=16, eval_every=200))
    result = measure(run, tmp_path)
    assert result.metric == "f1"
    assert result.score is not None
    assert result.score > 0.4 > 2 * result.floors["first sentence"]
    assert 0.45 < result.floors["any answer of the right kind"] < 0.65
    assert len(result.example_scores) == 100
    predictions = json.loads((tmp_path / "outputs" / "predictions.json").read_text())
    assert len(predictions) == 100
    gold = written(tmp_path / "gold.json", world.squad(100, 0, "dev", unanswerable=False))
    assert (
        official.run(["squad1", "--gold", str(gold), "--predictions", str(tmp_path / "outputs" / "predictions.json")])
        == 0
    )
    assert len(json.loads((tmp_path / "outputs" / "nbest_predictions.json").read_text())["dev-0"]) > 1


@pytest.mark.usefixtures("unchecked_shapes")
def test_it_learns_what_follows(tmp_path: Path) -> None:
    model = replace(TINY, dim=32, heads=4, ffn_dim=64, dropout=0.0, attention_dropout=0.0)
    run = replace(RUNS["mnli"], model=model, data=replace(RUNS["mnli"].data, generated=4_000),
                  train=replace(LONG, steps=400, batch_size=32, eval_every=400))  # fmt: skip
    result = measure(run, tmp_path)
    assert set(result.metrics) == {"accuracy", "loss", "accuracy_mismatched"}
    assert result.score is not None
    rules = ("most frequent label", "words of the hypothesis alone", "words of both")
    assert result.score > max(result.floors[rule] for rule in rules) + 0.05


@pytest.mark.parametrize(("task", "head"), [("squad1", "span"), ("squad2", "conditioned"), ("mnli", "span")])
def test_a_stopped_run_goes_on_bit_for_bit(
    task: str, head: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = replace(RUNS[task], model=replace(TINY, head=head, attention=find_attention("hnas")))  # type: ignore[arg-type]
    whole = measure(run, tmp_path / "whole")
    name, loss = ("pair_loss", pair_loss) if task == "mnli" else ("span_loss", span_loss)
    monkeypatch.setattr(f"seqarena.qa.trainer.{name}", stops_after(8, loss))
    with pytest.raises(KeyboardInterrupt):
        measure(run, tmp_path / "stopped")
    monkeypatch.undo()
    resumed = measure(run, tmp_path / "stopped")
    assert (resumed.metrics, resumed.example_scores) == (whole.metrics, whole.example_scores)
    files = [next((tmp_path / name / "checkpoint").glob("chosen-*")).read_bytes() for name in ("whole", "stopped")]
    assert files[0] == files[1]


def test_two_says_what_is_left_unanswered(tmp_path: Path) -> None:
    result = measure(RUNS["squad2"], tmp_path)
    assert {"f1", "exact", "answerable_f1", "unanswerable_f1", "oracle_f1", "oracle_exact"} <= set(result.metrics)
    assert result.metrics["oracle_f1"] >= result.metrics["f1"]
    odds = json.loads((tmp_path / "outputs" / "null_odds.json").read_text())
    predictions = json.loads((tmp_path / "outputs" / "predictions.json").read_text())
    assert all((text == "") == (odds[name] > 0) for name, text in predictions.items())
    # the official script, given what was saved, says the same
    gold = written(tmp_path / "gold.json", world.squad(20, 0, "dev", unanswerable=True))
    found = official.evaluate(official.read(gold, "2.0", "score"), predictions, "2.0", None, 1.0)
    assert found["f1"] / 100 == pytest.approx(result.metrics["f1"])
    # the answers that no threshold has emptied repeat the search for the best one
    best = json.loads((tmp_path / "outputs" / "answers.json").read_text())
    found = official.evaluate(official.read(gold, "2.0", "score"), best, "2.0", odds, 0.0)
    for name, mine in (("f1", "f1"), ("best_f1", "oracle_f1"), ("best_exact", "oracle_exact")):
        assert found[name] / 100 == pytest.approx(result.metrics[mine])
    assert found["best_f1_thresh"] == result.metrics["oracle_threshold"]
    at = official.evaluate(official.read(gold, "2.0", "score"), best, "2.0", odds, found["best_f1_thresh"])
    assert at["f1"] == pytest.approx(found["best_f1"])


@pytest.mark.parametrize("task", ["squad1", "mnli"])
def test_variants_see_the_same_data(task: str, tmp_path: Path) -> None:
    run = RUNS[task]
    assemblies = [
        assemble(replace(run, model=replace(TINY, attention=ATTENTIONS[name])), tmp_path, make_accelerator("float32"))
        for name in ("softmax", "dnas")
    ]
    for step in range(3):
        one, other = (assembly.batches[step] for assembly in assemblies)
        assert torch.equal(one.tokens, other.tokens)  # type: ignore[attr-defined]


@pytest.mark.parametrize(("task", "head"), [("squad1", "span"), ("squad2", "conditioned"), ("mnli", "span")])
def test_microbatches_add_up_to_the_gradient_of_the_batch(task: str, head: str, tmp_path: Path) -> None:
    model = replace(TINY, head=head, dropout=0.0, attention_dropout=0.0)  # type: ignore[arg-type]
    run = replace(RUNS[task], model=model)
    gradients = []
    for size in (None, 3):
        torch.manual_seed(0)
        assembly = assemble(run, tmp_path, make_accelerator("float32"))
        stepper = replace(TRAIN, micro_batch_size=size).stepper(
            assembly.model, assembly.loss, run.optim, 0, make_accelerator("float32")
        )
        stepper.backward(stepper.share(assembly.batches[0]))
        gradients.append({name: each.grad for name, each in assembly.model.named_parameters()})
    assert all(each is not None for each in gradients[0].values())
    for name, whole in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], whole, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("odds", [None, [2.0, -1.0]])
def test_the_loss_of_an_answer_worked_out_by_hand(odds: list[float] | None) -> None:
    """Half the cross-entropies of beginning and end, and half that of whether there is an answer; [CLS] is none."""
    start = torch.tensor([[1.0, 0.0, 3.0], [0.5, 0.0, -torch.inf]])
    end = torch.tensor([[0.0, 2.0, 1.0], [1.0, 0.0, -torch.inf]])
    some = torch.zeros(2, 3, dtype=torch.long)
    real = torch.tensor([[True, True, True], [True, True, False]])
    batch = SpanBatch(tokens=some, types=some, real=real, context=real, opens=real, start=torch.tensor([1, 0]),
                      end=torch.tensor([2, 0]))  # fmt: skip

    class Given(torch.nn.Module):
        def forward(self, *_: object) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
            return start, end, None if odds is None else torch.tensor(odds)

    def entropy(scores: list[float], right: int) -> float:
        return math.log(sum(math.exp(each) for each in scores)) - scores[right]

    first = (entropy([1, 0, 3], 1) + entropy([0, 2, 1], 2)) / 2
    second = (entropy([0.5, 0], 0) + entropy([1, 0], 0)) / 2
    expected = (first + second) / 2
    if odds is not None:  # the first window has an answer, the second has none
        expected += 0.5 * (math.log(1 + math.exp(2.0)) + math.log(1 + math.exp(1.0))) / 2
    assert float(span_loss(Given(), batch)) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("task", list(RUNS))
def test_a_test_set_that_is_cut_is_another_protocol(task: str, tmp_path: Path) -> None:
    run = RUNS[task]
    few = replace(run, data=replace(run.data, test_limit=7))
    whole, cut = (measure(each, tmp_path / str(number)) for number, each in enumerate((run, few)))
    assert (len(whole.example_scores), len(cut.example_scores)) == (len(whole.example_scores), 7)
    assert set(cut.example_scores) <= set(whole.example_scores)
    assert cut.changed["data.test_limit"] == [None, 7]
    assert cut.data_checksum != whole.data_checksum
    assert protocol_of(cut) != protocol_of(whole)
    assert cut.validation == whole.validation
    with pytest.raises(WrongUseError, match=r"data.test_limit: expected at least 1, or none for all, found 0"):
        replace(run, data=replace(run.data, test_limit=0)).check()


# ---- from checkpoints


def test_a_checkpoint_brings_its_sizes_and_is_recorded(tmp_path: Path) -> None:
    init = checkpoint(tmp_path / "bert")
    fields = ["--model.init", init, "--data.length", "48", "--data.question-length", "8"]
    run = build_run(PACKAGE, "squad1", "quick", "dnas", None, 0, fields, "x")
    assert isinstance(run, Run)
    assert (run.model.layers, run.model.dim, run.model.pretrained_with) == (2, 8, "softmax")
    assert run.model.pretraining.startswith("sha256 ")
    assert row_name(row_of(run, PRESETS["squad1"]["quick"])).endswith("pretrained with softmax")
    hybrid = build_run(PACKAGE, "squad1", "quick", "hnas", None, 0, fields, "x")
    assert hybrid.model.attention.u == 0.0  # type: ignore[attr-defined]
    half = build_run(PACKAGE, "squad1", "quick", "hnas", None, 0, [*fields, "--model.attention.u", "0.5"], "x")
    assert half.model.attention.u == 0.5  # type: ignore[attr-defined]
    assert settings(type(run), to_json(run)) == settings(type(hybrid), to_json(hybrid))  # rows of one table
    with pytest.raises(WrongUseError, match=r"model.layers: expected 2 as in the checkpoint .*, found 3"):
        build_run(PACKAGE, "squad1", "quick", None, None, 0, [*fields, "--model.layers", "3"], "x")
    with pytest.raises(WrongUseError, match=r"model\.pretraining is read from the checkpoint"):
        build_run(PACKAGE, "squad1", "quick", None, None, 0, [*fields, "--model.pretraining", "x"], "x")
    mixed = ["--model.init", checkpoint(tmp_path / "hnas", "hnas"), *fields[2:], "--model.attention.u", "0.1"]
    with pytest.raises(WrongUseError, match=r"model.attention.u: the checkpoint .* has trained values"):
        build_run(PACKAGE, "squad1", "quick", "hnas", None, 0, mixed, "x")


def test_its_own_attention_stays_unless_another_is_named_and_a_public_run_is_meant(tmp_path: Path) -> None:
    init = checkpoint(tmp_path / "bert", "dnas")
    fields = ["--model.init", init, "--data.length", "48", "--data.question-length", "8"]
    run = build_run(PACKAGE, "squad1", None, None, None, 0, fields, "x")
    assert (run.preset, run.model.attention) == ("bert", ATTENTIONS["dnas"])  # type: ignore[attr-defined]
    assert row_name(row_of(run, PRESETS["squad1"]["bert"])) == "dnas, 2 layers"
    other = build_run(PACKAGE, "squad1", None, "softmax", None, 0, fields, "x")
    assert row_name(row_of(other, PRESETS["squad1"]["bert"])) == "softmax, 2 layers, pretrained with dnas"
    assert build_run(PACKAGE, "squad1", None, None, None, 0, [], "x").preset == "quick"


@pytest.mark.parametrize("task", list(RUNS))
def test_hnas_from_softmax_begins_as_the_same_function(task: str, tmp_path: Path) -> None:
    words = entailment.words() if task == "mnli" else world.words()
    init = checkpoint(tmp_path / "bert", words=words)
    run = replace(RUNS[task], model=replace(TINY, init=init, dropout=0.0, attention_dropout=0.0))
    runs = [replace(run, model=replace(run.model, attention=ATTENTIONS[name])) for name in ("softmax", "hnas")]
    done = [each.completed({"model.attention"}) for each in runs]
    losses = []
    for each in done:
        torch.manual_seed(0)
        assembly = assemble(each, tmp_path, make_accelerator("float32"))
        losses.append(float(assembly.loss(assembly.model.eval(), assembly.batches[0]).detach()))
    assert losses[0] == pytest.approx(losses[1], abs=1e-6)
    body = load_file(tmp_path / "bert" / "model.safetensors")["bert.embeddings.word_embeddings.weight"]
    assert torch.equal(assembly.model.state_dict()["bert.embeddings.word.weight"], body)


TEXT = Pretraining(settings="mlm, preset quick, 10 steps, protocol abc", text="0" * 64, seed=0)


def pretrained(folder: Path, attention: str, said: object) -> Run:
    """A run from a checkpoint that says this of its pretraining."""
    source = Path(checkpoint(folder, attention))
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps(config | {"pretraining": said}))
    return replace(RUNS["squad1"], model=replace(TINY, init=str(source))).completed(())


def test_a_pretraining_of_ours_is_finetuned_under_one_protocol(tmp_path: Path) -> None:
    """Variants that were pretrained alike are rows of one table, though their checkpoints differ."""
    runs = [pretrained(tmp_path / name, name, to_json(TEXT)) for name in ("softmax", "dnas")]
    assert settings(type(runs[0]), to_json(runs[0])) == settings(type(runs[1]), to_json(runs[1]))
    assert [row_name(row_of(run, PRESETS["squad1"]["quick"])) for run in runs] == [f"{name}, post" for name in
                                                                         ("softmax", "dnas")]  # fmt: skip
    assert measure(runs[1], tmp_path / "out").status == "finished"


def test_pretraining_on_other_text_is_another_protocol(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Checkpoints that do not say on which text are each of a protocol of its own, and it is said."""
    there = pretrained(tmp_path / "there", "softmax", to_json(TEXT))
    other = pretrained(tmp_path / "other", "dnas", to_json(replace(TEXT, text="1" * 64)))
    old = [pretrained(tmp_path / f"old {name}", name, TEXT.settings) for name in ("softmax", "hnas")]
    assert len({json.dumps(settings(type(run), to_json(run))) for run in (there, other, *old)}) == 4
    assert "10 steps, protocol abc, on text that was not recorded, weights of sha256 " in old[0].model.pretraining
    assemble(old[0], tmp_path, make_accelerator("float32"))
    assert "was pretrained on text that was not recorded: its runs are not compared" in capsys.readouterr().err
    with pytest.raises(BadDataError, match=r"config.json: Pretraining: unknown or missing fields"):
        pretrained(tmp_path / "damaged", "softmax", {"class": "Pretraining", "seed": 0})


def test_another_seed_of_the_pretraining_is_no_other_protocol_and_is_noted(tmp_path: Path) -> None:
    """Pairs are fair where each seed is finetuned from its own; otherwise the row says whose checkpoint it was."""
    run = pretrained(tmp_path / "bert", "softmax", to_json(replace(TEXT, seed=1)))
    paired, mixed = replace(run, seed=1), replace(run, seed=0)
    assert settings(type(paired), to_json(paired)) == settings(type(mixed), to_json(mixed))
    assert (paired.notes, mixed.notes) == ([], ["pretraining seed 1"])
    first = pretrained(tmp_path / "first", "softmax", to_json(TEXT))
    assert settings(type(first), to_json(first)) == settings(type(run), to_json(run))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"task": "squad2"}, "data.version: expected 2.0 for squad2, found 1.1; run squad1 instead"),
        ({"task": "mnli"}, "data: expected the data of mnli, found a Squad"),
        ({"model": replace(TINY, max_length=40)}, "data.length: expected at most model.max_length 40, found 48"),
        ({"model": replace(TINY, pretraining="x")}, "are taken from the checkpoint"),
        ({"data": replace(SQUAD, hub="rajpurkar/squad")}, "expected a vocabulary: set --data.tokenizer"),
    ],
)
def test_runs_that_cannot_be_are_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(WrongUseError, match=message):
        replace(RUNS["squad1"], **changes).check()  # type: ignore[arg-type]
    with pytest.raises(WrongUseError, match="null_threshold applies only to squad2"):
        replace(RUNS["squad1"], data=replace(SQUAD, null_threshold=1.0)).check()
    with pytest.raises(WrongUseError, match="mnli has one head"):
        replace(RUNS["mnli"], model=replace(TINY, head="conditioned")).check()


def test_a_checkpoint_without_a_vocabulary_is_one_message(tmp_path: Path) -> None:
    init = checkpoint(tmp_path)
    for name in ("tokenizer.json", "vocab.txt"):
        (tmp_path / name).unlink()
    run = replace(RUNS["squad1"], model=replace(TINY, init=init)).completed(())
    with pytest.raises(BadDataError, match=r"has no vocabulary .* --data\.tokenizer names one"):
        measure(run, tmp_path / "out")


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(dispatch, ["qa", "--help"]) == 0
    shown = capsys.readouterr().out
    assert "seqarena qa evaluate --help" in shown
    assert "the default if --model.init is set" in shown
    assert run_command(dispatch, ["qa", "squad1", "--model.init", str(tmp_path / "none")]) == 1
    assert "no such folder" in capsys.readouterr().err
    gold, predictions = tmp_path / "g.json", tmp_path / "p.json"
    assert (
        run_command(dispatch, ["qa", "evaluate", "squad1", "--gold", str(gold), "--predictions", str(predictions)]) == 1
    )
    assert "does not exist" in capsys.readouterr().err


def test_the_vocabulary_is_part_of_what_a_run_is_of(tmp_path: Path) -> None:
    """The same questions cut into other tokens are other data; generated words follow from the sources."""
    run = RUNS["squad1"]
    accelerator = make_accelerator("float32")
    plain = PACKAGE.assembly(run, tmp_path, accelerator).data_checksum
    assert plain == run.data.load()[1]
    sums = {plain}
    for number, first in enumerate(("zebra", "yak")):
        words = word_tokenizer([first, *world.words()])
        words.save(tmp_path / str(number))
        named = replace(run, data=replace(run.data, tokenizer=str(tmp_path / str(number))))
        named = replace(named, model=replace(named.model, vocabulary=len(words)))
        sums.add(PACKAGE.assembly(named, tmp_path, accelerator).data_checksum)
    assert len(sums) == 3


@pytest.mark.parametrize(("task", "data", "found"), [("mnli", SQUAD, "Squad"), ("squad1", RUNS["mnli"].data, "Mnli")])
def test_data_of_another_task_are_refused(task: str, data: Data, found: str) -> None:
    with pytest.raises(WrongUseError, match=f"data: expected the data of {task}, found a {found}"):
        replace(RUNS[task], data=data).check()
