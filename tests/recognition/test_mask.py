"""recognize_mask: results that must come back, sizes that must be kept to, heads and batch rows, bad input."""

import mmap
import pickle
import tracemalloc

import numpy as np
import pytest

import weft
from weft import sized
from weft.errors import InputError, LengthError
from weft.pattern.crossing import decode
from weft.recognition import load_mask, recognize_mask
from weft.recognition.raster import raster

N = 120
SAME = [
    weft.full(),
    weft.nothing(),
    weft.causal(),
    weft.causal(-3),
    weft.window(5, 7),
    weft.window(left=9),
    weft.chunks(32),
    weft.causal() & weft.chunks(32),
    weft.documents([10, 50, 30, 30]),
    weft.causal() & weft.documents([10, 50, 30, 30]),
    weft.causal() | weft.prefix(30),
    weft.dilated(5, 6, 3),
    weft.periodic_keys(7, phase=6),
    weft.causal() & weft.periodic_keys(7, phase=3),
    weft.strided(14),
    weft.global_tokens(4),
    weft.window(10, 10) | weft.global_tokens(2),
    weft.documents(ids=[0, 1, 2, 3, *np.random.default_rng(0).integers(0, 4, N - 4)]),
    weft.product([weft.full(), weft.documents(ids=[0, 1, 2, 1, 3, 0, 2, 2, 3, 1, 0, 0])], (10, 12)),
    weft.neighborhood((N,), 13, stride=4),
    weft.neighborhood((10, 12), 5),
    weft.neighborhood((8, 15), (3, 5), stride=(2, 3)),
    weft.neighborhood((10, 12), (3, 4), dilation=(3, 2)),
    weft.neighborhood((10, 12), 5, causal=(True, False)),
    weft.neighborhood((5, 4, 6), (3, 3, 5), causal=(True, False, False)),
    weft.product([weft.causal(), weft.window(2, 3)], (20, 6)),
    weft.global_tokens(3) | weft.neighborhood((10, 12), 5),
]


@pytest.mark.parametrize("pattern", SAME, ids=str)
def test_comes_back_as_it_was(pattern):
    found = recognize_mask(pattern.to_dense(N))
    assert (found.pattern.to_dense(N) == pattern.to_dense(N)).all()
    assert found.pattern == sized(pattern, N, N)
    assert found.closed and (found.m, found.n) == (N, N)


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        (weft.longformer(20, 3, dilation=2), weft.dilated(10, 10, 2) | weft.global_tokens(3)),
        (weft.fixed(15), weft.causal() & (weft.periodic_keys(15, phase=14) | weft.chunks(15))),
        (~weft.window(3, 4), weft.causal(-4) | ~weft.causal(4)),
        (weft.causal().shift(3, 9), weft.causal(6) & ~weft.prefix(9)),
    ],
    ids=str,
)
def test_comes_back_as_something_simpler(pattern, expected):
    assert recognize_mask(pattern.to_dense(N), generalize=True).pattern == expected


@pytest.mark.parametrize("align", ["top-left", "bottom-right"])
@pytest.mark.parametrize("size", [(64, 100), (100, 64)])
@pytest.mark.parametrize("pattern", [weft.causal(), weft.window(9, 0), weft.chunks(16), weft.strided(9)], ids=str)
def test_rectangles(pattern, size, align):
    mask = pattern.aligned(align).to_dense(*size)
    found = recognize_mask(mask)
    assert (found.pattern.to_dense(*size) == mask).all()
    assert found.closed


def test_causal_at_the_bottom_right_says_so():
    mask = weft.causal(align="bottom-right").to_dense(64, 100)
    assert recognize_mask(mask, generalize=True).pattern == weft.causal(align="bottom-right")


def test_product_over_unlike_grids():
    pattern = weft.product([weft.window(2, 0), weft.window(3, 3)], (10, 10), (10, 14)).aligned("top-left")
    found = recognize_mask(pattern.to_dense(100, 140))
    assert (found.pattern.to_dense(100, 140) == pattern.to_dense(100, 140)).all()
    assert found.closed


def test_holes_and_dots_are_kept():
    mask = weft.causal().to_dense(200)
    mask[5, 9], mask[100, 2] = True, False
    found = recognize_mask(mask)
    assert (found.pattern.to_dense(200) == mask).all()


# ---- the size --------------------------------------------------------------------------------------------------------
def test_bound_to_its_size():
    pattern = recognize_mask(weft.causal().to_dense(50)).pattern
    with pytest.raises(LengthError, match="50 x 50"):
        pattern.to_dense(51)
    assert pattern.acsr(50).nnz == 50 * 51 // 2


def test_generalize_says_so():
    found = recognize_mask(weft.window(4, 0).to_dense(50), generalize=True)
    assert (found.pattern.to_dense(99) == weft.window(4, 0).to_dense(99)).all()
    assert "only 50 x 50 was seen" in found.why


# ---- heads and batch rows --------------------------------------------------------------------------------------------
def test_equal_heads_are_one_pattern():
    mask = np.broadcast_to(weft.causal().to_dense(40), (2, 8, 40, 40))
    assert recognize_mask(mask).pattern == sized(weft.causal(), 40, 40)


