"""Builders of launch programs, one module for each kind of call.

| module | program |
|---|---|
| `forward` `backward` | out and lse; dq, dk and dv |
| `split_kv` | few rows against many keys, and steps of decoding |
| `documents` | documents whose lengths only the device knows |
| `sinks` `rows` | what sinks add to a program; rows that are moved by lists, and merged |
| `launches` | waves -> launches: grids, and arguments by name |
| `kernels` | all kernels that a call may launch |
"""
