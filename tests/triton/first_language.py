"""Kernels in Triton's first representation, functions inlined: the order of what they read and wait for, on no card."""

import re

from triton._C.libtriton import ir
from triton.compiler.compiler import make_backend

from weft.kernels.gpu.compile import compiler

NAME = re.compile(r"%[\w#]+")


def of_triton(source, target):
    """The text of a kernel, a line an operation."""
    described, backend = compiler._described(source), make_backend(target)
    told = backend.parse_options(compiler._options(source, target))
    stages, context = {}, ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    backend.add_stages(stages, told, described.language)
    helpers = backend.get_codegen_implementation(told), backend.get_module_map()
    module = described.make_ir(target, told, *helpers, context)
    return str(stages["ttir"](module, {}))


def read_before(text, source, wait):
    """The arguments that memory is read by, or added to, before the first line that waits; None: no line waits."""
    lines = text.splitlines()
    first = next(i for i, line in enumerate(lines) if "tt.func public" in line)
    arguments = re.findall(r"%(\w+):", lines[first])
    names = {f"%{argument}": {name} for argument, (name, _) in zip(arguments, source.types, strict=False)}
    read = set()
    for line in lines[first + 1 :]:
        if wait in line:
            return read
        made, _, rest = line.partition(" = ")
        used = NAME.findall(rest if rest else line)
        of = set().union(*(names.get(name, set()) for name in used))
        if rest:
            for name in NAME.findall(made):
                names[name.split(":")[0]] = of
        if "iter_args" in line:  # a loop carries what it is given
            for inner, outer in re.findall(r"(%\w+) = (%[\w#]+)", line):
                names[inner] = names.get(outer, set())
        if "tt.load" in line or "tt.atomic" in line:
            read |= names.get(used[0], set()) if used else set()
    return None
