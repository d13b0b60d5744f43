"""Cost of a run, printed before it starts: operations, hours on a named GPU, memory."""

from dataclasses import dataclass

from seqarena.common.model.norms.post import PostNorm
from seqarena.common.model.norms.pre import PreNorm
from seqarena.common.training.loop import Train
from seqarena.pretraining.model import has_order
from seqarena.pretraining.run import Run


@dataclass(frozen=True, kw_only=True)
class Card:
    """A GPU and the multiplications and additions it performs per second."""

    name: str
    per_second: float


LARGE = Card(name="one H200 at 40 % of its 989 T/s in bfloat16", per_second=0.4 * 989e12)

LEAST_HOURS = 0.1
"""Runs that a GPU finishes faster are meant for a CPU; no GPU time is printed for them."""


def line(operations: float, card: Card, memory_bytes: float, parameters: int) -> str:
    """Returns operations, time, memory and model size, all of a model with softmax, as one printed line."""
    hours = operations / card.per_second / 3600
    time = f"{hours:,.1f} hours" if hours >= 1 else f"{60 * hours:.1f} minutes"
    on_card = "" if hours < LEAST_HOURS else f"{time} on {card.name}, "
    memory = f"{memory_bytes / 2**30:,.1f} GiB" if memory_bytes >= 2**30 else f"{memory_bytes / 2**20:,.0f} MiB"
    count = f"{parameters / 1e6:,.1f} M" if parameters >= 1e6 else f"{parameters:,}"
    return (
        f"{operations:.2g} floating-point operations, {on_card}about "
        f"{memory} of tensors per process, about {count} parameters with softmax"
    )


def operations(run: Run, length: int) -> float:
    """Returns the multiplications and additions per training sequence: forward, and twice that for backward.

    Counts the projections and feed-forward of each layer, the projection of the embeddings, the products with the N x N
    weights, and the head on the targets only.
    """
    model, targets = run.model, run.data.masking.targets(length)
    width = model.dim if model.attention_dim is None else model.attention_dim
    layer = length * (4 * model.dim * width + 2 * model.dim * model.ffn_dim) + 2 * length**2 * width
    projection = 0 if model.embedding_dim is None else length * model.embedding_dim * model.dim
    head = targets * model.embedding_width * (model.dim + model.vocabulary)
    return 3 * 2.0 * (model.layers * layer + projection + head)


def parameters(run: Run) -> int:
    """Returns the number of parameters: exact for the norms post and pre, and without those of variants."""
    model, embedded = run.model, run.model.embedding_width
    width = model.dim if model.attention_dim is None else model.attention_dim
    layer = 4 * model.dim * width + 2 * model.dim * model.ffn_dim + model.ffn_dim + 5 * model.dim
    layer += (3 * width + model.dim) * model.projection_bias
    has_last_norm = model.norm.final if isinstance(model.norm, PreNorm) else not isinstance(model.norm, PostNorm)
    last_norm = 2 * model.dim if has_last_norm else 0
    projection = 0 if model.embedding_dim is None else (embedded + 1) * model.dim
    embeddings = embedded * (model.vocabulary + model.max_length + model.token_types + 2)
    masked = embedded * (model.dim + 3) + model.vocabulary
    order = (model.dim + 1) * model.dim + 2 * (model.dim + 1) if has_order(run.data) else 0
    return model.distinct_layers * layer + last_norm + projection + embeddings + masked + order


def memory_bytes(run: Run, processes: int = 1) -> float:
    """Returns the approximate memory of each process: weights, gradients, both moments (float32) and activations.

    Each layer stores about 10 vectors of the stream and 3 of the feed-forward per token, 4 bytes per number. The head
    stores its scores twice.
    """
    model, length = run.model, max(run.data.lengths)
    rows = rows_at_once(run.train, processes)
    layers = model.layers * length * (10 * model.dim + 3 * model.ffn_dim)
    head = 2 * run.data.masking.targets(length) * model.vocabulary
    return 16.0 * parameters(run) + 4.0 * rows * (layers + head)


def rows_at_once(train: Train, processes: int) -> int:
    """Returns the number of examples whose activations a process stores: a micro-batch, or its share of the batch."""
    share = max(1, train.batch_size // processes)
    return min(share, train.micro_batch_size or share)


def total(run: Run) -> float:
    """Returns the operations of the whole run."""
    shares = (1.0,) if run.data.last_length is None else (1 - run.data.last_share, run.data.last_share)
    sequences = run.train.steps * run.train.batch_size
    return sequences * sum(
        share * operations(run, length) for share, length in zip(shares, run.data.lengths, strict=True)
    )


def estimate(run: Run, processes: int = 1) -> str:
    """Returns the cost of a run as one printed line."""
    return line(total(run), LARGE, memory_bytes(run, processes), parameters(run))