def test_three_axes_are_heads():
    a, b = weft.causal(), weft.window(3, 3)
    found = recognize_mask(np.stack([a.to_dense(40), b.to_dense(40), a.to_dense(40)]))
    assert found.pattern == sized(weft.per_head([a, b, a]), 40, 40)


def test_batch_rows():
    a, b = weft.causal(), weft.prefix(7)
    mask = np.stack([a.to_dense(40), b.to_dense(40)])[:, None]
    assert recognize_mask(mask).pattern == sized(weft.per_batch([a, b]), 40, 40)


def test_heads_and_batch_rows():
    drawn = weft.per_head([weft.causal(), weft.window(3, 3)]) & weft.padding([40, 25])
    mask = drawn.to_dense(40)
    found = recognize_mask(mask)
    assert (found.pattern.to_dense(40) == mask).all()
    assert found.pattern.extent() == (2, 2)


# ---- remainder -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("share", [0.1, 0.9])
def test_noise(share):
    mask = np.random.default_rng(3).random((70, 90)) < share
    found = recognize_mask(mask)
    assert not found.closed
    assert found.remainder == mask.sum() and found.form.remainder_bytes > mask.size // 8
    assert (found.pattern.to_dense(70, 90) == mask).all()
    assert (found.pattern.acsr(70, 90).to_dense() == mask).all()
    assert "70 rows" in found.why and "listed one by one" in str(found)
    assert len(str(found)) < 1000


def test_crosses_and_pickles():
    for mask in (weft.fixed(8, 3).to_dense(60), np.random.default_rng(3).random((60, 60)) < 0.3):
        pattern = recognize_mask(mask).pattern
        assert decode(pattern.structure, pattern.numbers.tobytes()) == pattern
        assert pickle.loads(pickle.dumps(pattern)) == pattern


@pytest.mark.parametrize("size", [(0, 0), (0, 5), (5, 0)])
def test_nothing_to_see(size):
    found = recognize_mask(np.zeros(size, np.bool_))
    assert found.pattern.to_dense(*size).shape == size
    assert (found.m, found.n) == size


# ---- input -----------------------------------------------------------------------------------------------------------
def test_any_strides():
    mask = weft.window(5, 2).to_dense(65)
    twice = np.repeat(np.repeat(mask, 2, axis=0), 2, axis=1)
    assert recognize_mask(twice[::2, ::2]).pattern == sized(weft.window(5, 2), 65, 65)
    assert recognize_mask(np.asfortranarray(mask)).pattern == sized(weft.window(5, 2), 65, 65)


def test_torch_tensor():
    torch = pytest.importorskip("torch")
    mask = torch.ones(40, 40, dtype=torch.bool).tril()
    assert recognize_mask(mask).pattern == sized(weft.causal(), 40, 40)
    with pytest.raises(InputError, match="bfloat16"):
        recognize_mask(mask.to(torch.bfloat16))


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda mask: mask.to("meta"), "meta device"),
        (lambda mask: mask.to_sparse(), "sparse_coo[\\s\\S]*to_dense"),
    ],
)
def test_tensors_without_values_to_read(make, says):
    torch = pytest.importorskip("torch")
    with pytest.raises(InputError, match=says):
        recognize_mask(make(torch.ones(4, 4, dtype=torch.bool)))


def test_tensors_that_are_traced():
    torch = pytest.importorskip("torch")
    with pytest.raises(InputError, match="cannot be read"):
        torch.func.vmap(lambda mask: mask.any() & bool(recognize_mask(mask)))(torch.ones(2, 4, 4, dtype=torch.bool))


@pytest.mark.parametrize(
    ("mask", "says"),
    [
        (np.zeros((4, 4)), "float64"),
        (np.zeros((4, 4), np.uint8), "uint8"),
        (np.full((4, 4), None), "object"),
        (np.zeros(4, np.bool_), "shape"),
        (np.zeros((1, 1, 1, 4, 4), np.bool_), "shape"),
        (np.zeros((0, 4, 4), np.bool_), "no head"),
        ([[True]], "neither"),
        (None, "neither"),
    ],
)
def test_refused(mask, says):
    with pytest.raises(InputError, match=says):
        recognize_mask(mask)


# ---- files -----------------------------------------------------------------------------------------------------------
def test_file_is_mapped(tmp_path):
    np.save(tmp_path / "mask.npy", weft.causal().to_dense(70))
    mask = load_mask(tmp_path / "mask.npy")
    assert isinstance(mask, np.memmap)
    assert recognize_mask(mask).pattern == sized(weft.causal(), 70, 70)


LENGTHS = [1500, 17, 1483, 1000, 96]


def mapped(path, pattern, m, n):
    """A file of the pattern's mask, mapped."""
    file = np.lib.format.open_memmap(path, mode="w+", dtype=np.bool_, shape=(m, n))
    for a in range(0, m, 256):
        rows = np.arange(a, min(a + 256, m))
        file[a : a + 256] = pattern.contains(rows[:, None], np.arange(n)[None], m, n)
    file.flush()
    return load_mask(path)


