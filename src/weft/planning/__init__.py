"""A plan of one call: tiles, their proof, and which kernels compute them. numpy alone.

| modules | what they hold |
|---|---|
| `problem` `scores` | what is asked: shapes, dtypes, the numbers of scores |
| `tiles` `heads` `attention_plan` | the plan of some heads; heads that share one; the plan of all heads |
| `tiling/` `boxes` | sizes of tiles and their boxes; boxes of a grid, moved to where all their tokens exist |
| `affine_bounds` `tma` `rowwise` | bounds as one line; what descriptors reach; rows by formula |
| `families/` `choose` `candidates` | families of kernels; the loop that weighs them; what a tuner may measure |
| `cost` `work` `rates` `resources` `features` | predicted seconds; work; clocks; room on a card; what it can do |
| `verify` `verify_fused` `interpret` `explain` | its proof; its meaning in float64; what was weighed, in words |
"""
