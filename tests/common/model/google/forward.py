"""BERT and ALBERT in NumPy, by the names of Google's variables.

The formulas are those of modeling.py in google-research/albert, and in google-research/bert of 2018 (erf gelu).
"""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
from scipy.special import erf

Array = npt.NDArray[np.float64]


class Network:
    """Hidden states and scores of one sequence without padding. Products are x kernel + bias, as in Google's code."""

    def __init__(self, variables: Mapping[str, Array], heads: int, layers: int) -> None:
        self.variables = {name: np.asarray(value, np.float64) for name, value in variables.items()}
        self.heads, self.layers = heads, layers
        self.is_albert = any("inner_group_0" in name for name in variables)

    def dense(self, x: Array, name: str) -> Array:
        return x @ self.variables[f"{name}/kernel"] + self.variables[f"{name}/bias"]

    def norm(self, x: Array, name: str) -> Array:
        centred = x - x.mean(-1, keepdims=True)
        scaled = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-12)
        return scaled * self.variables[f"{name}/gamma"] + self.variables[f"{name}/beta"]

    def gelu(self, x: Array) -> Array:
        if self.is_albert:
            return x * 0.5 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
        return np.asarray(x * 0.5 * (1 + erf(x / np.sqrt(2))))

    def attention(self, x: Array, scope: str) -> Array:
        split = [self.dense(x, f"{scope}/{name}").reshape(len(x), self.heads, -1) for name in ("query", "key", "value")]
        query, key, value = (each.transpose(1, 0, 2) for each in split)
        scores = query @ key.transpose(0, 2, 1) / np.sqrt(query.shape[-1])
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        return np.asarray((weights @ value).transpose(1, 0, 2).reshape(len(x), -1))

    def layer(self, x: Array, index: int) -> Array:
        if self.is_albert:
            scope = "bert/encoder/transformer/group_0/inner_group_0"
            attention, first, last = f"{scope}/attention_1", f"{scope}/LayerNorm", f"{scope}/LayerNorm_1"
            up, down = f"{scope}/ffn_1/intermediate/dense", f"{scope}/ffn_1/intermediate/output/dense"
        else:
            scope = f"bert/encoder/layer_{index}"
            attention, first, last = (
                f"{scope}/attention",
                f"{scope}/attention/output/LayerNorm",
                f"{scope}/output/LayerNorm",
            )
            up, down = f"{scope}/intermediate/dense", f"{scope}/output/dense"
        x = self.norm(x + self.dense(self.attention(x, f"{attention}/self"), f"{attention}/output/dense"), first)
        return self.norm(x + self.dense(self.gelu(self.dense(x, up)), down), last)

    def __call__(self, tokens: npt.NDArray[np.int64], types: npt.NDArray[np.int64]) -> tuple[Array, Array, Array]:
        """Returns hidden states, the scores of all tokens at every position, and those of the segment order."""
        table = "bert/embeddings/{}_embeddings"
        word, position, kind = (self.variables[table.format(each)] for each in ("word", "position", "token_type"))
        x = self.norm(word[tokens] + position[: len(tokens)] + kind[types], "bert/embeddings/LayerNorm")
        if self.is_albert:
            x = self.dense(x, "bert/encoder/embedding_hidden_mapping_in")
        for index in range(self.layers):
            x = self.layer(x, index)
        head = "cls/predictions/transform"
        picked = self.norm(self.gelu(self.dense(x, f"{head}/dense")), f"{head}/LayerNorm")
        pooled = np.tanh(self.dense(x[:1], "bert/pooler/dense"))
        order = pooled @ self.variables["cls/seq_relationship/output_weights"].T
        return (
            x,
            picked @ word.T + self.variables["cls/predictions/output_bias"],
            order[0] + self.variables["cls/seq_relationship/output_bias"],
        )
