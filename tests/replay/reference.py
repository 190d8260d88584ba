"""The reference: what plans and kernels were, as text that a diff can show; and how what is found differs from it."""

import csv
from dataclasses import dataclass, field
from difflib import unified_diff
from pathlib import Path

from .measured import RECORDED, Measured, differences, from_record

HERE = Path(__file__).with_name("reference")
COLUMNS = ("kernel", "as", *RECORDED)  # of a table of kernels; a column for each opcode follows


@dataclass
class State:
    """plans: (case, target) -> lines. kernels: (Triton, target) -> (case, launch) -> Measured."""

    plans: dict[tuple[str, str], list[str]] = field(default_factory=dict)
    kernels: dict[tuple[str, str], dict[tuple[str, str], Measured]] = field(default_factory=dict)

    def only(self, wanted):
        """The part that a run looks at. wanted: {Triton: [(case, target)]}."""
        every = {key for keys in wanted.values() for key in keys}
        plans = {key: lines for key, lines in self.plans.items() if key in every}
        kernels = {}
        for (version, target), found in self.kernels.items():
            asked = {case for case, of in wanted.get(version, ()) if of == target}
            some = {place: one for place, one in found.items() if place[0] in asked}
            if some:
                kernels[version, target] = some
        return State(plans, kernels)

    def updated(self, found, wanted):
        """This state, with what was found in place of the part that was looked at."""
        gone = self.only(wanted)
        plans = {key: lines for key, lines in self.plans.items() if key not in gone.plans} | found.plans
        kernels = {}
        for key in {**self.kernels, **found.kernels}:
            before = self.kernels.get(key, {}).keys() - gone.kernels.get(key, {}).keys()
            rest = {place: self.kernels[key][place] for place in before}
            kernels[key] = rest | found.kernels.get(key, {})
        return State(plans, kernels)


# ---- text ------------------------------------------------------------------------------------------------------------
def write(state, folder=HERE):
    """The same state makes the same bytes: everything is in order of its names."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in (*folder.glob("plans.txt"), *folder.glob("kernels-*")):
        old.unlink()
    sections = (
        "\n".join([f"[{case} | {target}]", *(f"  {line}" for line in lines)]) + "\n"
        for (case, target), lines in sorted(state.plans.items())
    )
    (folder / "plans.txt").write_text("".join(sections))
    for (version, target), kernels in state.kernels.items():
        rows = list(_rows(kernels))
        opcodes = sorted({name for row in rows for name in row} - set(COLUMNS))
        with (folder / f"kernels-{target}-triton-{version}.csv").open("w", newline="") as file:
            table = csv.DictWriter(file, [*COLUMNS, *opcodes], lineterminator="\n")
            table.writeheader()
            table.writerows(rows)


def _rows(kernels):
    """A row for each kernel; one that is like an earlier one names that."""
    first = {}
    for place, one in sorted(kernels.items()):
        said = {"kernel": " | ".join(place)}
        if one in first:
            yield said | {"as": first[one]}
        else:
            first[one] = said["kernel"]
            yield said | one.record()


def read(folder=HERE):
    """The state that `write` wrote; an empty one where nothing was written."""
    state = State()
    for line in _text(folder / "plans.txt"):
        if line.startswith("["):
            case, target = line[1:-1].split(" | ")
            lines = state.plans[case, target] = []
        else:
            lines.append(line[2:])
    for path in sorted(folder.glob("kernels-*.csv")):
        target, version = path.name.removeprefix("kernels-").removesuffix(".csv").split("-triton-")
        known = {}
        for row in csv.DictReader(_text(path)):
            name, like = row.pop("kernel"), row.pop("as")
            known[name] = known[like] if like else from_record(row)
        state.kernels[version, target] = {tuple(name.split(" | ")): one for name, one in known.items()}
    return state


def _text(path):
    return path.read_text().splitlines() if path.exists() else []


# ---- comparing -------------------------------------------------------------------------------------------------------
def report(before, after):
    """What differs between two states, a list of texts; empty if nothing does."""
    found = []
    for key in sorted(before.plans.keys() | after.plans.keys()):
        changed = _plan_changes(before.plans.get(key), after.plans.get(key))
        if changed:
            found.append("\n".join([f"{key[0]} on {key[1]}: plan", *(f"    {line}" for line in changed)]))
    for version, target in sorted(before.kernels.keys() | after.kernels.keys()):
        key = version, target
        texts = _kernel_changes(before.kernels.get(key, {}), after.kernels.get(key, {}))
        where = f"on {target} with Triton {version}"
        for text, places in texts.items():
            names = ", ".join(" ".join(place) for place in places)
            found.append(f"{names} {where}: kernel\n    {text}")
    return found


def _plan_changes(before, after):
    if before is None or after is None:
        return ["not in the reference"] if before is None else ["in the reference alone"]
    return list(unified_diff(before, after, lineterm="", n=0))[2:]


def _kernel_changes(before, after):
    """text -> the (case, launch) of all kernels that differ in this way."""
    texts = {}
    for place in sorted(before.keys() | after.keys()):
        if place not in before:
            changed = ["it is not in the reference"]
        elif place not in after:
            changed = ["it is in the reference alone"]
        else:
            changed = differences(before[place], after[place])
        if changed:
            texts.setdefault("\n    ".join(changed), []).append(place)
    return texts
