"""From the source of a kernel to machine code.

| modules | what they hold |
|---|---|
| `emit` `load` `source` | the entry by its family; a kernel as text with the types of its arguments |
| `compiler` `stages` `keys` | a compilation; Triton's stages one by one; the store's key by content |
| `ahead` `filling` | compilations at the same time; a store filled without a GPU |
| `miscompiles` `sass` | known faults of LLVM and ptxas, searched in PTX and in machine code |
| `adding` | stores of boxes that add to memory, which Gluon lacks |
| `dedup` | one copy of the code of warp groups that run the same program |
| `listing` `folding` | a kernel for people to read |
"""
