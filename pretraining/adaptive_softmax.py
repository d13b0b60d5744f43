"""Adaptive softmax of Transformer-XL (Grave et al. 2017): rare words are scored in clusters; tied to the embeddings."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from seqarena.common.data.batches import moved
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
        self.bias = nn.Parameter(torch.zeros(vocabulary))
        self.clusters = nn.Parameter(torch.zeros(len(cutoffs), dim))
        self.cluster_bias = nn.Parameter(torch.zeros(len(cutoffs)))

    def forward(self, hidden: Picked, table: Table, targets: TokenIds) -> Total:
        """Returns the sum of the cross-entropies of all positions, in nats.

        ``targets`` may be on the CPU whatever the device: then the host finds the words of each cluster, and need not
        wait for the device to count them.
        """
        total = hidden.new_zeros((), dtype=torch.float32)
        for rows, weight, bias, labels in self._parts(table, targets):
            total = total + chunked_cross_entropy(hidden[rows], weight, bias, labels)
        return total

    @torch.no_grad()
    def losses(self, hidden: Picked, table: Table, targets: TokenIds) -> TokenLosses:
        """Returns the cross-entropy of each position, in the order of the positions; arguments as for ``forward``."""
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
        cluster = torch.bucketize(targets, torch.tensor(self.ends, device=targets.device), right=True)  # 0: frequent
        first = torch.where(cluster == 0, targets, frequent + cluster - 1)
        yield (
            torch.arange(len(targets), device=table.device),
            torch.cat([table[:frequent], self.clusters]),
            torch.cat([self.bias[:frequent], self.cluster_bias]),
            moved(first, table.device),
        )
        for number, (start, stop) in enumerate(zip(self.ends, self.ends[1:], strict=False), start=1):
            rows = torch.nonzero(cluster == number)[:, 0]
            if len(rows):
                labels = moved(targets[rows] - start, table.device)
                yield moved(rows, table.device), table[start:stop], self.bias[start:stop], labels
