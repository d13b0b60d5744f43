"""Cost of a language model's run, printed before it starts."""

from seqarena.pretraining.cost import Card, line, rows_at_once
from seqarena.pretraining.wikitext.run import LanguageRun

SMALL = Card(name="one GPU that reaches 45 T/s on these small matrices (H100 class, a guess)", per_second=45e12)


def operations(run: LanguageRun) -> float:
    """Returns the approximate multiplications and additions per training token: forward, and twice that for backward.

    Includes keys and values of the memory. Of the adaptive softmax it counts only the first part, which every token
    needs.
    """
    model, seen = run.model, run.segments.length + run.segments.memory
    projections = model.dim**2 * (2 + 2 * seen / run.segments.length)
    layer = projections + 2 * model.dim * model.ffn_dim + 3 * seen * model.dim
    head = model.dim * (model.cutoffs[0] + len(model.cutoffs) if model.cutoffs else model.vocabulary)
    return 3 * 2.0 * (model.layers * layer + head)


def parameters(run: LanguageRun) -> int:
    """Returns the number of parameters, except those of non-default norms, variants and biases."""
    model = run.model
    layer = 5 * model.dim**2 + 2 * model.dim * model.ffn_dim + model.ffn_dim + 5 * model.dim
    return model.layers * layer + (model.vocabulary + len(model.cutoffs)) * (model.dim + 1) + 2 * model.dim


def memory_bytes(run: LanguageRun, processes: int = 1) -> float:
    """Returns the approximate memory of each process: weights, gradients, both moments (float32) and activations.

    Each layer stores about 12 vectors of the stream and 2 of the feed-forward per token, and 2 numbers per head and
    pair.
    """
    model, length = run.model, run.segments.length
    tokens = rows_at_once(run.train, processes) * length
    pairs = 2 * model.heads * (length + run.segments.memory)
    return 16.0 * parameters(run) + 4.0 * tokens * model.layers * (12 * model.dim + 2 * model.ffn_dim + pairs)


def estimate(run: LanguageRun, processes: int = 1) -> str:
    """Returns the cost of a run as one printed line."""
    whole = operations(run) * run.train.steps * run.train.batch_size * run.segments.length
    return line(whole, SMALL, memory_bytes(run, processes), parameters(run))
