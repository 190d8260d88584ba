"""What recognition reports is what will run: terms, lists, the remainder, bytes and cost."""

import numpy as np
import pytest

import weft
from weft.acsr.work import computed, share_of_dense
from weft.recognition import recognize
from weft.recognition.result import TOLD_AT, Form

torch = pytest.importorskip("torch")
N = 2048


@pytest.mark.more
def test_keys_with_holes_run_as_one_list():
    """alive[b, k]: runs of any number are one listed term, by the function and by the mask."""
    alive = np.random.default_rng(0).random((2, N)) > 0.2
    table = torch.from_numpy(alive)
    found = recognize(lambda b, h, q, k: table[b, k], batch=2)
    assert found.closed and found.proof == "symbolic"
    assert (found.form.terms, found.form.remainder, found.form.listed) == (1, 0, alive.sum())
    lists = [weft.global_tokens(np.flatnonzero(row), rows=False).acsr(N) for row in alive]
    assert [found.pattern.acsr(N, N, row) for row in (0, 1)] == lists
    assert found.form.nbytes == sum(one.nbytes for one in lists)
    mask = recognize(np.broadcast_to(alive[:, None, None], (2, 1, 300, N)))
    assert mask.closed and mask.form.terms == 1 and mask.form.listed == alive.sum()


def test_keys_with_holes_under_other_conditions():
    alive = torch.from_numpy(np.random.default_rng(3).random(N) > 0.1)
    found = recognize(lambda q, k: (k <= q) & alive[k] & (q - k < 500))
    assert found.form.terms == 1 and found.closed
    assert found.pattern.acsr(N).nnz == found.pattern.to_dense(N).sum()


def test_noise_says_its_price():
    mask = np.random.default_rng(4).random((512, 512)) < 0.3
    found = recognize(mask)
    assert not found.closed and found.remainder == mask.sum()
    assert found.form.remainder_bytes == found.pattern.acsr(512).remainder.nbytes
    assert found.form.cost == 1.0 and "remainder of" in str(found)


def test_a_form_counts_all_masks_that_differ():
    pattern = weft.per_head([weft.causal(), weft.global_tokens([1, 4, 9, 50]), weft.causal()])
    form = Form.of(pattern, 100, 100)
    assert form.terms == 2 and form.listed == 12 and form.remainder == 0
    assert form.nbytes == sum(pattern.acsr(100, head=h).nbytes for h in (0, 1))


def test_a_function_of_any_length_is_told_at_one():
    found = recognize(lambda q, k: (k <= q) & (q - k < 256))
    assert found.m is None and found.size == (TOLD_AT, TOLD_AT)
    assert found.form.cost == pytest.approx(320 / TOLD_AT, rel=0.1)
    assert "runs as: 1 term" in str(found) and f"at {TOLD_AT} x {TOLD_AT}" in str(found)
    assert recognize(lambda q, k: k <= q, size=(30, 40)).size == (30, 40)


@pytest.mark.parametrize(
    ("pattern", "n", "expected"),
    [
        (weft.full(), 640, 1.0),
        (weft.causal(), 6400, 0.5),
        (weft.window(63, 63), 6400, 190 / 6400),
        (weft.dilated(64, 64, 4), 6400, 192 / 6400),
        (weft.global_tokens(range(0, 6400, 5), rows=False), 6400, 0.2),
        (weft.neighborhood((80, 80), 7), 6400, 14 * 14 / 6400),
        (weft.blocks(64, [(i, i) for i in range(100)]), 6400, 0.01),
    ],
)
def test_cost_is_that_of_tiles(pattern, n, expected):
    acsr = pattern.acsr(n)
    assert acsr.nnz <= computed(acsr)
    assert share_of_dense(acsr) == pytest.approx(expected, rel=0.15)
