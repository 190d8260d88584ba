"""The CPU backend: slices of keys, and the matrix products of the installed torch (docs/kernels-cpu.md).

| modules | what they hold |
|---|---|
| `run` | the entry points: heads folded into one batch dimension |
| `program` `tiles` `boxes` `lines` | a plan as steps with slices and masks; views of tokens; tiles on one axis |
| `dense` `flash` `rows` | what torch's own fused attention computes: rectangles, triangles, few queries |
| `forward` `backward` `scores` | the walks over tiles, and what both share |
| `how` `rules` | scale, softcap, ALiBi; score functions and dropout |
"""
