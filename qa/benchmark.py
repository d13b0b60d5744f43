"""Measures the text processing of SQuAD on one core, without a model: reading and cutting, answering and scoring."""

import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from seqarena.common.data.tokenization import load_tokenizer
from seqarena.common.parser import Parser
from seqarena.qa.data.squad import Squad, read
from seqarena.qa.data.windows import windows_of
from seqarena.qa.decoding import answers, best_spans
from seqarena.qa.evaluator import score_answers


def parser() -> Parser:
    """Returns the parser of ``seqarena benchmark squad``."""
    made = Parser(prog="seqarena benchmark squad", description=__doc__)
    made.add_argument("--gold", type=Path, required=True, help="questions of SQuAD 1.1, such as dev-v1.1.json")
    made.add_argument(
        "--vocabulary", type=Path, required=True, help="spiece.model, tokenizer.json, vocab.txt, or a folder"
    )
    return made


def run(arguments: Sequence[str]) -> int:
    """Runs ``seqarena benchmark squad`` and returns its exit code; token scores are random."""
    options = parser().parse_args(arguments)
    torch.set_num_threads(1)
    data, tokenizer = Squad(), load_tokenizer(options.vocabulary)
    start = time.perf_counter()
    windows = windows_of(read(options.gold, data.version, "test"), data, tokenizer, all_windows=False)
    read_in = time.perf_counter() - start
    parts = [np.arange(first, min(first + 64, len(windows))) for first in range(0, len(windows), 64)]
    batches = [windows.batch(part).longer(data.length) for part in parts]
    tokens = [torch.randn(2, *batch.tokens.shape).masked_fill(~batch.real, -torch.inf) for batch in batches]
    start = time.perf_counter()
    spans = [
        best_spans(begin, end, batch.opens, batch.context, n_best=data.n_best, longest=data.answer_length)
        for (begin, end), batch in zip(tokens, batches, strict=True)
    ]
    score, first, last, null = (
        np.concatenate([getattr(each, name).numpy() for each in spans]) for name in ("score", "start", "end", "null")
    )
    score_answers(windows, answers(windows, score, first, last, null))
    print(
        f"{len(windows.questions):,} questions, {len(windows):,} windows: read and cut in {read_in:.1f} s, "
        f"answered and scored in {time.perf_counter() - start:.1f} s"
    )
    return 0
