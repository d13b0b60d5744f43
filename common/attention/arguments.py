"""Checks of the tensors of an attention call."""

from torch import Tensor

from seqarena.common.errors import WrongUseError


def check_tensors(query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None) -> None:
    """Raises a ``WrongUseError`` that names the tensor whose shape, dtype or device does not fit the others.

    PyTorch's fused operators accept tensors of wrong shapes without an error, and read beyond their memory.
    """
    for each in (query, key, value, bias):
        if each is not None and not isinstance(each, Tensor):
            raise WrongUseError(f"query, key, value, bias: expected tensors, found {type(each).__name__}")
    q, k, v = (tuple(each.shape) for each in (query, key, value))
    if any(len(shape) != 4 or 0 in shape for shape in (q, k, v)) or not (
        q[:2] == k[:2] == v[:2] and q[3] == k[3] and k[2] == v[2]
    ):
        raise WrongUseError(
            "expected query (batch, heads, queries, head_dim), key (batch, heads, keys, head_dim) and value "
            f"(batch, heads, keys, width), each at least 1; found query {q}, key {k}, value {v}"
        )
    tensors = [each for each in (query, key, value, bias) if each is not None]
    if any(not each.is_floating_point() or each.device != query.device for each in tensors):
        found = ", ".join(f"{each.dtype} on {each.device}" for each in tensors)
        raise WrongUseError(f"query, key, value, bias: expected floating-point numbers on one device; found {found}")
    full = (*q[:3], k[2])
    if bias is not None and (
        bias.dim() != 4 or any(size not in (1, whole) for size, whole in zip(bias.shape, full, strict=True))
    ):
        raise WrongUseError(
            f"bias: expected floating-point numbers of shape {full}, or 1 on any axis; "
            f"found {bias.dtype} of shape {tuple(bias.shape)}"
        )
