"""`python -m tests.replay`: compares plans and kernels with the reference, or records it. Exit code 1: they differ."""

import argparse
import re
import sys
import time
from functools import partial
from pathlib import Path

# Processes of the pool import this file before they choose their Triton: what imports one is imported in functions.
TRITONS = ("3.7.1", "3.6.0")  # of the environment, and of the card
OF_CARD = "sm_90"  # the target of both; others are compiled with the first alone


def main():
    asked = _arguments().parse_args()
    from . import farm, reference

    wanted = _wanted(asked)
    folder = Path(asked.against) if asked.against else reference.HERE
    began = time.monotonic()
    try:
        found = _found(wanted, asked)
    except farm.NoTritonError as reason:
        print(f"replay: {reason}", file=sys.stderr)
        return 2
    if asked.dump:
        _dump(found, Path(asked.dump))
    before = reference.read(folder)
    count = sum(map(len, found.kernels.values()))
    looked = f"{len(found.plans)} plans and the kernels of {count} launches in {time.monotonic() - began:.0f} s"
    if asked.record:
        listed = _wanted(_arguments().parse_args(["--all"]))
        reference.write(before.updated(found, wanted).only(listed), folder)  # without cases that have left the list
        print(f"replay: recorded {looked}")
        return 0
    if asked.plans:
        before.kernels.clear()
    texts = reference.report(before.only(wanted), found)
    print("\n".join([*texts, f"replay: {looked}: {len(texts) or 'no'} difference{'s' * (len(texts) != 1)}"]))
    return 1 if texts else 0


def _arguments():
    parser = argparse.ArgumentParser("python -m tests.replay", description="See tests/replay/README.md.")
    parser.add_argument("--all", action="store_true", help="every case, version and target; else a part")
    parser.add_argument("--only", metavar="REGEX", help="the cases whose names match, for every version and target")
    parser.add_argument("--triton", choices=TRITONS, help="one version alone")
    parser.add_argument("--target", help="one target alone, as sm_90")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--record", action="store_true", help="write the reference, of every case unless --only")
    what.add_argument("--plans", action="store_true", help="plans and launches alone, of every case, without compiling")
    parser.add_argument("--against", metavar="FOLDER", help="another reference than tests/replay/reference")
    parser.add_argument("--dump", metavar="FOLDER", help="write the opcodes of each kernel with their modifiers")
    parser.add_argument("--workers", type=int, default=2, help="processes that compile (default: 2)")
    return parser


def _wanted(asked):
    """{Triton: [(case, target)]}"""
    from .cases import CASES, PART

    every = asked.all or asked.record or asked.plans or bool(asked.only)
    names = [name for name in CASES if re.search(asked.only or "", name) and (every or name in PART)]
    wanted = {}
    for version in TRITONS:
        # the part: both versions for the card, the first for the others
        targets = {name: (OF_CARD, *CASES[name].targets) if version == TRITONS[0] else (OF_CARD,) for name in names}
        pairs = [(name, target) for name in names for target in targets[name]]
        if not every:
            pairs = [(name, target) for name, target in pairs if target == OF_CARD]
        pairs = [pair for pair in pairs if asked.target in (None, pair[1])]
        if asked.triton in (None, version) and pairs:
            wanted[version] = pairs
    return wanted


def _found(wanted, asked):
    from .farm import farm, gather, home_of
    from .reference import State

    for version in wanted:  # refuse before anything is compiled
        home_of(version)
    state = State()
    for version, pairs in wanted.items():
        with farm(version, asked.workers) as pool:
            say = partial(_say, version)
            plans, kernels = gather(pool, pairs, say, compiles=not asked.plans)
        _say(version)
        for key, lines in plans.items():
            if state.plans.setdefault(key, lines) != lines:
                raise RuntimeError(f"the plan of {key} depends on the version of Triton")
        for (case, target, launch), one in kernels.items():
            state.kernels.setdefault((version, target), {})[case, launch] = one
    return state


def _say(version, text=""):
    """Progress, where somebody watches."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text and f'Triton {version}: {text}'}", end="", file=sys.stderr, flush=True)


def _dump(found, folder):
    for (version, target), kernels in found.kernels.items():
        for place, one in kernels.items():
            path = folder / f"{target}-triton-{version}" / (re.sub(r"\W+", "_", " ".join(place)) + ".txt")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("".join(f"{name} {count}\n" for name, count in one.whole))


if __name__ == "__main__":
    sys.exit(main())
