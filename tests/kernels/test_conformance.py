"""Every library pattern on every backend against dense attention: values, all gradients, empty rows, same bits."""

import pytest
import torch
from tests.tiers import every

import weft
from weft.kernels.backend import choose
from weft.testing.cases import BATCH, CASES, HEADS, At
from weft.testing.tolerance import assert_close
from weft.torch.inputs import problem_of

from .compare import BACKENDS, FEW, WIDEST, Case, check, generator, normal, qkv, with_rounded_out
from .layouts import LAYOUTS
from .pairwise import dealt, pairwise

OPTIONS = {
    "plain": (),
    "scale": ("scale",),
    "softcap": ("softcap",),
    "sinks": ("sinks",),
    "alibi": ("alibi_slopes",),
    "all": ("scale", "softcap", "sinks", "alibi_slopes"),
}
FACTORS = {
    "workload": list(CASES),
    "dtype": [*{WIDEST: 0, torch.float32: 0, torch.bfloat16: 0, torch.float16: 0}],
    "layout": list(LAYOUTS),
    "group": [1, 2, HEADS],  # query heads that share keys
    "dims": [(64, 64), (8, 8), (33, 33), (80, 17), (16, 72), (9, 40)],
    "at": [
        *(At(m, m) for m in (0, 1, 63, 64, 65, 127, 130)),
        *(At(m, n, align) for m, n in ((65, 130), (130, 63)) for align in ("top-left", "bottom-right")),
        *(At(0, 65, "top-left"), At(65, 0, "bottom-right"), At(1, 127, "bottom-right")),
    ],
    "options": list(OPTIONS),
    "lse": [False, True],  # whether lse is returned and differentiated
    "deterministic": [True, False] if "triton" in BACKENDS else [True],  # else gradients of one kernel
}
SMALLER = {
    "group": [1, 2],
    "dims": [(16, 16), (33, 33), (80, 17), (16, 40)],
    "at": [At(130, 130), At(65, 65), At(65, 130, "bottom-right"), At(130, 63, "top-left")],
}


# into blocks of single pairs
SPILLED = ("blocks", "blocks_oblong", "documents_scattered", "random_blocks", "bigbird", "bits", "folded")


def allowed(row):
    workload, at, options = (row.get(name) for name in ("workload", "at", "options"))
    if max(row.get("dims", (0, 0))) > 128 and row.get("deterministic") is False:
        return False  # one kernel for all gradients has no room, and no plan takes it
    if workload is None:
        return True
    case = CASES[workload]
    if workload in SPILLED and row.get("dims") == (256, 256) and row.get("dtype") is torch.float32:
        return False  # refused: gradients of blocks have no room
    if at is not None and not case.fits(at.m, at.n):
        return False
    if options in ("alibi", "all"):  # distances need tokens on one axis, and an alignment where M != N
        return not case.grid and (at is None or at.m == at.n or case.positional)
    return True


def label(row):
    at = row["at"]
    where = f"{at.m}x{at.n}" + (f"-{at.align}" if at.align else "")
    dtype, dims = str(row["dtype"]).removeprefix("torch."), "x".join(map(str, row["dims"]))
    group, lse = f"group{row['group']}", "lse" if row["lse"] else "out"
    form = "two" if row["deterministic"] else "one"
    return "-".join((row["workload"], where, dtype, row["layout"], group, dims, row["options"], lse, form))


def heads_of(row, pattern):
    """(batch rows, query heads): enough for the pattern and the layout."""
    if not FEW:
        return BATCH, HEADS
    batch, heads = pattern.extent()
    return batch or (2 if row["layout"] == "kv_of_one_row" else 1), heads or 2


