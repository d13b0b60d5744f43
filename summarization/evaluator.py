"""Generates the headlines of a split and scores them."""

import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import MappingProxyType

import numpy as np
import torch
from torch import nn

from seqarena.common.data.batches import Indices
from seqarena.common.data.tokenization import Tokenizer
from seqarena.common.files import write_atomically, write_json
from seqarena.common.runs.package import Evaluation
from seqarena.common.training.evaluation import per_example, process_batches
from seqarena.common.training.processes import Accelerator, gather_object
from seqarena.summarization.data import Split
from seqarena.summarization.data.text import decode
from seqarena.summarization.decoding import Decoding, search
from seqarena.summarization.model import Summarizer
from seqarena.summarization.rouge import METRICS, drop_unknown, intervals, rows, text_statistics

HYPOTHESES, N_BEST, ROWS, REPORT = "hypotheses{}.txt", "nbest.txt", "rows.json", "report.json"
"""Files of a finished run: headlines, one per line in the order of the test pairs (one file per way to search); the n
best of each text; the scores of each row; means with intervals."""


@dataclass(frozen=True, kw_only=True)
class Headlines:
    """Generated headlines of a split."""

    best: list[list[tuple[str, float]]]
    """Hypotheses of each text with their scores, best first."""
    unended: int
    """Number of headlines that reached the maximum length without an end."""

    @property
    def first(self) -> list[str]:
        """The best headline of each text; empty if the text has none."""
        return [each[0][0] if each else "" for each in self.best]

    @property
    def is_finite(self) -> bool:
        """Whether the scores of all hypotheses are finite."""
        return all(math.isfinite(score) for some in self.best for _, score in some)

    def write(self, folder: Path, policy: str = "") -> None:
        """Writes one headline per line. If there are several per text, also writes all of them with their scores."""
        folder.mkdir(parents=True, exist_ok=True)
        _lines(folder / HYPOTHESES.format(policy), self.first)
        if not policy and any(len(some) > 1 for some in self.best):
            best = [f"{row}\t{score:.4f}\t{text}" for row, some in enumerate(self.best) for text, score in some]
            _lines(folder / N_BEST, best)


def banned_tokens(tokenizer: Tokenizer, vocabulary: int, special: tuple[int, int, int]) -> list[int]:
    """Returns the ids that no headline may contain: special tokens, and ids of the model without a token."""
    start, _, pad = special
    return sorted({start, pad, tokenizer.id("[MASK]"), *range(len(tokenizer), vocabulary)})


def generate(
    model: nn.Module,
    split: Split,
    tokenizer: Tokenizer,
    how: Decoding,
    accelerator: Accelerator,
    *,
    unknown: bool = True,
) -> Headlines:
    """Returns the headlines of a split's texts; ``unknown``: whether [UNK] may be generated."""
    assert isinstance(model, Summarizer)
    start, end, _ = split.encoded.special
    banned = banned_tokens(tokenizer, model.config.vocabulary, split.encoded.special)
    banned += [] if unknown else [tokenizer.id("[UNK]")]

    def headlines(examples: Indices) -> Iterable[tuple[list[tuple[str, float]], bool]]:
        batch = split.encoded.batch(examples).to(accelerator.device)
        with accelerator.autocast():
            found = search(model, batch.source, batch.source_real, how, start=start, end=end, banned=banned)
        for some in found:
            best = [(decode(each.tokens, tokenizer), each.score) for each in some]
            yield best, bool(some) and len(some[0].tokens) == how.max_length

    found = per_example(model, split.encoded.source_lengths, how.batch_size, headlines, accelerator)
    return Headlines(best=[best for best, _ in found], unended=sum(unended for _, unended in found))


@torch.no_grad()
def cross_entropy(model: nn.Module, split: Split, how: Decoding, accelerator: Accelerator) -> float:
    """Returns the mean cross-entropy per token of the references, in nats."""
    model.eval()
    mine: list[tuple[float, int]] = []
    for examples in process_batches(split.encoded.source_lengths, how.batch_size, accelerator):
        batch = split.encoded.batch(examples)
        weight, here = batch.weight(), batch.to(accelerator.device)
        with accelerator.autocast():
            mean = model(here.source, here.source_real, here.target, here.target_real, here.labels, here.picked, 0.0)
        mine.append((float(mean) * weight, weight))
    everyone: list[tuple[float, int]] = gather_object(mine)
    return sum(total for total, _ in everyone) / sum(count for _, count in everyone)


