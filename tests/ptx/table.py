"""Names of instructions -> what does them."""

from .formats import TYPES
from .parse import Fault


class Table(dict):
    """opcode -> function(group, instruction, active); active: (threads,) of bool, or None where all are."""

    def __init__(self, *tables):
        super().__init__(item for table in tables for item in table.items())
        self.modifiers = {name: known for table in tables for name, known in table.modifiers.items()}

    def does(self, *names, modifiers=""):
        """Decorates what does the instructions whose opcodes begin with one of these names; modifiers: what may follow,
        beside types.
        """

        def note(function):
            self.update(dict.fromkeys(names, function))
            self.modifiers |= dict.fromkeys(names, modifiers.split())
            return function

        return note

    def of(self, opcode):
        """By the longest beginning that is known."""
        name = opcode
        while name not in self.modifiers:
            if "." not in name:
                raise Fault(f"{opcode} is not known")
            name = name.rpartition(".")[0]
        for part in opcode[len(name) :].split(".")[1:]:
            if part not in self.modifiers[name] and part not in TYPES:
                raise Fault(f"{part} of {opcode} is not known")
        self[opcode] = self[name]
        return self[opcode]
