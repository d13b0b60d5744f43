"""What a run costs, told before it starts: operations, hours on a stated card, memory."""

from pretraining.run import Run

CARD, OPERATIONS_PER_SECOND = "one H200 at 40 % of its 989 T/s in bfloat16", 0.4 * 989e12


def operations(run: Run, length: int) -> float:
    """Returns the multiplications and additions of a training sequence: forward, and twice that backward.

    Projections and feed-forward of each layer, products with the N x N weights, the head on the targets alone.
    """
    model, targets = run.model, run.data.masking.targets(length)
    width = model.dim if model.attention_dim is None else model.attention_dim
    layer = length * (4 * model.dim * width + 2 * model.dim * model.ffn_dim) + 2 * length**2 * width
    head = targets * (model.dim**2 + model.dim * model.vocabulary)
    return 3 * 2.0 * (model.layers * layer + head)


def parameters(run: Run) -> int:
    """Returns about how many numbers are trained: matrices and embeddings."""
    model = run.model
    width = model.dim if model.attention_dim is None else model.attention_dim
    layer = 4 * model.dim * width + 2 * model.dim * model.ffn_dim
    return model.layers * layer + model.dim * (model.vocabulary + model.max_length + 2 * model.dim)


def memory_bytes(run: Run) -> float:
    """Returns about what a process holds: weights, gradients and both moments in float32, and a batch's activations.

    A layer keeps about 10 vectors of the stream and 3 of the feed-forward a token, 4 bytes each; the head two times
    its scores.
    """
    model, length = run.model, max(run.data.lengths)
    rows = run.train.micro_batch_size or run.train.batch_size
    layers = model.layers * length * (10 * model.dim + 3 * model.ffn_dim)
    head = 2 * run.data.masking.targets(length) * model.vocabulary
    return 16.0 * parameters(run) + 4.0 * rows * (layers + head)


def total(run: Run) -> float:
    """Returns the operations of the whole run."""
    shares = (1.0,) if run.data.last_length is None else (1 - run.data.last_share, run.data.last_share)
    sequences = run.train.steps * run.train.batch_size
    return sequences * sum(
        share * operations(run, length) for share, length in zip(shares, run.data.lengths, strict=True)
    )


def estimate(run: Run) -> str:
    """Returns one line for a person."""
    whole = total(run)
    hours = whole / OPERATIONS_PER_SECOND / 3600
    return (
        f"{whole:.2g} floating-point operations, {hours:,.1f} hours on {CARD}, about "
        f"{memory_bytes(run) / 2**30:,.1f} GiB a process, {parameters(run) / 1e6:,.1f} M parameters"
    )