def validate(
    model: nn.Module, split: Split, tokenizer: Tokenizer, how: Decoding, accelerator: Accelerator
) -> Evaluation:
    """Returns the ROUGE of greedy headlines, which selects the checkpoint, and the cross-entropy per token."""
    found = generate(model, split, tokenizer, replace(how, beam=1, n_best=1), accelerator)
    scores = rows(found.first, [pair.summary for pair in split.pairs])
    metrics = {name: float(scores[name].mean()) for name in METRICS}
    metrics["loss"] = cross_entropy(model, split, how, accelerator)
    return Evaluation(metrics=metrics, examples=scores["rouge1"].tolist())


LABELS: Mapping[str, str] = MappingProxyType(
    {
        "emit": "emit: unknown words count (reported score)",
        "drop": "drop: unknown words removed afterwards",
        "ban": "ban: unknown words not generated",
        "greedy": "greedy: as emit, without search",
    }
)
"""Policy for unknown words -> its label in a run's table."""


@dataclass(frozen=True, kw_only=True)
class TestHeadlines:
    """Headlines of the test texts, generated under every policy that is reported."""

    by_policy: Mapping[str, Headlines]
    """emit (the reported score): unknown words allowed and scored; ban: not allowed; greedy: without search."""
    split: Split

    @functools.cached_property
    def scores(self) -> dict[str, dict[str, list[float]]]:
        """F1 of each row by policy and metric. drop: emit with its unknown words removed."""
        references = [pair.summary for pair in self.split.pairs]
        texts = {name: each.first for name, each in self.by_policy.items()}
        texts["drop"] = drop_unknown(texts["emit"])
        found = {name: rows(some, references) for name, some in texts.items()}
        return {name: {metric: some[metric].tolist() for metric in METRICS} for name, some in found.items()}

    def evaluation(self) -> Evaluation:
        """Returns the scores of emit, then those of the other policies and further statistics.

        All are NaN if a score of the model is, so that the run ends as diverged.
        """
        scores = self.scores
        metrics = {name: float(np.mean(scores["emit"][name])) for name in METRICS}
        for policy in [each for each in LABELS if each != "emit"]:
            metrics |= {f"{name}_{policy}": float(np.mean(scores[policy][name])) for name in METRICS}
        metrics |= text_statistics(
            self.by_policy["emit"].first,
            [pair.summary for pair in self.split.pairs],
            [pair.document for pair in self.split.pairs],
        )
        metrics["unended"] = self.by_policy["emit"].unended / len(self.split.pairs)
        if not all(each.is_finite for each in self.by_policy.values()):
            metrics = dict.fromkeys(metrics, math.nan)
        return Evaluation(metrics=metrics, examples=scores["emit"]["rouge1"], write_outputs=self.write_outputs)

    def report(self, floors: Mapping[str, Mapping[str, float]]) -> str:
        """Returns a table of all policies with their intervals, and of the floors."""
        heading = f"{len(self.split.pairs):,} headlines"
        lines = [f"{heading:<48}{'  '.join(f'{name:<20}' for name in METRICS)}"]
        for policy, label in LABELS.items():
            found = intervals({name: np.array(values) for name, values in self.scores[policy].items()})
            lines.append(f"  {label:<46}{'  '.join(f'{found[name]!s:<20}' for name in METRICS)}")
        for rule, values in floors.items():
            lines.append(f"  {f'floor: {rule}':<46}{'  '.join(f'{100 * values[name]:<20.2f}' for name in METRICS)}")
        return "\n".join(line.rstrip() for line in lines)

    def write_outputs(self, folder: Path) -> None:
        """Writes headlines and scores, but neither references nor texts, which may not be redistributed."""
        for policy, each in self.by_policy.items():
            each.write(folder, "" if policy == "emit" else f".{policy}")
        write_json(folder / ROWS, self.scores)
        found = {
            policy: {
                name: asdict(each)
                for name, each in intervals({name: np.array(rows) for name, rows in some.items()}).items()
            }
            for policy, some in self.scores.items()
        }
        write_json(folder / REPORT, found)


def _lines(path: Path, lines: Sequence[str]) -> None:
    content = "".join(f"{line}\n" for line in lines).encode()
    write_atomically(path, lambda file: file.write(content))


def test(
    model: nn.Module, split: Split, tokenizer: Tokenizer, how: Decoding, accelerator: Accelerator
) -> TestHeadlines:
    """Returns the headlines of the test texts under every policy."""
    return TestHeadlines(
        by_policy={
            "emit": generate(model, split, tokenizer, how, accelerator),
            "ban": generate(model, split, tokenizer, how, accelerator, unknown=False),
            "greedy": generate(model, split, tokenizer, replace(how, beam=1, n_best=1), accelerator),
        },
        split=split,
    )
