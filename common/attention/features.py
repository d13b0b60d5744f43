"""Powers of scores in time linear in the length: s^p = <phi(q), phi(k)>, phi the p-fold products of coordinates.

sum_j (q_i . k_j)^p v_j = phi(q_i) . S, S = sum_j phi(k_j) v_j^T, a state of head_dim^p x width numbers per head. In
causal order keys are processed in chunks: earlier chunks through the state, the query's own chunk through scores.
"""

from typing import Any

import torch
from torch import Tensor

from seqarena.common.attention.operators import full_precision
from seqarena.common.attention.tiles import blocks

CANCELLATION = 2.0**10
"""Largest accepted ratio of the features' size to their sum in float32; rounding errors grow by this factor."""
FEATURE_NUMBERS = 2**19
"""Number of features computed at once; a few such tensors fit into the second-level cache."""


def features(tokens: Tensor, power: int) -> Tensor:
    """Returns phi of each token: the token itself, or all products of two of its coordinates; G T D^power."""
    return tokens if power == 1 else (tokens[..., :, None] * tokens[..., None, :]).flatten(2)


def features_backward(grad: Tensor, tokens: Tensor, power: int) -> Tensor:
    """Returns the gradient of the tokens, given that of their features, symmetric in both coordinates."""
    if power == 1:
        return grad
    pairs = grad.view(*tokens.shape, tokens.shape[2])
    return torch.mul(pairs, tokens[..., None, :], out=pairs).sum(dim=3).mul_(2)


