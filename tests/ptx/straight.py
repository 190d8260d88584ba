"""Straight stretches of a program, of instructions that each thread does with its own numbers, as functions of Python.

They do what these instructions do one by one, in a fraction of the time.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from .formats import TYPES, type_of
from .parse import Fault
from .scalar import TABLE, Alone


@dataclass(frozen=True)
class Stretch:
    """end: the place behind it. names, written: registers that it reads or writes, and writes. does(group)."""

    end: int
    names: frozenset[str]
    written: frozenset[str]
    does: Callable

    def may(self, held):
        """Whether all of it may go on beside products under way. held: as of a group."""
        return not held or not any(
            how == "sum" or name in self.written for name, how in held.items() if name in self.names
        )


def stretch_at(program, at):
    """The Stretch of a program that begins there, None if none does; each is made once."""
    if at not in program.stretches:
        program.stretches[at] = _Writer(program).stretch(at)
    return program.stretches[at]


class _Writer:
    """The lines of one function, and what they name."""

    def __init__(self, program):
        self.program = program
        self.head, self.lines = [], []
        self.known = {}  # what the lines call by a name of their own
        self.now = {}  # register -> (variable, numpy's type)
        self.views = {}  # (variable, type) -> variable
        self.read, self.written, self.constants = {}, {}, {}

    def stretch(self, at):
        end, labels = at, set(self.program.labels.values())
        with np.errstate(all="ignore"):
            while (end == at or end not in labels) and self._add(self.program.code[end]):
                end += 1
        if end == at:
            return None
        names = frozenset((*self.read, *self.written))
        return Stretch(end, names, frozenset(self.written), self._function(at))

    def _function(self, at):
        """Constants are found once for each group; registers that nobody wrote are filled in."""
        lines = ["def does(group):", " registers = group.registers"]
        if self.constants:
            names = ", ".join(self.constants.values())
            lines += [f" [{names}] = group.constants.get({at}) or group.constants_of({at}, constants)"]
        if self.read:
            lines += [" try:", *(f"  {variable} = registers[{name!r}]" for name, variable in self.read.items())]
            lines += [" except KeyError:", "  group.fill(read)", "  return does(group)"]
        lines += [*self.head, *self.lines]
        lines += [f" registers[{name!r}] = {self.now[name][0]}" for name in self.written]
        known = self.known | {"constants": tuple(self.constants), "read": tuple(self.read)}
        exec("\n".join(lines), known)
        return known["does"]

    def _add(self, instruction):
        """Whether the instruction is one that fits here; then its line is written."""
        if instruction.guard:
            return False
        try:
            how = TABLE.get(instruction.opcode) or TABLE.of(instruction.opcode)
            if not isinstance(how, Alone):
                return False
            meaning = how.means(instruction, self.program.registers)
            kinds = [self._kind(*one) for one in meaning.inputs]
            made = self._made(meaning, kinds)
        except Fault:  # which is raised where it is met
            return False
        inputs = [self._input(text, kind) for (text, _), kind in zip(meaning.inputs, kinds, strict=True)]
        self._write(meaning, inputs, made)
        return True

    def _kind(self, text, kind):
        """numpy's type of an operand, if it has as many bits as are wanted."""
        wanted, declared = type_of(kind), self.program.registers.get(text)
        if declared:
            found = type_of(declared)
            if found.itemsize != wanted.itemsize or (found.kind == "b") != (wanted.kind == "b"):
                raise Fault("another width")
        return wanted if declared else kind

    def _made(self, meaning, kinds):
        """(numpy's types of what an instruction makes, whether in a tuple), tried on zeros."""
        zeros = [np.zeros(1, TYPES[kind] if isinstance(kind, str) else kind) for kind in kinds]
        made = zeros[0] if meaning.function is None else meaning.function(*zeros)
        several = isinstance(made, tuple)
        found = [x.dtype for x in (made if several else (made,))]
        for name, kind in zip(meaning.results, found, strict=True):
            if name != "_" and kind.itemsize != type_of(self.program.registers.get(name)).itemsize:
                raise Fault("another width")
        return found, several

    def _input(self, text, kind):
        """The variable of an operand. kind: numpy's type of a register, the name of a constant's."""
        if isinstance(kind, str):
            return self.constants.setdefault((text, kind), f"c{len(self.constants)}")
        if text not in self.now:
            variable = self.read[text] = f"r{len(self.read)}"
            self.head.append(f" if {variable}.dtype is not {self._type(kind)}:")
            self.head.append(f"  {variable} = {variable}.view({self._type(kind)})")
            self.now[text] = variable, kind
        variable, now = self.now[text]
        if now == kind:
            return variable
        if (variable, kind) not in self.views:
            self.views[variable, kind] = f"v{len(self.views)}"
            self.lines.append(f" {self.views[variable, kind]} = {variable}.view({self._type(kind)})")
        return self.views[variable, kind]

    def _type(self, kind):
        self.known[f"of_{kind}"] = kind
        return f"of_{kind}"

    def _write(self, meaning, inputs, made):
        kinds, several = made
        if meaning.function is None:
            variables = inputs
        else:
            variables = [f"x{len(self.lines)}_{i}" for i in range(len(kinds))]
            function = f"f{len(self.lines)}"
            self.known[function] = meaning.function
            self.lines.append(f" {', '.join(variables)}{',' * several} = {function}({', '.join(inputs)})")
        for name, variable, kind in zip(meaning.results, variables, kinds, strict=True):
            if name != "_":
                self.now[name], self.written[name] = (variable, kind), None
