"""Adaptive softmax of Transformer-XL (Grave et al. 2017): rare words are scored in clusters; tied to the embeddings."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from seqarena.common.model.cross_entropy import CHUNK, chunked_cross_entropy
from seqarena.common.shapes import Picked, Table, TokenIds, TokenLosses, Total


class AdaptiveSoftmax(nn.Module):
    """p(word) = softmax over frequent words and clusters, times softmax over a cluster's words; a proper distribution.

    The output weights are the embedding table; each word has a bias. Cluster scores follow those of the frequent
    words in the order of the clusters (the published PyTorch code reverses it).
    """

    def __init__(self, vocabulary: int, dim: int, cutoffs: Sequence[int]) -> None:
        super().__init__()
        self.ends = (*cutoffs, vocabulary)
        self.register_buffer("boundaries", torch.tensor(self.ends), persistent=False)
        self.boundaries: Tensor
        self.bias = nn.Parameter(torch.zeros(vocabulary))
        self.clusters = nn.Parameter(torch.zeros(len(cutoffs), dim))
        self.cluster_bias = nn.Parameter(torch.zeros(len(cutoffs)))

    def forward(self, hidden: Picked, table: Table, targets: TokenIds) -> Total:
        """Returns the sum of the cross-entropies of all positions, in nats."""
        total = hidden.new_zeros((), dtype=torch.float32)
        for rows, weight, bias, labels in self._parts(table, targets):
            total = total + chunked_cross_entropy(hidden[rows], weight, bias, labels)
        return total

    @torch.no_grad()
    def losses(self, hidden: Picked, table: Table, targets: TokenIds) -> TokenLosses:
        """Returns the cross-entropy of each position, in the order of the positions."""
        found = hidden.new_zeros(len(hidden), dtype=torch.float32)
        for rows, weight, bias, labels in self._parts(table, targets):
            for start in range(0, len(rows), CHUNK):
                part = slice(start, start + CHUNK)
                scores = F.linear(hidden[rows[part]], weight, bias).float()
                found[rows[part]] += F.cross_entropy(scores, labels[part], reduction="none")
        return found

    def _parts(self, table: Table, targets: TokenIds) -> Iterator[tuple[TokenIds, Table, Tensor, TokenIds]]:
        """Yields each softmax: positions, weights, biases and labels. First the frequent words, then each cluster."""
        frequent = self.ends[0]
        cluster = torch.bucketize(targets, self.boundaries, right=True)  # 0: frequent
        first = torch.where(cluster == 0, targets, frequent + cluster - 1)
        every = torch.arange(len(targets), device=targets.device)
        yield (
            every,
            torch.cat([table[:frequent], self.clusters]),
            torch.cat([self.bias[:frequent], self.cluster_bias]),
            first,
        )
        for number, (start, stop) in enumerate(zip(self.ends, self.ends[1:], strict=False), start=1):
            rows = torch.nonzero(cluster == number)[:, 0]
            if len(rows):
                yield rows, table[start:stop], self.bias[start:stop], targets[rows] - start