def case_of(row, backend):
    random, at, dtype = generator(label(row)), row["at"], row["dtype"]
    pattern = CASES[row["workload"]].make(at)
    batch, heads = heads_of(row, pattern)
    tensors = qkv(random, at, dtype, (heads, heads // row["group"]), row["dims"], batch)
    tensors = [place(x) for place, x in zip(LAYOUTS[row["layout"]], tensors, strict=True)]
    options = {
        "scale": 0.3,
        "softcap": 1.5,
        "sinks": normal((heads,), random, dtype),
        "alibi_slopes": torch.tensor([0.5, 0.25, 0.0, 0.0625])[:heads],
    }
    return Case(
        pattern,
        tensors,
        options={name: options[name] for name in OPTIONS[row["options"]]},
        shift=at.n - at.m if at.align == "bottom-right" else 0,
        with_lse=row["lse"],
        backend=backend,
        deterministic=row["deterministic"],
    )


def skip_what_it_cannot(case):
    reasons = choose(case.backend, problem_of(*case.tensors)).reasons_against(problem_of(*case.tensors))
    if reasons:
        pytest.skip("; ".join(reason.why for reason in reasons))


if FEW:
    FACTORS |= SMALLER
if BACKENDS.get("triton", "cpu") != "cpu":  # an interpreter would take hours
    FACTORS["dims"] += [(96, 96), (128, 128), (192, 128), (256, 256)]
ROWS = dealt(FACTORS, "workload", allowed) if FEW else pairwise(FACTORS, allowed)


@pytest.mark.parametrize("factor", FACTORS)
def test_rows_meet_every_value(factor):
    assert all(any(row[factor] == value for row in ROWS) for value in FACTORS[factor])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("row", every(12, [pytest.param(row, id=label(row)) for row in ROWS]))
def test_pairwise(row, backend):
    case = case_of(row, backend)
    got = check(case)
    assert in_order_of(got["out"], case.tensors[0]), "out does not keep q's memory order"


def test_the_rounding_of_out_is_allowed_for():
    """A row of one key: gradients that begin with the rounded out, and are exact otherwise, are far off by plain's."""
    row = {"workload": "sparse_transformer_fixed", "dtype": torch.float16, "layout": "tokens_first", "group": HEADS}
    row |= {"dims": (96, 96), "at": At(1, 1), "options": "all", "lse": True, "deterministic": True}
    case = case_of(row, next(iter(BACKENDS)))
    truth, plain = case.dense(torch.float64), case.dense(torch.float16)
    found = with_rounded_out(case, truth, plain)
    assert found.keys() == {"dq", "dk"}
    assert_close("dq", found["dq"], truth["dq"], found["dq"])
    assert (found["dq"] - truth["dq"]).abs().max() > 4 * (plain["dq"] - truth["dq"]).abs().max()
    longer = case_of(row | {"at": At(63, 63)}, next(iter(BACKENDS)))
    assert not with_rounded_out(longer, longer.dense(torch.float64), longer.dense(torch.float16))


def in_order_of(out, q):
    """Whether B, H and M lie in the same order in both, the head dimension innermost."""
    axes = sorted((q.stride(axis), axis) for axis in range(3) if q.shape[axis] > 1 and q.stride(axis) > 0)
    strides = [out.stride(axis) for _, axis in axes]
    return not out.numel() or (strides == sorted(strides) and out.stride(3) == 1)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", every(4, CASES))
def test_several_tiles(name, backend):
    """Long enough for interior tiles, several launches and merges; no multiple of a block."""
    at = At(330, 330)
    case = Case(CASES[name].make(at), qkv(generator(name), at, heads=(HEADS, 2), dims=(9, 8)), backend=backend)
    check(case)


MANY_KEYS = {
    "full": weft.full(),
    "causal": weft.causal(align="bottom-right"),
    "window": weft.window(left=6000, align="bottom-right"),
    "from_the_first": weft.window(left=4000, right=4000, align="top-left"),
    "strided": weft.strided(3, align="bottom-right"),
    "periodic_keys": weft.periodic_keys(2),
    "ends": weft.prefix(40) | ~weft.prefix(8900),
    "padding": weft.padding([4500, 9001]),
    "rows_differ": weft.blocks((10, 100), [(0, j) for j in range(60)] + [(2, j) for j in range(5, 91)]),
    "global_rows": weft.global_tokens(5, columns=False, align="top-left"),
    "grid": weft.product([weft.causal(align="top-left"), weft.full()], (3, 9), (2, 4500)),
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", MANY_KEYS)
def test_more_keys_than_one_step_takes(name, backend):
    """The soft maximum goes over several steps, some of them without a live key for some rows."""
    pattern = MANY_KEYS[name]
    at = At(27, 9000 if name == "grid" else 9001)
    check(Case(pattern, qkv(generator(name), at, heads=(2, 1), dims=(8, 8)), backend=backend))


def same_bits(case):
    first, second = case.weft(), case.weft()
    for quantity in first:
        assert torch.equal(first[quantity], second[quantity]), quantity


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", every(4, CASES))
def test_same_bits_twice(name, dtype, backend):
    at = At(130, 130)
    same_bits(Case(CASES[name].make(at), qkv(generator(name), at, dtype), backend=backend))


@pytest.mark.skipif("cpu" not in BACKENDS.values(), reason="products are cut there: tests/torch/test_gpu.py")
@pytest.mark.parametrize("backend", BACKENDS)
def test_tf32_is_for_gpus(backend):
    """On a CPU the same bits, by the CPU's backend and by Triton's interpreter."""
    case = Case(CASES["window"].make(At(70, 70)), qkv(generator("tf32"), (70, 70), torch.float32), backend=backend)
    exact = case.weft()
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        cut = case.weft()
    finally:
        torch.backends.cuda.matmul.allow_tf32 = False
    for name, x in cut.items():
        assert torch.equal(x, exact[name]), name


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("backend", BACKENDS.keys() & {"cpu"})
@pytest.mark.parametrize(
    "name", every(3, ["full", "sliding_window", "strided", "bigbird", "neighborhood_2d", "longformer_global"])
)
def test_same_bits_twice_with_two_threads(name, backend, two_threads):
    at = At(500, 500)
    same_bits(Case(CASES[name].make(at), qkv(generator(name), at, torch.float32), backend=backend))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "shape",
    [
        (0, 4, 2, 9, 9),
        (2, 0, 2, 9, 9),
        *((1, 1, 1, 1, 1), (1, 6, 1, 33, 33), (3, 6, 2, 33, 33)),
    ],
    ids=str,
)
def test_batches_and_heads(shape, backend):
    """(B, Hq, Hkv, M, N): none, one, and counts that are no power of two."""
    batch, *heads, m, n = shape
    tensors = qkv(generator(str(shape)), (m, n), heads=heads, dims=(8, 8), batch=batch)
    check(Case(weft.causal() & weft.window(left=4), tensors, backend=backend))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kv_heads", [6, 3, 2, 1])
def test_heads_of_a_group_with_other_patterns(kv_heads, backend):
    """per_head cuts groups of query heads that share keys; per_batch inside it, batch rows."""
    near, far = weft.window(left=3, right=0), weft.dilated(9, 0, 4)
    rows = weft.per_batch([near, weft.full(), weft.nothing()])
    pattern = weft.per_head([near, near, far, rows, rows, near])
    tensors = qkv(generator("groups"), (45, 45), heads=(6, kv_heads), dims=(8, 8), batch=3)
    check(Case(pattern, tensors, options={"sinks": normal((6,), generator("sinks"))}, backend=backend))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("options", [{"scale": 0.0}, {"scale": -0.7}, {"softcap": 0.05}, {"softcap": 1e4}], ids=str)
def test_unusual_scales(options, backend):
    tensors = qkv(generator(str(options)), (70, 70), torch.float32)
    check(Case(weft.causal() | weft.prefix(9), tensors, options=options, backend=backend))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_scores_too_large_to_exponentiate(dtype, backend):
    """Scores of several thousand: exp overflows unless the largest of the row is taken off first."""
    q, k, v = qkv(generator("large"), (70, 70), dtype)
    tensors = [40 * q, 40 * k, v]
    got = Case(weft.longformer(8, global_tokens=2), tensors, backend=backend).weft()
    for name, x in got.items():
        assert x.isfinite().all(), name
    # the softmax has become a choice of one key, whose value is the output
    k, v = (x.repeat_interleave(2, dim=1) for x in tensors[1:])
    live = torch.from_numpy(weft.longformer(8, global_tokens=2).to_dense(70))
    best = (tensors[0].double() @ k.double().mT).masked_fill(~live, -torch.inf).topk(2, -1)
    clear = (best.values[..., 0] - best.values[..., 1]) * 16**-0.5 > 40
    chosen = v.gather(2, best.indices[..., :1].expand(v.shape))
    assert clear.float().mean() > 0.5
    torch.testing.assert_close(got["out"][clear], chosen[clear])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("pattern", [
    weft.padding([30, 9], align="bottom-right"), weft.full() & weft.window(left=2**31, align="bottom-right"),
], ids=str)  # fmt: skip
def test_distances_where_nothing_relates_queries_to_keys(pattern, backend):
    """As the error says that names no alignment."""
    slopes = torch.tensor([0.5, 0.25, 0.0, 0.0625])
    tensors = qkv(generator("distances"), (12, 40))
    check(Case(pattern, tensors, options={"alibi_slopes": slopes}, shift=28, backend=backend))
