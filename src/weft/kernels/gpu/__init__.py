"""Launch programs and their kernels, described and compiled without a framework (docs/kernels.md).

| modules | what they hold |
|---|---|
| `select` `configure` `spec` | which kernel of a plan computes a call; what it is compiled as |
| `program` `layout` `programs/` | steps over memory by name; how tensors lie; one builder for each kind of call |
| `arguments` `descriptors` `tables/` | what a launch passes: names, tensor descriptors, a plan as integers |
| `ops/` `constants` | jit fragments that families share; numbers that kernels and their oracles share |
| `gemm/` | products with what follows them, for the operators around attention |
| `tile/` `hopper/` `split_kv/` `components/` `documents/` | families of kernels, and tables that the device writes |
| `score/` `sinks` `scaling` | score functions as text of a kernel; sinks; sums that are scaled and rounded |
| `rows` | kernels that move rows of tensors, and merge results |
| `entry` `compile/` | the text of an entry; source -> machine code, and its checks |
| `oracle/` | what each kernel means, in float64, from the packed tables |
"""
