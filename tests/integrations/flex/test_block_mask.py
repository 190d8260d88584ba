"""BlockMask: torch's attributes and algebra, made when they are read; its pattern, kept true to what it holds."""

import copy
import functools
import gc
import inspect
import pickle
import weakref

import pytest
import torch
from torch.nn.attention import flex_attention as theirs

from weft.errors import InputError, LengthError
from weft.integrations import flex
from weft.integrations.flex import (
    BlockMask,
    and_masks,
    block_mask,
    create_block_mask,
    create_mask,
    flex_attention,
    noop_mask,
    or_masks,
)

from .helpers import reference, tensors

LISTS = theirs.BlockMask._TENSOR_ATTRS
OPTIONS = inspect.signature(theirs.create_block_mask).parameters


def causal(b, h, q_idx, kv_idx):
    return q_idx >= kv_idx


def near(b, h, q_idx, kv_idx):
    return (q_idx - kv_idx).abs() < 20


def both(mask_mod, *args, **options):
    ours = create_block_mask(mask_mod, *args, device="cpu", **options)
    return ours, theirs.create_block_mask(mask_mod, *args, device="cpu", **options)


def same_lists(ours, wanted):
    for name in LISTS:
        x, y = getattr(ours, name), getattr(wanted, name)
        assert (x is None) == (y is None), name
        assert x is None or torch.equal(x, y), name


def test_a_device_without_an_index_is_the_current_one(monkeypatch):
    """As tensors have it, which "cuda" makes on cuda:0: a call compares both."""
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda **_: torch.device("cuda"))
    ours = create_block_mask(causal, None, None, 64, 64, device="cuda")
    assert ours.device == create_block_mask(causal, None, None, 64, 64).device == torch.device("cuda:1")
    assert ours.to("cuda:0").device == torch.device("cuda:0")
    assert (ours.to("cpu").device, ours.to("cpu").to("cuda").device) == (torch.device("cpu"), torch.device("cuda:1"))


# ---- what torch's has ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("sizes", [(None, None, 300, 300), (2, 3, 200, 333), (1, 4, 77, 1000), (2, None, 64, 64)])
def test_attributes_and_pictures(sizes):
    ours, wanted = both(causal, *sizes, BLOCK_SIZE=(32, 64))
    assert ours.shape == wanted.shape
    assert "_unmade" in vars(ours)  # the shape needs no lists
    assert (ours.seq_lengths, ours.BLOCK_SIZE) == (wanted.seq_lengths, wanted.BLOCK_SIZE)
    assert (ours.numel(), ours.sparsity()) == (wanted.numel(), wanted.sparsity())
    assert (str(ours), repr(ours)) == (str(wanted), repr(wanted))
    assert ours.to_string(grid_size=(5, 5), limit=1) == wanted.to_string(grid_size=(5, 5), limit=1)
    assert torch.equal(ours.to_dense(), wanted.to_dense())
    assert [type(x) for x in ours.as_tuple()] == [type(x) for x in wanted.as_tuple()]
    assert len(ours.as_tuple(flatten=False)) == len(wanted.as_tuple(flatten=False))
    same_lists(ours, wanted)


def test_masks_joined():
    for mod in (and_masks(causal, near), or_masks(causal, near, noop_mask), noop_mask):
        same_lists(*both(mod, 1, 1, 130, 130, BLOCK_SIZE=32))
    assert torch.equal(create_mask(causal, 1, 1, 9, 9, device="cpu")[0, 0], torch.ones(9, 9).tril().bool())
    with pytest.raises(RuntimeError, match="callable"):
        and_masks(causal, 3)


