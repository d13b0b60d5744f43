"""Attention mechanisms of other papers, for comparison, with one file each and entries in ``RIVALS``."""

from collections.abc import Mapping
from types import MappingProxyType

from seqarena.common.attention.base import AttentionConfig
from seqarena.common.attention.elementwise import Elementwise
from seqarena.common.attention.rivals.convolution import Convolution
from seqarena.common.attention.rivals.cosformer import CosFormer
from seqarena.common.attention.rivals.cosine import Cosine
from seqarena.common.attention.rivals.differential import Differential
from seqarena.common.attention.rivals.entmax import Entmax
from seqarena.common.attention.rivals.gated import Gated
from seqarena.common.attention.rivals.linear import Average, Linear
from seqarena.common.attention.rivals.linformer import Linformer
from seqarena.common.attention.rivals.nystromformer import Nystromformer
from seqarena.common.attention.rivals.performer import Performer
from seqarena.common.attention.rivals.sigmoid import Sigmoid
from seqarena.common.attention.rivals.sink import SinkSoftmax
from seqarena.common.attention.rivals.sinkhorn import Sinkhorn
from seqarena.common.attention.rivals.state_space import StateSpace

RIVALS: Mapping[str, AttentionConfig] = MappingProxyType(
    {
        "relu-n": Elementwise(phi="relu", length_exponent=1.0),
        "relu2-n": Elementwise(phi="relu", power=2, length_exponent=1.0),
        "sigmoid": Sigmoid(),
        "softmax1": SinkSoftmax(),
        "sink": SinkSoftmax(trained=True),
        "sinkhorn": Sinkhorn(),
        "entmax": Entmax(),
        "sparsemax": Entmax(alpha=2.0),
        "cosine": Cosine(),
        "linear": Linear(),
        "performer": Performer(),
        "cosformer": CosFormer(),
        "nystromformer": Nystromformer(),
        "linformer": Linformer(),
        "differential": Differential(),
        "gated": Gated(),
        "s4d": StateSpace(),
        "convolution": Convolution(),
        "average": Average(),
    }
)
