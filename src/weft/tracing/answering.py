"""An object that stands for a number while a function is traced, and answers every operation through one method.

It works under Python's operators, under numpy's functions and, through `__torch_function__`, under torch's, of which
nothing is imported. Mask functions and score functions are traced by subclasses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn


def _operator(name: str, *, reflected: bool = False) -> Callable[..., Any]:
    def call(self: Answering, other: Any) -> Any:
        return self.operate(name, (other, self) if reflected else (self, other), {})

    return call


def _unary(name: str) -> Callable[..., Any]:
    def call(self: Answering) -> Any:
        return self.operate(name, (self,), {})

    return call


def _ended(what: str) -> Callable[..., Any]:
    def call(self: Answering, *_: Any) -> Any:
        self.end(what)

    return call


class Answering:
    """Subclasses say what an operation gives (`operate`), which names are operations (`knows`), how a trace ends."""

    __slots__ = ()
    shape: tuple[int, ...] = ()
    ndim = 0

    def operate(self, name: str, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """One operation, whoever asked for it."""
        raise NotImplementedError

    def knows(self, name: str) -> bool:
        """Whether a function or method of that name is an operation."""
        raise NotImplementedError

    def end(self, what: str) -> NoReturn:
        """Raise: the function does what cannot be traced."""
        raise NotImplementedError

    def miss(self, name: str) -> NoReturn:
        """Raise: there is no operation of that name."""
        self.end(f"`{name}`")

    # ---- Python --------------------------------------------------------------------------------------------------
    __add__, __radd__, __iadd__ = _operator("add"), _operator("add", reflected=True), _operator("__iadd__")
    __sub__, __rsub__, __isub__ = _operator("sub"), _operator("sub", reflected=True), _operator("__isub__")
    __mul__, __rmul__, __imul__ = _operator("mul"), _operator("mul", reflected=True), _operator("__imul__")
    __floordiv__, __rfloordiv__ = _operator("floor_divide"), _operator("floor_divide", reflected=True)
    __mod__, __rmod__ = _operator("remainder"), _operator("remainder", reflected=True)
    __truediv__, __rtruediv__ = _operator("div"), _operator("div", reflected=True)
    __ifloordiv__, __imod__, __itruediv__ = _operator("__ifloordiv__"), _operator("__imod__"), _operator("__itruediv__")
    __and__, __rand__, __iand__ = _operator("bitwise_and"), _operator("bitwise_and"), _operator("__iand__")
    __or__, __ror__, __ior__ = _operator("bitwise_or"), _operator("bitwise_or"), _operator("__ior__")
    __xor__, __rxor__, __ixor__ = _operator("bitwise_xor"), _operator("bitwise_xor"), _operator("__ixor__")
    __rshift__, __rrshift__ = _operator("right_shift"), _operator("right_shift", reflected=True)
    __lshift__, __rlshift__ = _operator("left_shift"), _operator("left_shift", reflected=True)
    __irshift__, __ilshift__ = _operator("__irshift__"), _operator("__ilshift__")
    __lt__, __le__, __gt__, __ge__ = _operator("lt"), _operator("le"), _operator("gt"), _operator("ge")
    __eq__, __ne__ = _operator("eq"), _operator("ne")
    __hash__ = None  # type: ignore[assignment]
    __pow__, __rpow__ = _operator("pow"), _operator("pow", reflected=True)
    __neg__, __pos__, __abs__, __invert__ = _unary("neg"), _unary("positive"), _unary("abs"), _unary("bitwise_not")
    __float__ = _ended("its value as a float")
    __len__ = __iter__ = _ended("an iteration over it")
    __array__ = _ended("a conversion to a numpy array")
    __reduce_ex__ = _ended("a copy by the module copy")

    def __getattr__(self, name: str) -> Any:
        """A method; anything else would be taken for true, or for something that arrays have."""
        if name.startswith("__"):
            raise AttributeError(name)
        if not self.knows(name):
            self.miss(name)

        def method(*args: Any, **options: Any) -> Any:
            return self.operate(name, of_method(name, self, args), options)

        return method

    # ---- numpy and torch -----------------------------------------------------------------------------------------
    def __array_ufunc__(self, ufunc: Any, method: str, *args: Any, **options: Any) -> Any:
        if method != "__call__":
            self.end(f"numpy.{ufunc.__name__}.{method}")
        return self.operate(ufunc.__name__, args, options)

    def __array_function__(self, function: Any, types: Any, args: Any, options: Any) -> Any:
        return self.operate(function.__name__, args, options)

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        traced = next(x for x in flat((*args, *(kwargs or {}).values())) if isinstance(x, Answering))
        name = getattr(function, "__name__", str(function))
        if hasattr(function, "__objclass__"):  # a method of tensors
            args = of_method(name, args[0], args[1:])
        return traced.operate(name, tuple(args), dict(kwargs or {}))


def of_method(name: str, owner: Any, args: Sequence[Any]) -> tuple[Any, ...]:
    """The operands of a method as the function of its name takes them: x.where(test, y) is where(test, x, y)."""
    return (*args[:1], owner, *args[1:]) if name == "where" else (owner, *args)


def flat(values: Any) -> Iterator[Any]:
    """Values, and those in their tuples and lists."""
    for value in values:
        if isinstance(value, (tuple, list)):
            yield from flat(value)
        else:
            yield value