@pytest.mark.parametrize(
    "index", [0, -1, (0, 1), (slice(0, 2), slice(1, 2)), (slice(None), slice(None), torch.tensor([1])), (1, -1, 0)]
)
def test_slices(index):
    ours, wanted = both(causal, 4, 2, 512, 512)
    ours, wanted = ours[index], wanted[index]
    assert type(ours) is BlockMask
    assert ours.shape == wanted.shape
    same_lists(ours, wanted)
    with pytest.raises(RuntimeError, match="Cannot use mask_mod from a sliced BlockMask"):
        ours.mask_mod(0, 0, 0, 0)


def test_of_listed_blocks():
    counts = torch.tensor([[[1, 2]]], dtype=torch.int32)
    indices = torch.tensor([[[[0, 1], [0, 1]]]], dtype=torch.int32)
    ours = BlockMask.from_kv_blocks(counts, indices, BLOCK_SIZE=48)
    assert type(ours) is BlockMask
    x = tensors()
    expected, _ = reference(*x, None, lambda b, h, q, k: q // 48 >= k // 48)
    torch.testing.assert_close(flex_attention(*x, block_mask=ours), expected)
    with pytest.raises(RuntimeError, match="at least 2 dimensions"):
        BlockMask.from_kv_blocks(counts, torch.tensor([1]))


def test_listed_blocks_and_a_mask_that_goes_beyond_them():
    """mask_mod counts inside of listed blocks, full blocks are whole: as FlexAttention's kernels have it."""
    counts = torch.tensor([[[1, 1]]], dtype=torch.int32)
    indices = torch.tensor([[[[0, 1], [1, 0]]]], dtype=torch.int32)
    full = torch.tensor([[[0, 1]]], dtype=torch.int32), torch.tensor([[[[0, 1], [0, 1]]]], dtype=torch.int32)
    ours = BlockMask.from_kv_blocks(counts, indices, *full, BLOCK_SIZE=48, mask_mod=near)
    x = tensors()

    def meant(b, h, q, k):
        return ((q // 48 == k // 48) & near(b, h, q, k)) | ((q >= 48) & (k < 48))

    expected, _ = reference(*x, None, meant)
    torch.testing.assert_close(flex_attention(*x, block_mask=ours), expected)
    of_torch = theirs.BlockMask.from_kv_blocks(counts, indices, *full, BLOCK_SIZE=48, mask_mod=near)
    torch.testing.assert_close(flex_attention(*x, block_mask=of_torch), expected)


def test_other_lengths():
    ours = create_block_mask(causal, 2, 1, 512, 512, device="cpu")
    wanted = theirs.create_block_mask(causal, 2, 1, 300, 200, device="cpu")
    adjusted = ours._adjust(300, 200)
    assert type(adjusted) is BlockMask
    same_lists(adjusted, wanted)
    ours.kv_indices  # noqa: B018 - makes the lists
    torch.testing.assert_close(ours._adjust(300, 200).to_dense(), wanted.to_dense())
    x = tensors(2, 1, 300, 200)
    expected, _ = reference(*x, None, causal)
    torch.testing.assert_close(flex_attention(*x, block_mask=ours._adjust(300, 200)), expected)


def test_on_another_device():
    for made in (False, True):
        ours = create_block_mask(causal, None, None, 300, 300, device="cpu")
        if made:
            ours.kv_indices  # noqa: B018
        moved = ours.to("meta")
        assert moved.device.type == "meta"
        assert ours.device.type == "cpu"
        assert (moved.pattern, moved.kv_indices.device.type) == (ours.pattern, "meta")


def test_flattened():
    ids = torch.arange(300) // 70
    ours = create_block_mask(lambda b, h, q, k: ids[q] == ids[k], None, None, 300, 300, device="cpu")
    leaves, context = ours._flatten()
    again = BlockMask._unflatten(leaves, context)
    assert type(again) is BlockMask
    if hasattr(theirs, "_extract_callable_pytree"):  # torch 2.11 leaves captured tensors inside of functions
        assert any(x is ids for x in leaves)
    same_lists(again, ours)
    assert (again.pattern.to_dense(300) == ours.pattern.to_dense(300)).all()


def test_copied_and_pickled():
    ours = create_block_mask(causal, 2, None, 300, 300, device="cpu")
    for again in (copy.copy(ours), copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))):
        assert again.pattern == ours.pattern
        same_lists(again, ours)


@pytest.mark.skipif("compute_dq_write_order" not in OPTIONS, reason="this torch has no order of dQ")
def test_order_of_dq():
    ours = create_block_mask(causal, None, None, 300, 300, "cpu", compute_dq_write_order=True, dq_kv_order=False)
    wanted = theirs.create_block_mask(
        causal, None, None, 300, 300, "cpu", compute_dq_write_order=True, dq_kv_order=False
    )
    same_lists(ours, wanted)
    with pytest.raises(ValueError, match="dq_kv_order must be a bool"):
        create_block_mask(causal, None, None, 300, 300, "cpu", dq_kv_order=torch.arange(3))


# ---- the pattern -----------------------------------------------------------------------------------------------------
def test_lists_wait_until_they_are_read(monkeypatch):
    monkeypatch.setattr(block_mask, "kinds_of_blocks", lambda *_: pytest.fail("lists were made"))
    mask = create_block_mask(causal, None, None, 1 << 15, 1 << 15, device="cpu")
    assert str(mask.pattern) == "causal(align='top-left')"
    x = tensors(1, 1, 96)
    flex_attention(*x, block_mask=create_block_mask(causal, None, None, 96, 96, device="cpu"))


def test_a_captured_tensor_that_changes():
    """Blocks stay as they are; the mask inside of partial ones is the new one."""
    width = torch.tensor(60)
    mask = create_block_mask(lambda b, h, q, k: (q >= k) & (q - k < width), None, None, 96, 96, "cpu")
    x = tensors()
    for new in (60, 20, 5):
        width.fill_(new)
        expected, _ = reference(*x, None, mask.mask_mod)
        torch.testing.assert_close(flex_attention(*x, block_mask=mask), expected)


def test_decoding_by_a_slice():
    """The documented way: a row of blocks, a mask moved by an offset that changes in place."""
    whole = create_block_mask(causal, None, None, 256, 256, device="cpu")
    offset = torch.tensor(200)
    step = whole[:, :, torch.tensor([1])]
    step.mask_mod = lambda b, h, q, k: causal(b, h, q + offset, k)
    step.seq_lengths = (1, 256)
    x = tensors(m=1, n=256)
    for place in (200, 220, 255):
        offset.fill_(place)
        expected, _ = reference(*x, None, step.mask_mod)
        torch.testing.assert_close(flex_attention(*x, block_mask=step), expected)


def test_a_slice_whose_lengths_are_not_set():
    step = create_block_mask(causal, None, None, 256, 256, device="cpu")[:, :, 1]
    step.mask_mod = causal
    with pytest.raises(LengthError, match="seq_lengths"):
        step.pattern  # noqa: B018


def test_lists_that_are_set():
    mask = create_block_mask(causal, None, None, 96, 96, device="cpu", BLOCK_SIZE=48)
    mask.kv_num_blocks = torch.zeros_like(mask.kv_num_blocks)
    x = tensors()
    expected, _ = reference(*x, None, lambda b, h, q, k: (q >= 48) & (k < 48))  # the full block
    torch.testing.assert_close(flex_attention(*x, block_mask=mask), expected)


@pytest.mark.parametrize("of_torch", [False, True])
def test_lists_that_change_in_place(of_torch):
    make = theirs.create_block_mask if of_torch else create_block_mask
    mask = make(causal, None, None, 96, 96, "cpu", BLOCK_SIZE=48)
    x = tensors()
    for count in (1, 0):
        mask.full_kv_num_blocks.fill_(0)[..., 1] = count
        expected, _ = reference(*x, None, lambda b, h, q, k: (q >= k) & ((q // 48 == k // 48) | (count == 1)))  # noqa: B023
        torch.testing.assert_close(flex_attention(*x, block_mask=mask), expected)


def test_what_has_no_closed_form_is_evaluated():
    class Branching:
        def __call__(self, b, h, q, k):
            return torch.cumsum(torch.stack([q, k]), 0)[1] % 7 < 3

    ours, wanted = both(Branching(), 1, 1, 60, 60, BLOCK_SIZE=16)
    same_lists(ours, wanted)
    same_lists(create_block_mask(Branching().__call__, 1, 1, 60, 60, device="cpu", BLOCK_SIZE=16), wanted)  # bound


@pytest.mark.parametrize("kind", ["partial", "method"])
def test_callables(kind):
    class Held:
        def __init__(self):
            self.ids = torch.arange(96) // 11

        def mask(self, b, h, q, k):
            return self.ids[q] == self.ids[k]

    mod = Held().mask if kind == "method" else functools.partial(lambda width, b, h, q, k: (q - k).abs() < width, 9)
    x = tensors()
    expected, _ = reference(*x, None, mod)
    torch.testing.assert_close(
        flex_attention(*x, block_mask=create_block_mask(mod, None, None, 96, 96, "cpu")), expected
    )


def test_nothing_is_kept_alive():
    def made():
        ids = torch.arange(300) // 70
        mask = create_block_mask(lambda b, h, q, k: ids[q] == ids[k], None, None, 300, 300, device="cpu")
        return weakref.ref(ids), weakref.ref(mask)

    gone = made()
    gc.collect()
    assert [x() for x in gone] == [None, None]


# ---- bad input -------------------------------------------------------------------------------------------------------
def test_functions_of_other_arguments():
    with pytest.raises(AssertionError, match="requires a mask_mod function"):
        create_block_mask(lambda score, b, h, q, k: score, None, None, 8, 8)
    with pytest.raises(AssertionError, match="Expected 4 or 5 positional args"):
        create_block_mask(lambda q, k: q >= k, None, None, 8, 8)
    with pytest.raises(TypeError, match="unexpected keyword argument 'colour'"):
        create_block_mask(causal, None, None, 8, 8, colour=1)


@pytest.mark.parametrize("of_torch", [False, True])
def test_a_mask_for_one_row_that_tells_rows_apart(of_torch):
    """Its blocks are those of row 0: torch's kernels would compute something that nobody wrote."""
    make = theirs.create_block_mask if of_torch else create_block_mask
    lengths, x = torch.tensor([20, 70]), tensors()
    for mod, option in (
        (lambda b, h, q, k: k < lengths[b], "B=2"),
        (lambda b, h, q, k: q - k < 8 * (h + 1), "H=4"),
    ):
        mask = make(mod, None, None, 96, 96, "cpu")
        with pytest.raises(ValueError, match=option):
            flex_attention(*x, block_mask=mask)
        one = tensors(batch=1, heads=1)
        torch.testing.assert_close(flex_attention(*one, block_mask=mask), reference(*one, None, mod)[0])


def test_a_mask_that_is_too_large_to_evaluate(monkeypatch):
    monkeypatch.setattr(block_mask, "DENSE", 10)
    with pytest.raises(InputError, match="create_block_mask"):
        create_block_mask(lambda b, h, q, k: torch.erf(q * 1.0) > k, None, None, 60, 60, "cpu")


def test_compile_is_said_to_do_nothing():
    with pytest.warns(DeprecationWarning, match="_compile has no effect"):
        create_block_mask(causal, None, None, 8, 8, "cpu", _compile=True)


def test_what_is_exported():
    for name in flex.__all__:
        assert hasattr(theirs, name)
    assert flex._mask_mod_signature is theirs._mask_mod_signature
    with pytest.raises(AttributeError, match="no attribute '_nothing'"):
        flex._nothing  # noqa: B018
    with pytest.raises(AttributeError, match="no attribute 'create_nested_block_mask'"):
        flex.create_nested_block_mask  # noqa: B018
