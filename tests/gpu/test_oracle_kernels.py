"""Whole programs on the oracle, of calls that reach every kernel: what dense attention computes, to 1e-10."""

from collections import defaultdict
from dataclasses import replace

import pytest

from weft.kernels.triton.spec import KernelSpec

from .calls import KERNELS
from .checked import check, specs_of

CARDS = ("a100", "b200", "mi300x")  # beside the H200, which all calls are planned for


@pytest.mark.parametrize("name", KERNELS)
def test_programs_compute_attention(name):
    check(KERNELS[name])


@pytest.mark.parametrize("name,card", [(name, CARDS[i % len(CARDS)]) for i, name in enumerate(KERNELS)])
def test_programs_of_other_cards_compute_attention(name, card):
    check(replace(KERNELS[name], card=card, fixed=()))


# Options of KernelSpec by direction, of which some call has each; a value that is not True is one of several.
OF_TILES = ("listed", "several", "more", "whole", "packed", "accumulate", "lines", "softcap", "alibi", "rescaled")
REACHED = {
    "forward": (*OF_TILES, "sinks", "short"),
    "dq": (*OF_TILES, "lse_gradient", "with_delta"),
    "dkdv": (*OF_TILES, "grouped", "split", "with_dq", "few", "joins"),
    "delta": ("lse_gradient",),
    "gradients": ("lse_gradient", "with_delta"),
    "few_keys": (),
    "few_sums": (),
}
VALUES = {
    ("forward", "rank"): {0, 1, 2, 3},
    ("dq", "rank"): {0, 1, 2, 3},
    ("dkdv", "rank"): {0, 1, 2, 3},
    ("forward", "formula"): {False, True},
    ("dq", "formula"): {False, True},
    ("dkdv", "formula"): {False, True},
    ("forward", "aligned"): {False, True},
    ("dq", "aligned"): {False, True},
    ("dkdv", "aligned"): {False, True},
    ("forward", "terms"): {1, 2, 3},
    ("dq", "terms"): {1, 2, 3},
    ("forward", "groups"): {0, 4},
    ("dkdv", "groups"): {0, 2},
    ("dkdv", "makes"): {"both", "dk", "dv"},
    ("dkdv", "folded"): {False, True},
}  # fmt: skip


def test_calls_reach_every_kernel():
    seen = defaultdict(set)
    in_groups = set()
    for call in KERNELS.values():
        for spec in specs_of(call):
            if isinstance(spec, KernelSpec):
                for name in {*REACHED[spec.direction], *(name for one, name in VALUES if one == spec.direction)}:
                    seen[spec.direction, name].add(getattr(spec, name))
                in_groups.add((spec.direction, spec.groups > 0, spec.terms, spec.short))
    missing = [(one, name) for one, names in REACHED.items() for name in names if True not in seen[one, name]]
    missing += [(*key, wanted - seen[key]) for key, wanted in VALUES.items() if wanted - seen[key]]
    assert missing == []
    assert {("forward", True, terms, short) for terms in (1, 2) for short in (False, True)} <= in_groups
