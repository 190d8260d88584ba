"""The PyTorch front end: `attention`, `varlen_attention`, `merge`, `plan`, `explain`, `trace_score`,
`SparseAttention` and `MultiheadSparseAttention`."""

from weft.torch.attention import attention, explain, plan
from weft.torch.frameworks import unscriptable
from weft.torch.key_cache import decode_attention
from weft.torch.merging import merge
from weft.torch.module import SparseAttention
from weft.torch.multihead import KeyCache, MultiheadSparseAttention
from weft.torch.tracing import trace_score
from weft.torch.varlen import varlen_attention

__all__ = [
    "KeyCache",
    "MultiheadSparseAttention",
    "SparseAttention",
    "attention",
    "decode_attention",
    "explain",
    "merge",
    "plan",
    "trace_score",
    "varlen_attention",
]

for function in (attention, decode_attention, merge, varlen_attention):
    unscriptable(function)
