"""Scattered documents: rows gathered by a list, with every option, against dense attention."""

import numpy as np
import pytest
import torch

import weft

from .compare import BACKENDS, FEW, Case, check, generator, normal, qkv

BACKEND = next(iter(BACKENDS))
DTYPES = [torch.float32, torch.float16] if BACKEND == "triton" else [torch.float64, torch.float32, torch.float16]
IDS = np.random.default_rng(6).integers(0, 6, 150)
ALIKE = weft.documents(ids=IDS)
PATTERNS = {
    "alone": ALIKE,
    "causal": weft.causal() & ALIKE,
    "beside a window": weft.window(5, 5) | ALIKE,
    "of some tokens": ALIKE & weft.padding(101, rows=True) & weft.global_tokens([*range(0, 150, 3)], rows=False),
    "by heads": weft.per_head([ALIKE, weft.causal() & ALIKE, weft.causal(), ALIKE & weft.window(9, 9)]),
}
OPTIONS = {
    "plain": {},
    "all": {"scale": 0.3, "softcap": 2.0, "sinks": True, "alibi_slopes": torch.tensor([0.5, 0.25, 0.0, 0.0625])},
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("name", PATTERNS)
def test_attention_and_gradients(name, options, dtype):
    pattern, random = PATTERNS[name], generator(name)
    tensors = qkv(random, (150, 150), dtype)
    given = dict(OPTIONS[options])
    if "sinks" in given:
        given["sinks"] = normal((4,), random, dtype)
    live = torch.from_numpy(np.stack([pattern.at(0, h).to_dense(150) for h in range(4)]))[None].expand(2, -1, -1, -1)
    check(Case(pattern, tensors, live, given, backend=BACKEND))


@pytest.mark.skipif(BACKEND != "triton", reason="the CPU has one backward")
@pytest.mark.parametrize("heads", [(4, 4), (4, 1)], ids=str)
@pytest.mark.parametrize("d", [128] if FEW else [33, 64, 128])
def test_one_kernel_of_gradients(d, heads):
    tensors = qkv(generator(f"one kernel {d} {heads}"), (150, 150), torch.bfloat16, heads, (d, d), 1)
    pattern = weft.causal() & ALIKE
    check(Case(pattern, tensors, torch.from_numpy(pattern.to_dense(150)), backend=BACKEND, deterministic=False))


def test_both_ways_of_recognition_meet_in_one_term():
    ids = torch.from_numpy(IDS)
    as_mask = weft.recognize(ids[:, None] == ids)
    as_function = weft.recognize(lambda q, k: ids[q] == ids[k])
    for found in (as_mask, as_function):
        assert found.closed
        assert found.form.terms == 1
    assert as_mask.form.nbytes == as_function.form.nbytes
    causal = weft.recognize((ids[:, None] == ids).tril()), weft.recognize(lambda q, k: (ids[q] == ids[k]) & (k <= q))
    assert [found.form.terms for found in causal] == [1, 1]
    assert len({found.form.nbytes for found in causal}) == 1


def test_labels_that_differ_are_two_terms_by_both_ways():
    ids, key_ids = torch.from_numpy(IDS), torch.from_numpy(np.random.default_rng(9).integers(0, 6, 150))
    functions = (lambda q, k: ids[q] != ids[k]), (lambda q, k: ~(ids[q] == key_ids[k]))
    for function, mask in zip(functions, (ids[:, None] != ids, ids[:, None] != key_ids), strict=True):
        found, drawn = weft.recognize(function), weft.recognize(mask)
        assert found.closed and drawn.closed
        assert found.form.terms == drawn.form.terms == 2
        assert found.proof == "symbolic"
        assert (torch.from_numpy(found.pattern.to_dense(150)) == mask).all()
        check(Case(found.pattern, qkv(generator("unlike"), (150, 150), torch.float32), mask, backend=BACKEND))


def test_work_follows_the_pairs():
    """A plan of 128 scattered documents visits few pairs more than there are."""
    ids = np.random.default_rng(0).integers(0, 128, 8192)
    q = torch.empty(1, 1, 8192, 8)
    plan = weft.plan(weft.documents(ids=ids), q, q, q)
    assert plan.visited < 8 * plan.nnz
    assert plan.nbytes < 1 << 17


def test_queries_and_keys_with_ids_of_their_own():
    """As cross-attention between points and their cells, and tokens routed to chosen chunks."""
    random = np.random.default_rng(7)
    ids, key_ids = random.integers(0, 9, 100), random.integers(0, 8, 150)
    pattern = weft.documents(ids=ids, key_ids=key_ids)
    live = torch.from_numpy(ids[:, None] == key_ids)
    assert len(pattern.acsr(100, 150).terms) == 1
    check(Case(pattern, qkv(generator("cross"), (100, 150), torch.float32), live, backend=BACKEND))
    q, k = torch.from_numpy(ids), torch.from_numpy(key_ids)
    masks = live, live & torch.ones_like(live).tril(20)
    functions = (lambda i, j: q[i] == k[j]), (lambda i, j: (q[i] == k[j]) & (j <= i + 20))
    for mask, function in zip(masks, functions, strict=True):
        for found in (weft.recognize(mask), weft.recognize(function)):
            assert (torch.from_numpy(found.pattern.to_dense(100, 150)) == mask).all()
            assert found.closed
            assert found.form.terms == 1
