"""Builders of launch programs, one module for each kind of call.

| module | program |
|---|---|
| `forward` `backward` | out and lse; dq, dk and dv |
| `split_kv` | few rows against many keys, and steps of decoding |
| `components` | patterns whose components fit into a tile, with what is added to scores |
| `documents` | documents whose lengths only the device knows |
| `rows` | rows that move by lists of places, and merged results |
| `sinks` | what sinks add to a program |
| `launches` | waves -> launches: grids, and arguments by name |
| `kernels` | all kernels that a call may launch |
"""
