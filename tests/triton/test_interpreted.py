"""Kernels run by Triton's interpreter: the tests of tests/kernels that matter most, in few rows and with few heads.

The interpreter is chosen when triton is imported, so they run in processes of their own. All of them, a quarter
of an hour: TRITON_INTERPRET=1 pytest tests/kernels
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tests.tiers import sample

from weft.settings import interpreted

ROOT = Path(__file__).resolve().parents[2]
CONFORMANCE, TRAPS, POISON, ONE_KERNEL, ONE_MAXIMUM, PACKS, JOINED, SEEN_BY_ALL, TERMS, TILINGS, HALVES = (
    f"tests/kernels/test_{name}.py::test"
    for name in (
        "conformance", "traps", "poison", "one_kernel", "no_maximum", "packs", "joined", "seen_by_all", "terms",
        "tilings", "halves",
    )
)  # fmt: skip
QUICK = "a sample of them"
CHOSEN = {
    QUICK: [
        f"{CONFORMANCE}_rows_meet_every_value",
        f"{CONFORMANCE}_batches_and_heads",
        f"{CONFORMANCE}_heads_of_a_group_with_other_patterns[3-triton]",
        f"{TRAPS}_rows_with_no_live_key",
        f"{TRAPS}_alibi_measures_from_the_aligned_query",
        f"{TRAPS}_sinks_and_slopes_lie_anywhere",
        f"{TRAPS}_stairs_beyond_32_bits",
        f"{POISON}_in_keys_that_no_query_sees[residue classes-dtype0-triton]",
        f"{ONE_MAXIMUM}_rows_beside_one_that_goes_again[window]",
        f"{JOINED}_gradients[of some batch rows-4-False]",
        f"{HALVES}_gradients[window-dims0]",
        f"{ONE_KERNEL}_heads_of_a_group_with_other_patterns[3]",
        "tests/kernels/test_sinks.py",
        "tests/kernels/test_counts.py::test_all_at_once",
        "tests/kernels/test_counts.py::test_sinks_and_slopes",
        "tests/kernels/test_scores.py::test_indices_are_original_tokens[relative_table-window]",
        "tests/kernels/test_dropout.py::test_results[window]",
        "tests/torch/test_front_interpreted.py",
        "tests/triton/test_quick.py",
    ],
    "every pattern, option and layout": [f"{CONFORMANCE}_pairwise"],
    "scales, empty rows, and what lies elsewhere": [
        f"{CONFORMANCE}_unusual_scales",
        f"{TRAPS}_rows_with_no_live_key_take_no_gradient_of_lse",
        f"{TRAPS}_a_sink_that_says_nothing",
        f"{TRAPS}_a_grid_of_four_axes",
        f"{POISON}_in_everything_that_is_padding",
        f"{POISON}_in_keys_that_no_query_sees[before a window-dtype0-triton]",
        f"{POISON}_in_keys_that_no_query_sees[before queries that have no window-dtype0-triton]",
        f"{POISON}_in_keys_that_no_query_sees[columns of a grid-dtype0-triton]",
        f"{POISON}_in_keys_that_no_query_sees_with_options[before a window-softcap-triton]",
        f"{POISON}_in_keys_that_no_query_sees_with_options[padding-alibi-triton]",
        "tests/kernels/test_vectors.py",
    ],
    "rows that one maximum does not suit": [
        f"{ONE_MAXIMUM}_rows_beside_one_that_goes_again[plane]",
        *(f"{ONE_MAXIMUM}_a_row_of_one_key_has_its_value[{name}]" for name in ("itself", "several terms")),
    ],
    "score functions, biases, dropout": [
        *(
            f"tests/kernels/test_scores.py::test_indices_are_original_tokens[{name}]"
            for name in ("relative_table-dilated", "type_pairs-grid", "key_weights-global", "query_bias-listed")
        ),
        "tests/kernels/test_scores.py::test_rows_that_a_score_masks_have_no_keys",
        "tests/kernels/test_biases.py::test_biases[grid]",
        "tests/kernels/test_biases.py::test_biases[dense of rows]",
        "tests/kernels/test_dropout.py::test_kept_pairs_are_those_of_the_law[dilated]",
        "tests/kernels/test_dropout.py::test_results[grid]",
    ],
    "unlike heads apart": [f"{PACKS}_unlike_heads"],
    "launches of keys joined": [
        f"{JOINED}_gradients[of some heads-4-True]",
        f"{JOINED}_gradients[one in sixteen-2-False]",
        f"{JOINED}_only_what_is_met_is_read",
        f"{JOINED}_launches_that_meet_all_rows_read_nothing_unset[strided]",
        f"{JOINED}_long_tiles_leave_shares_to_a_launch_of_their_own[64-2]",
    ],
    "launches of dV and of dK": [
        *(f"{HALVES}_gradients[{name}-dims0]" for name in ("several", "joined", "plane")),
        f"{HALVES}_options[softcap]",
    ],
    "tokens that all see": [f"{SEEN_BY_ALL}_results[of {whom}-4-True]" for whom in ("some heads", "a causal window")],
    "terms in one loop": [f"{TERMS}_results[{name}-4]" for name in ("no tile is full", "of some batch rows")],
    "tilings that a tuner may choose": [
        f"{TILINGS}_tilings[{kind}-{direction}-128-drawn]"
        for kind, direction in zip(("table", "several", "space"), ("dq", "forward", "dkdv"), strict=True)
    ]
    + [f"{TILINGS}_wide_tiles_of_several_terms"],
    "gradients of one kernel": [
        f"{ONE_KERNEL}_several_tiles",
        f"{ONE_KERNEL}_a_tile_of_keys_that_is_several_items[2]",
        f"{ONE_KERNEL}_blocks_beyond_the_last_key_where_scores_are_low",
        *(
            f"{ONE_KERNEL}_poison_in_keys_that_no_query_sees[{where}-dtype0]"
            for where in (
                "before a window",
                "of a listed query that sees nothing",
                "of queries that a list leaves out",
                "around those of blocks of single pairs",
            )
        ),
        f"{ONE_KERNEL}_poison_in_a_box_that_one_query_sees_in_part",
        f"{CONFORMANCE}_tf32_is_for_gpus",
    ],
}


SHARES = 2  # processes, beside that of the sample: to start one takes seconds
REST = [name for name in CHOSEN if name != QUICK]
NAMES = [[QUICK], *(REST[first::SHARES] for first in range(SHARES))]


@pytest.mark.skipif(torch.cuda.is_available() or interpreted(), reason="tests/kernels runs all of them here")
@pytest.mark.parametrize("names", sample(NAMES, [QUICK]), ids="; ".join)
def test_interpreted(names):
    chosen = [test for name in names for test in CHOSEN[name]]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not wide", *chosen]
    settings = {"TRITON_INTERPRET": "1", "WEFT_TESTS": "few"}
    done = subprocess.run(command, cwd=ROOT, env=os.environ | settings, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout[-8000:]}\n{done.stderr[-2000:]}"
