"""Families of kernels: each says what it cannot compute, which configurations it has, and what they take.

| module | kernels |
|---|---|
| `cpu` | boxes of queries on a CPU |
| `tile` | tiles whose warps all do the same, on every GPU |
| `hopper` | single directions by warp groups that specialise |
| `split_kv` | forwards of few rows, whose keys are split |
| `one_kernel` | dQ beside dK and dV, by tiles of keys |
| `components` | patterns whose components fit into a tile, with what is added to scores |
| `fused_backward` `sparse_keys` | all gradients of short windows in one pass, and of sparse keys beside them |

`weft.planning.choose` weighs `tile` against `hopper`, then tiles against `split_kv`, `one_kernel` and `fused_backward`.
`cpu` is alone on its device. `components` are taken wherever a pattern has them and a call adds to scores.
"""
