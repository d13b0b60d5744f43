"""A finished run writes headlines for other texts: those of its own test, a folder that is taken, what it refuses."""

import json
from pathlib import Path

import pytest

from seqarena.common.errors import run_command
from seqarena.scripts.seqarena import dispatch
from seqarena.summarization import trainer
from tests.summarization.test_training import TINY, measure


def predicted(run: Path, documents: Path, out: Path, *more: str) -> int:
    words = ["summarization", "predict", str(run), "--documents", str(documents), "--out", str(out), *more]
    return run_command(dispatch, words)


def test_its_own_test_texts_get_the_headlines_and_scores_of_its_test(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result, folder = measure(TINY, tmp_path)
    _, splits = trainer.prepare(TINY, tmp_path)
    documents, references = tmp_path / "documents.txt", tmp_path / "references.txt"
    documents.write_text("".join(f"{pair.document}\n" for pair in splits.test.pairs))
    references.write_text("".join(f"{pair.summary}\n" for pair in splits.test.pairs))
    capsys.readouterr()
    out = tmp_path / "out"
    assert predicted(folder, documents, out, "--references", str(references), "--json") == 0
    scores = json.loads(capsys.readouterr().out.splitlines()[-1])
    for name in ("rouge1", "rouge2", "rougeL"):
        assert scores[name]["mean"] == pytest.approx(100 * result.metrics[name])
    for name in ("hypotheses.txt", "nbest.txt"):
        assert (out / name).read_bytes() == (folder / "outputs" / name).read_bytes()
    assert predicted(folder, documents, out) == 2
    assert "expected a folder that is empty or not there yet" in capsys.readouterr().err
    assert predicted(folder, documents, tmp_path / "greedy", "--decoding.beam", "1", "--decoding.n-best", "1") == 0
    assert capsys.readouterr().out == ""
    ours, theirs = tmp_path / "greedy" / "hypotheses.txt", folder / "outputs" / "hypotheses.greedy.txt"
    assert ours.read_bytes() == theirs.read_bytes()
    assert predicted(folder, documents, tmp_path / "other", "--data.source-length", "9") == 2
    assert (
        "data.source_length: fixed when the run was trained; here only decoding. can be set" in capsys.readouterr().err
    )
    references.write_text("one\n")
    assert predicted(folder, documents, tmp_path / "other", "--references", str(references)) == 1
    assert f"{references} has 1 lines and {documents} 20; expected the same number" in capsys.readouterr().err
    assert not (tmp_path / "other").exists()
