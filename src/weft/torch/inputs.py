"""What may be passed to attention: one clear exception for each thing that may not."""

from __future__ import annotations

from typing import Any

from torch import SymFloat, SymInt, Tensor, strided

from weft.errors import InputError, OptionError, UnsupportedError
from weft.planning.problem import Problem
from weft.planning.scores import check_scores


def check_tensors(q: Tensor, k: Tensor, v: Tensor) -> None:
    """q (B, Hq, M, D), k (B, Hkv, N, D), v (B, Hkv, N, Dv); one dtype, one device, Hq a multiple of Hkv."""
    for name, x in (("q", q), ("k", k), ("v", v)):
        if not isinstance(x, Tensor):
            _wrong(f"{name} is {type(x).__name__}, not a tensor", "pass torch tensors")
        check_kind(name, x)
        if not is_dense(x):
            _wrong(f"{name} is {'nested' if x.is_nested else x.layout}", "pass tensors with strides, padded if need be")
        if x.dim() != 4:
            _wrong(f"{name} has {x.dim()} dimensions", "pass q (B, Hq, M, D), k (B, Hkv, N, D), v (B, Hkv, N, Dv)")
    for name, x in (("k", k), ("v", v)):
        _check_alike(q, name, x)
    if not q.dtype.is_floating_point:
        _wrong(f"q, k and v are {q.dtype}", "use float64, float32, bfloat16 or float16")
    if k.shape[1] != v.shape[1] or k.shape[2] != v.shape[2]:
        _wrong(f"k is {_shape(k)} and v is {_shape(v)}", "give k and v the same heads and length")
    if q.shape[3] != k.shape[3]:
        _wrong(f"q has head dimension {q.shape[3]}, k has {k.shape[3]}", "give q and k one head dimension")
    if k.shape[1] == 0 or q.shape[1] % k.shape[1] != 0:
        _wrong(f"{q.shape[1]} query heads cannot share {k.shape[1]} key heads evenly", "make Hq a multiple of Hkv")
    if q.shape[3] == 0 or v.shape[3] == 0:
        _wrong("a head dimension is 0", "pass head dimensions of 1 or more")


def check_kind(name: str, x: Tensor) -> None:
    """Refuse subclasses that mean more than their numbers."""
    kind = type(x).__name__
    if kind == "DTensor":
        cure = (
            "where q, k and v are sharded over batch rows or heads alone, write weft.attention(q.to_local(), "
            "k.to_local(), v.to_local(), mask), and give the result to DTensor.from_local"
        )
        raise UnsupportedError(
            f"attention({name}=DTensor)", "attention of distributed tensors is not implemented", cure
        )
    if kind == "MaskedTensor":
        cure = f"pass {name}.get_data(), and {name}.get_mask() as part of mask: weft.padding(mask=...) of tokens"
        raise UnsupportedError(f"attention({name}=MaskedTensor)", "a tensor's own mask is not read", cure)


def is_dense(x: Tensor) -> bool:
    """Whether a tensor lies in memory by strides."""
    return x.layout is strided and not x.is_nested


def _check_alike(q: Tensor, name: str, x: Tensor) -> None:
    if x.dtype != q.dtype:
        _wrong(f"q is {q.dtype}, {name} is {x.dtype}", "convert q, k and v to one dtype")
    if x.device != q.device:
        _wrong(f"q is on {q.device}, {name} on {x.device}", "move q, k and v to one device")
    if x.shape[0] != q.shape[0]:
        _wrong(f"q has {q.shape[0]} batch rows, {name} has {x.shape[0]}", "give q, k and v one batch size")


def check_options(q: Tensor, options: dict[str, Any]) -> None:
    """scale finite; softcap positive; sinks and alibi_slopes (Hq,)."""
    check_numbers(options)
    for name in ("sinks", "alibi_slopes"):
        x = options[name]
        if x is None:
            continue
        check_row(name, x, q.shape[1])
        if x.shape[0] != q.shape[1]:
            wrong = f"there are {q.shape[1]} query heads"
            _option(f"{name}={_shape(x)}", wrong, f"pass {name} of shape ({q.shape[1]},)")
        if x.device != q.device:
            _option(f"{name} on {x.device}", f"q is on {q.device}", "move it there")


def check_row(name: str, x: Any, heads: int | str = "Hq") -> None:
    """Sinks or slopes: a tensor with one real number for each query head."""
    cure = f"pass {name} as a tensor of shape ({heads},)"
    if not isinstance(x, Tensor):
        _option(f"{name}={type(x).__name__}", "it is no tensor", cure)
    if not is_dense(x) or x.dim() != 1:
        _option(f"{name}={_shape(x) if is_dense(x) else 'a tensor without strides'}", "it is no vector", cure)
    if x.is_complex():
        _option(f"{name} of {x.dtype}", "scores are real", cure)


def check_numbers(options: dict[str, Any]) -> None:
    """scale and softcap as `check_scores` has them, dropout a number; absent ones are None."""
    scale, softcap, _ = (_number(name, options.get(name)) for name in ("scale", "softcap", "dropout"))
    check_scores(scale, softcap)


def _number(name: str, value: Any) -> Any:
    if isinstance(value, Tensor):
        raise UnsupportedError(
            f"attention({name}=tensor)", f"{name} is read as a number, and no gradient would reach the tensor",
            f"pass float({name}), or multiply q by the tensor",
        )  # fmt: skip
    if value is not None and (isinstance(value, bool) or not isinstance(value, (int, float, SymFloat, SymInt))):
        cure = f"pass float({name})" if hasattr(value, "__float__") else "pass a float"
        _option(f"{name}={value!r}", f"{name} is {type(value).__name__}, not a number of Python's", cure)
    return value


def check_choices(backend: Any, deterministic: Any) -> None:
    """backend: a name; deterministic: True, False or None (as torch.use_deterministic_algorithms says)."""
    if not isinstance(backend, str):
        _option(f"backend={backend!r}", "a backend is chosen by name", "pass 'auto' or the name of a backend")
    if deterministic is not None and not isinstance(deterministic, bool):
        _option(f"deterministic={deterministic!r}", "it is neither True, False nor None", "pass one of them")


def problem_of(q: Tensor, k: Tensor, v: Tensor) -> Problem:
    """The shapes and dtypes of checked tensors."""
    batch, q_heads, m, d = q.shape
    dtype = str(q.dtype).removeprefix("torch.")
    return Problem(batch, q_heads, k.shape[1], m, k.shape[2], d, v.shape[3], dtype, q.device.type)


def _shape(x: Tensor) -> str:
    return str(tuple(x.shape))


def _wrong(wrong: str, cure: str) -> None:
    raise InputError("attention(q, k, v, ...)", wrong, cure)


def _option(asked: str, wrong: str, cure: str) -> None:
    raise OptionError(f"attention({asked})", wrong, cure)
