"""Triton's interpreter, quickened: what it does for every operation beside numpy, in a part of the time.

Nothing is left out: whole numbers that overflow are refused as before, in one step rather than ten of the interpreter's
own. Written for Triton 3.6 and 3.7; others are left as they are.
"""

import math
from functools import cache, wraps

import numpy as np
import triton
import triton.language as tl
from triton.language import core, semantic
from triton.runtime import interpreter

KNOWN = ("3.6.", "3.7.")
EXACT = {"add": np.add, "sub": np.subtract, "mul": np.multiply}


def quicken():
    """From now on, in this process."""
    if not triton.__version__.startswith(KNOWN):
        return
    interpreter._get_np_dtype = _type_of(interpreter._get_np_dtype)
    interpreter._patch_builtin = _patch_builtin
    interpreter._patch_lang = _once(interpreter._patch_lang)
    core.tensor.__init__ = _new_tensor
    core.block_type.with_element_ty = _with_element_type
    core._unwrap_if_constexpr = _unwrapped(core._unwrap_if_constexpr)
    whole = semantic.TritonSemantic
    whole.binary_op_sanitize_overflow_impl = _refuse_overflow
    whole.broadcast_impl_value = _broadcast(whole.broadcast_impl_value)


def _type_of(original):
    """numpy's type of Triton's, by name."""
    kept = {}

    @wraps(original)
    def found(kind):
        scalar = kind.element_ty if isinstance(kind, tl.block_type) else kind
        if scalar.name not in kept:
            kept[scalar.name] = original(scalar)
        return kept[scalar.name]

    return found


def _refuse_overflow(self, lhs, rhs, binary_op):
    """Both are of one shape and type."""
    kind = lhs.type.scalar
    if kind.int_bitwidth >= 64 or not self.builder.options.sanitize_overflow:
        return
    assert kind == rhs.type.scalar
    assert kind.is_int()
    name = binary_op.__name__
    x = EXACT[name](lhs.handle.data.astype(np.int64), rhs.handle.data.astype(np.int64))
    inside = not x.size or (x.min() >= kind.get_int_min_value() and x.max() <= kind.get_int_max_value())
    assert inside, f"int{kind.int_bitwidth} overflow detected for operation {name}"


def _broadcast(original):
    """Of a block and a block, or a block and a number, as often as not."""

    @wraps(original)
    def found(self, lhs, rhs):
        left, right = lhs.type, rhs.type
        if not left.is_block():
            return (lhs, rhs) if not right.is_block() else (self.tensor(*_splat(self, lhs, right)), rhs)
        if not right.is_block():
            return lhs, self.tensor(*_splat(self, rhs, left))
        if left.shape.values == right.shape.values:
            return lhs, rhs
        return original(self, lhs, rhs)

    return found


def _splat(self, number, block):
    kind = block.with_element_ty(number.type.scalar)
    return self.builder.create_splat(kind, number.handle), kind


def _new_tensor(self, handle, type):
    self.handle, self.type, self.dtype = handle, type, type.scalar
    self.shape, self.numel = _shape_of(tuple(type.shape.values) if type.is_block() else ())


@cache
def _shape_of(shape):
    """(as tensors have it, how many numbers)"""
    return core.tuple([core.constexpr(size) for size in shape]), core.constexpr(math.prod(shape))


BLOCKS = {}


def _with_element_type(self, scalar):
    key = scalar.name, scalar.is_ptr() and scalar.address_space, *self.shape.values
    found = BLOCKS.get(key)
    if found is None:
        found = BLOCKS[key] = core.block_type(scalar, self.shape)
    return found


def _unwrapped(original):
    """What is no constant stays as it is, and most of it is of these types."""
    plain = {core.tensor, core.dtype, int, float, bool, str, type(None)}

    @wraps(original)
    def found(x):
        kind = type(x)
        return x if kind in plain else x.value if kind is core.constexpr else original(x)

    return found


@cache
def _builtins(package):
    """Names of what the interpreter puts something else in place of; asked first where nothing is replaced yet."""
    return [name for name in dir(package) if core.is_builtin(getattr(package, name, None))]


def _once(original):
    """The language is replaced for a kernel, and not again for functions that it calls and that see no more of it."""
    under_way = []  # of a kernel: the names of what is replaced

    class Scope:
        """Of a kernel."""

        def __init__(self, fn):
            self.scope = original(fn)
            under_way.append(_seen(fn))

        def restore(self):
            under_way.pop()
            self.scope.restore()

    @wraps(original)
    def found(fn):
        if not under_way:
            return Scope(fn)
        if _seen(fn) <= under_way[-1]:
            return None
        under_way[-1] |= _seen(fn)
        return original(fn)

    return found


@cache
def _seen(fn):
    """Which modules of the language a function sees."""
    return frozenset(one.__name__ for one in fn.__globals__.values() if one is tl or one is core)


def _patch_builtin(package, builder, scope):
    names = _builtins(package)
    if not (names and core.is_builtin(getattr(package, names[0]))):  # all are replaced, by who called this function
        return
    for name in names:
        member = getattr(package, name)
        if core.is_builtin(member):
            scope.set_attr(package, name, _interpreted(member))


def _interpreted(member):
    def call(*args, **kwargs):
        kwargs["_semantic"] = interpreter.interpreter_semantic
        return member(*args, **kwargs)

    return call
