"""PTX as text -> a program: instructions in order, labels, the types of registers and parameters."""

import re
from dataclasses import dataclass, field

PARAMETER = re.compile(r"^\s*\.param\s+(?:\.align \d+ )?\.(\w+)(?:\s+\.ptr[^,\n]*?)?\s+(\w+)(?:\[\d+\])?,?\s*$", re.M)
DECLARED = re.compile(r"\.reg\s+\.(\w+)\s+(.*)")
FAMILY = re.compile(r"(%\w+)<(\d+)>")
LABEL = re.compile(r"(\$?\w+):")
TARGETS = re.compile(r"(\$?\w+):\s*(\.branchtargets\s.*)", re.S)
ALONE = re.compile(r"[$%\w.]+")  # a name or an opcode
GUARD = re.compile(r"@(!?)(%?\w+)\s+(.*)", re.S)


class Fault(Exception):
    """What a GPU would stop at or leave undefined, or what is not known here."""


@dataclass(frozen=True)
class Instruction:
    """`@!guard opcode operands;` parts: the opcode at its dots; kind: the last one, its type. operands: as text; {a, b}
    is a list. line: in the text of the program, from 1.
    """

    guard: str
    negated: bool
    opcode: str
    parts: tuple[str, ...]
    kind: str
    operands: tuple
    line: int


@dataclass(frozen=True, repr=False, eq=False)
class Program:
    """params: (name, type) in order. registers: name -> type. labels: name -> place in code. threads: of a block."""

    params: tuple[tuple[str, str], ...]
    registers: dict[str, str]
    code: tuple[Instruction, ...]
    labels: dict[str, int]
    threads: int
    lines: list[str]
    stretches: dict = field(default_factory=dict)  # place in code -> what `straight` makes of it

    def said(self, instruction):
        """Where it stands and what it says."""
        return f"line {instruction.line}: {self.lines[instruction.line - 1].strip()}"


def parse(text):
    """The program of a text with one entry."""
    opened = text.index("{", text.index(".entry"))
    head, body = text[:opened], text[opened + 1 :]
    registers, code, labels = {}, [], {}
    again = {}  # label -> its name, of the last that is called so: scopes of inline assembly may share one
    for number, statement in _statements(body, 1 + head.count("\n")):
        label, declared = LABEL.fullmatch(statement), DECLARED.fullmatch(statement)
        listed = TARGETS.fullmatch(statement)
        if listed:  # of a branch to one of many
            labels[listed[1]] = len(code)
            code.append(_instruction(listed[2], number))
        elif label:
            again[label[1]] = f"{label[1]}'{len(code)}" if label[1] in labels else label[1]
            labels[again[label[1]]] = len(code)
        elif declared:
            registers |= dict.fromkeys(_names(declared[2]), declared[1])
        else:
            code.append(_instruction(ALONE.sub(lambda name: again.get(name[0], name[0]), statement), number))
    params = tuple((name, kind) for kind, name in PARAMETER.findall(head))
    threads = int(re.search(r"\.reqntid\s+(\d+)", head)[1])
    return Program(params, registers, tuple(code), labels, threads, text.splitlines())


def _statements(body, first):
    """(number of its first line, text) of each but those for debuggers; first: the number of the body's first line."""
    begun, at = "", first
    for number, whole in enumerate(body.splitlines(), first):
        line = whole.partition("//")[0].strip()
        if not line or re.match(r"\.(loc|file|section|pragma)\b", line):
            continue
        if not begun:
            at = number
            if LABEL.fullmatch(line):
                yield number, line
                continue
        begun += " " + line
        while ";" in begun:
            statement, _, begun = begun.partition(";")
            yield at, _without_scope(statement)
            begun, at = begun.strip(), number
        if not begun.strip(" {}"):
            begun = ""


def _without_scope(statement):
    """Braces around several statements belong to none of them."""
    statement = statement.strip()
    while statement[:1] in ("{", "}"):
        statement = statement[1:].lstrip()
    return statement


def _names(declared):
    """`%r<3>` or `a, b` -> names."""
    family = FAMILY.fullmatch(declared.strip())
    if family:
        return [f"{family[1]}{i}" for i in range(int(family[2]))]
    return [name.strip() for name in declared.split(",")]


def _instruction(text, number):
    guard, negated = "", False
    found = GUARD.fullmatch(text)
    if found:
        negated, guard, text = found[1] == "!", found[2], found[3]
    opcode, *rest = text.split(None, 1)
    parts = tuple(opcode.split("."))
    return Instruction(guard, negated, opcode, parts, parts[-1], _operands("".join(rest)), number)


def _operands(text):
    """Split at commas outside of braces and brackets."""
    found, depth, begun = [], 0, ""
    for letter in text:
        depth += (letter in "{[") - (letter in "}]")
        if letter == "," and depth == 0:
            found.append(begun.strip())
            begun = ""
        else:
            begun += letter
    if begun.strip():
        found.append(begun.strip())
    return tuple([part.strip() for part in one[1:-1].split(",")] if one[0] == "{" else one for one in found)
