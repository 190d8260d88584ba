"""All gradients by one kernel, which adds to dQ as it walks keys: what that form alone could get wrong.

That its results are right for every pattern, option and layout is a factor of `test_conformance.test_pairwise`.
"""

import pytest
import torch

import weft
from weft.testing.cases import CASES, HEADS, At
from weft.testing.tolerance import assert_close

from .compare import BACKENDS, FEW, Case, check, generator, normal, qkv
from .test_poison import PADDED, UNSEEN, padded

pytestmark = pytest.mark.skipif("triton" not in BACKENDS, reason="other backends have one form of the backward")

# edges, terms in one launch and in several, grids, lists, blocks of the remainder, heads that differ
CHOSEN = ("sliding_window", "longformer_global", "neighborhood_2d", "global_tokens", "random_blocks", "mixed_dilation")


def one(pattern, tensors, **more):
    return Case(pattern, tensors, backend="triton", deterministic=False, **more)


def close_to_truth(clean, found):
    """Raise AssertionError unless these are the results of a case; bits differ, as dQ is summed in any order."""
    truth, plain = clean.dense(torch.float64), clean.dense(clean.tensors[0].dtype)
    for name, x in found.items():
        assert_close(name, x, truth[name], plain[name])


@pytest.mark.parametrize("name", CHOSEN if FEW else CASES)
def test_several_tiles(name):
    at = At(200, 200) if FEW else At(330, 330)
    check(one(CASES[name].make(at), qkv(generator(name), at, heads=(HEADS, 2), dims=(9, 8))))


@pytest.mark.parametrize("kv_heads", [6, 3, 1])
def test_heads_of_a_group_with_other_patterns(kv_heads):
    near, far = weft.window(left=3, right=0), weft.dilated(9, 0, 4)
    rows = weft.per_batch([near, weft.full(), weft.nothing()])
    pattern = weft.per_head([near, near, far, rows, rows, near])
    tensors = qkv(generator("groups"), (45, 45), heads=(6, kv_heads), dims=(8, 8), batch=3)
    check(one(pattern, tensors, options={"sinks": normal((6,), generator("sinks"))}))


@pytest.mark.parametrize("grouped", [1, 2])
def test_a_tile_of_keys_that_is_several_items(grouped):
    """A few keys that thousands of queries see are walked by several programs."""
    tensors = qkv(generator("split"), (2300, 20), heads=(2, 2 // grouped), dims=(8, 8), batch=1)
    check(one(weft.prefix(9), tensors))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", UNSEEN)
def test_poison_in_keys_that_no_query_sees(name, dtype):
    """A sum over keys must not meet these, though their tile holds keys that are seen."""
    pattern, m, n, unseen = UNSEEN[name]
    clean = one(pattern, qkv(generator(name), (m, n), dtype))
    q, k, v = (x.clone() for x in clean.tensors)
    for batch, keys in unseen:
        k[batch][..., keys, :] = torch.nan
        v[batch][..., keys, :] = torch.nan
    close_to_truth(clean, one(pattern, [q, k, v], live=clean.live).weft())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", PADDED)
def test_poison_in_everything_that_is_padding(name, dtype):
    close_to_truth(*padded(name, dtype, backend="triton", deterministic=False))


def test_blocks_beyond_the_last_key_where_scores_are_low():
    """Weights that a row's lse makes infinite for a key of zeros, which only rounds the tile off."""
    q, k, v = qkv(generator("low"), (100, 100), heads=(1, 1), batch=1)
    check(one(weft.random_blocks(64, 2, seed=3), [0.1 * q + 6, 0.1 * k - 6, v]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_poison_in_a_box_that_one_query_sees_in_part(dtype):
    """A grid's keys beyond its neighbourhoods, in the same boxes as seen ones."""
    pattern = weft.product([weft.window(0, 1, align="top-left"), weft.causal(align="top-left")], (3, 9), (5, 20))
    clean = one(pattern, qkv(generator("box"), (27, 100), dtype, dims=(8, 8)))
    unseen = ~clean.live[0, 0].any(0)
    assert unseen.any()
    q, k, v = (x.clone() for x in clean.tensors)
    k[:, :, unseen], v[:, :, unseen] = torch.nan, torch.nan
    close_to_truth(clean, one(pattern, [q, k, v], live=clean.live).weft())


def test_a_row_of_queries_stays_a_row():
    """NaN in one query reaches no other one's dq."""
    pattern = weft.causal() | weft.prefix(5)
    q, k, v = qkv(generator("rows"), (75, 75), torch.float32)
    clean, poisoned = one(pattern, [q, k, v]), one(pattern, [q.clone(), k, v])
    poisoned.tensors[0][:, :, 40] = torch.nan
    others = torch.arange(75) != 40
    truth, plain, found = clean.dense(torch.float64), clean.dense(torch.float32), poisoned.weft()
    assert_close("dq", found["dq"][:, :, others], truth["dq"][:, :, others], plain["dq"][:, :, others])
    assert found["dq"][:, :, 40].isnan().all()
