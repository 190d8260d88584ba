"""The PyTorch front end: `attention`, `varlen_attention`, `decode_attention`, `plan` and the modules.

| modules | what they hold |
|---|---|
| `attention` `varlen` `key_cache` `module` `multihead` | the public calls |
| `eager` `call` `operator` `transforms` | the short way past the dispatcher; one checked call; operators; torch.func |
| `inputs` `layouts` `translate` `keywords` | checks, and other libraries' arguments |
| `masks` `blockmask` `mask_mod` `fingerprint` `unchanged` `mask_cache` `remembered` | tensors and functions as masks |
| `extras` `tracing` `reads` `entries` `along` `kept_places` | score functions, biases, dropout; their gradients |
| `document_rows` `device_documents` `document_programs` `paged_documents` | packed documents, lengths on either side |
| `decode` `decode_operator` `paged_keys` `cached_rows` `merging` | decoding; keys in pages; parts merged by lse |
| `bind` `launcher` `driver` `device_tables` `gpu` | launch programs bound to tensors and a stream |
| `card` `measure` `frameworks` | the GPU at hand; kernels timed; what torch's tools ask |
| `distributed/` | the call over a process group |
"""

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