@pytest.mark.parametrize(
    ("pattern", "share"),
    [
        (weft.causal() & weft.window(200), 0.5),
        (weft.causal() & weft.window(600), 0.5),  # wider than half of the smallest corner
        (weft.window(32, 32) | weft.global_tokens(5), 0.5),
        (weft.causal() & weft.documents([1000, 2000, 1500, 596]), 2.0),  # no corner tells
        (weft.neighborhood((64, 64), 5), 2.0),
    ],
    ids=str,
)
def test_large_files_are_read_in_strips(tmp_path, pattern, share):
    size = 4096 if "neighborhood" in str(pattern) else 5096
    mask = mapped(tmp_path / "mask.npy", pattern, size, size)
    tracemalloc.start()
    found = recognize_mask(mask)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found.pattern == sized(pattern, size, size)
    assert peak < share * mask.size


def test_a_guess_from_the_corner_must_hold_everywhere(tmp_path):
    late = weft.window(20, 0) | weft.global_tokens([5000], columns=False)
    found = recognize_mask(mapped(tmp_path / "mask.npy", late, 5096, 5096))
    rows = np.array([0, 100, 4999, 5000, 5001, 5095])
    keys = np.arange(5096)
    assert (found.pattern.contains(rows[:, None], keys, 5096) == late.contains(rows[:, None], keys, 5096)).all()


@pytest.mark.parametrize(
    "pattern",
    [
        weft.documents(LENGTHS),
        weft.causal() & weft.documents(LENGTHS),
        weft.causal() & weft.window(9) & weft.documents(LENGTHS),
    ],
    ids=str,
)
def test_documents_in_a_file(tmp_path, pattern):
    found = recognize_mask(mapped(tmp_path / "mask.npy", pattern, sum(LENGTHS), sum(LENGTHS)))
    assert found.pattern == sized(pattern, sum(LENGTHS), sum(LENGTHS)) and found.closed


def test_noise_in_a_file_is_listed(tmp_path):
    mask = np.random.default_rng(3).random((4096, 4200)) < 0.2
    np.save(tmp_path / "mask.npy", mask)
    found = recognize_mask(load_mask(tmp_path / "mask.npy"))
    assert (raster(found.pattern, *mask.shape).dense() == mask).all()
    assert found.exact and found.remainder == mask.sum()


def test_empty_mask_in_a_file(tmp_path):
    np.save(tmp_path / "mask.npy", np.zeros((0, 7), np.bool_))
    assert load_mask(tmp_path / "mask.npy").shape == (0, 7)


def lone_view(path):
    """A private mapping that numpy did not make."""
    with path.open("rb") as file:
        mask = np.load(path, mmap_mode="r")
        private = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        return np.frombuffer(private, np.bool_, mask.size, mask.offset).reshape(mask.shape)


@pytest.mark.parametrize("shape", [pytest.param((5096, 5096), marks=pytest.mark.more), (60, 60)], ids=str)
@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("kind", ["c", "r+", "frombuffer"])
def test_edits_of_a_mapped_mask_are_kept(tmp_path, shape, frozen, kind):
    np.save(tmp_path / "mask.npy", np.tri(*shape, dtype=np.bool_))
    path = tmp_path / "mask.npy"
    mask = lone_view(path) if kind == "frombuffer" else np.load(path, mmap_mode=kind)
    mask[5], mask[-1] = True, False
    before = np.array(mask)
    if frozen:
        mask.setflags(write=False)
    found = recognize_mask(mask[:])
    assert (mask == before).all()
    assert (raster(found.pattern, *shape).dense() == before).all()


class Trap:
    """Says so if anybody unpickles it."""

    def __reduce__(self):
        return (pytest.fail, ("a pickle was loaded",))


def spoiled(path, how):
    if how == "truncated":
        np.save(path, np.ones((64, 64), np.bool_))
        path.write_bytes(path.read_bytes()[:-100])
    elif how == "header cut":
        np.save(path, np.ones((64, 64), np.bool_))
        path.write_bytes(path.read_bytes()[:20])
    elif how == "objects":
        np.save(path, np.array([[Trap()]], dtype=object), allow_pickle=True)
    elif how == "pickle":
        path.write_bytes(pickle.dumps(Trap()))
    elif how == "archive":
        with path.open("wb") as file:
            np.savez(file, np.ones((4, 4), np.bool_))
    elif how == "floats":
        np.save(path, np.ones((4, 4)))
    elif how == "text":
        path.write_text("True False")
    elif how == "empty":
        path.write_bytes(b"")


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("truncated", "cut short"), ("header cut", "cut short"), ("objects", "Python objects"), ("pickle", "pickle"),
        ("archive", "archive"), ("floats", "float64"), ("text", "no .npy file"), ("empty", "no .npy file"),
        ("missing", "cannot be read"),
    ],
)  # fmt: skip
def test_spoiled_file(tmp_path, how, says):
    spoiled(tmp_path / "mask.npy", how)
    with pytest.raises(InputError, match=says):
        load_mask(tmp_path / "mask.npy")