def _chunks(tokens: Tensor, power: int, own: int) -> tuple[list[slice], int]:
    """Returns the groups of heads, and the number of tokens per chunk."""
    width = tokens.shape[2] ** power
    group = len(tokens) if power == 1 else 2
    size = max(64, FEATURE_NUMBERS // (group * width))
    return blocks(len(tokens), group), min(size, 128) if own and power == 1 else size


def _exact(
    query: Tensor, key: Tensor, others: list[Tensor], power: int, own: int, groups: list[slice], size: int
) -> list[Tensor]:
    """Returns all tensors in float64 if the sum of features of x^2 cancels for some query, otherwise unchanged."""
    tensors = [query, key, *others]
    captured = query.is_cuda and torch.cuda.is_current_stream_capturing()  # values cannot be read during capture
    if power == 1 or query.dtype == torch.float64 or captured or not _cancels(query, key, own, size, state_only=True):
        return tensors
    cancels = not own or any(_cancels(query[heads], key[heads], own, size, state_only=False) for heads in groups)
    return [each.double() for each in tensors] if cancels else tensors


def _cancels(query: Tensor, key: Tensor, own: int, size: int, *, state_only: bool) -> bool:
    """Returns whether the sum of features of x^2 cancels for some query.

    sum_j s_ij^2 = q_i . (K^T K) q_i is compared with |q_i|^2 sum_j |k_j|^2, the magnitude of the features. They differ
    if all keys share a direction orthogonal to the query. The scores themselves lose only the root of this ratio. In
    causal order the sums are over the keys before the query's chunk, so that later keys change nothing.
    ``state_only``: the scores inside the chunk, which take longer, are left out of the first sum. If it is large enough
    without them, they are not needed.
    """
    earlier = key.shape[1] - own
    gram = key[:, :earlier].transpose(1, 2) @ key[:, :earlier]  # L D D
    found = []
    for rows in blocks(query.shape[1], size):
        q = query[:, rows]
        squares = torch.linalg.vecdot(q @ gram, q)
        sizes = q.square().sum(dim=2) * gram.diagonal(dim1=1, dim2=2).sum(dim=1, keepdim=True)
        if own:
            k_own = _at_queries(key, rows, own)
            squares = squares if state_only else squares + _scores(q, k_own).square().sum(dim=2)
            gram = gram + k_own.transpose(1, 2) @ k_own
        found.append((sizes > CANCELLATION * squares).any())
    return bool(torch.stack(found).any())


@torch.library.custom_op("seqarena::power_features", mutates_args=())
@full_precision
def power_features(query: Tensor, key: Tensor, value: Tensor, power: int, own: int) -> Tensor:
    """Returns sum_j (q_i . k_j)^power v_j; L N E.

    ``own`` is 0 if every query attends to all keys. In causal order it is the number of queries: the last ``own`` keys
    are at the positions of the queries, and query i attends to those up to i.
    """
    output = torch.empty(*query.shape[:2], value.shape[2], dtype=query.dtype, device=query.device)
    groups, size = _chunks(query, power, own)
    query, key, value = _exact(query, key, [value], power, own, groups, size)
    for heads in groups:
        q, k, v = query[heads], key[heads], value[heads]
        state = _state(k, v, power, k.shape[1] - own, size)
        for rows in blocks(q.shape[1], size):
            output[heads, rows] = features(q[:, rows], power) @ state
            if own:
                k_own, v_own = _at_queries(k, rows, own), _at_queries(v, rows, own)
                output[heads, rows] += _scores(q[:, rows], k_own).pow_(power) @ v_own
                state += features(k_own, power).transpose(1, 2) @ v_own
    return output


@torch.library.custom_op("seqarena::power_features_backward", mutates_args=())
@full_precision
def power_features_backward(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, power: int, own: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the gradients of query, key and value. States are recomputed from first to last."""
    grad_query, grad_key, grad_value = (torch.empty_like(each) for each in (query, key, value))
    groups, size = _chunks(query, power, own)
    query, key, value, grad = _exact(query, key, [value, grad], power, own, groups, size)
    for heads in groups:
        q, k, v, g = query[heads], key[heads], value[heads], grad[heads]
        earlier = k.shape[1] - own
        state = _state(k, v, power, earlier, size)
        for rows in blocks(q.shape[1], size):
            grad_query[heads, rows] = features_backward(g[:, rows] @ state.transpose(1, 2), q[:, rows], power)
            if own:
                k_own, v_own = _at_queries(k, rows, own), _at_queries(v, rows, own)
                state += features(k_own, power).transpose(1, 2) @ v_own
                scores = _scores(q[:, rows], k_own)
                grad_scores = torch.tril(g[:, rows] @ v_own.transpose(1, 2))
                if power > 1:
                    grad_scores.mul_(scores ** (power - 1)).mul_(power)
                grad_query[heads, rows] += grad_scores @ k_own
                _at_queries(grad_key[heads], rows, own)[:] = grad_scores.transpose(1, 2) @ q[:, rows]
                _at_queries(grad_value[heads], rows, own)[:] = scores.pow_(power).transpose(1, 2) @ g[:, rows]
        grad_state = torch.zeros_like(state)
        for rows in reversed(blocks(q.shape[1], size)):
            if own:
                k_own, v_own = _at_queries(k, rows, own), _at_queries(v, rows, own)
                grad_own = features_backward(v_own @ grad_state.transpose(1, 2), k_own, power)
                _at_queries(grad_key[heads], rows, own)[:] += grad_own
                _at_queries(grad_value[heads], rows, own)[:] += features(k_own, power) @ grad_state
            grad_state += features(q[:, rows], power).transpose(1, 2) @ g[:, rows]
        for keys in blocks(earlier, size):
            grad_key[heads, keys] = features_backward(v[:, keys] @ grad_state.transpose(1, 2), k[:, keys], power)
            grad_value[heads, keys] = features(k[:, keys], power) @ grad_state
    return grad_query, grad_key, grad_value


def _state(key: Tensor, value: Tensor, power: int, keys: int, size: int) -> Tensor:
    """Returns S of the first ``keys`` keys; G D^power E."""
    state = key.new_zeros(len(key), key.shape[2] ** power, value.shape[2])
    for each in blocks(keys, size):
        state += features(key[:, each], power).transpose(1, 2) @ value[:, each]
    return state


def _at_queries(tokens: Tensor, rows: slice, own: int) -> Tensor:
    """Returns the keys (or values) at the positions of these queries."""
    earlier = tokens.shape[1] - own
    return tokens[:, earlier + rows.start : earlier + rows.stop]


def _scores(query: Tensor, key: Tensor) -> Tensor:
    return torch.tril(query @ key.transpose(1, 2))


@power_features.register_fake
def _(query: Tensor, key: Tensor, value: Tensor, power: int, own: int) -> Tensor:
    del key, power, own
    return query.new_empty(*query.shape[:2], value.shape[2])


@power_features_backward.register_fake
def _(grad: Tensor, query: Tensor, key: Tensor, value: Tensor, power: int, own: int) -> tuple[Tensor, Tensor, Tensor]:
    del grad, power, own
    return torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    del output
    ctx.save_for_backward(*inputs[:3])
    ctx.power, ctx.own = inputs[3:]


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    return (*power_features_backward(grad.contiguous(), *ctx.saved_tensors, ctx.power, ctx.own), None, None)


power_features.register_autograd(_backward, setup_context=_setup_context)
