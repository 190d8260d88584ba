"""NATTEN's interface, SDPA's and the rules of video models on a GPU, beside a dense mask in float64."""

import pytest
import torch

import weft.integrations.natten as natten
from weft.integrations import diffusers, sdpa
from weft.integrations.natten.utils.varlen import generate_varlen_parameters
from weft.testing.tolerance import assert_close

from .test_diffusers_rules import WanTransformer3DModel
from .test_natten import CASES, dense, softmaxed, triangle

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no GPU")]
DEVICE = "cuda"
NAMES = ("out", "lse", "dq", "dk", "dv")


def drawn(*shapes, dtype=torch.bfloat16):
    torch.manual_seed(0)
    return [torch.randn(shape, device=DEVICE).to(dtype).requires_grad_() for shape in shapes]


def results(attend, leaves):
    """(out, lse) and the gradients of the leaves."""
    out, lse = attend(*leaves)
    seeds = [torch.linspace(-1, 1, x.numel(), device=DEVICE).view(x.shape).to(x.dtype) for x in (out, lse)]
    return out, lse, *torch.autograd.grad((out, lse), leaves, seeds)


def compare(ours, theirs, leaves):
    """theirs: the same on flat tensors, by a dense mask."""
    wide = [x.detach().double().requires_grad_() for x in leaves]
    for name, *three in zip(NAMES, results(ours, leaves), results(theirs, wide), results(theirs, leaves), strict=True):
        assert_close(name, *three)


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("dim", [32, 128])
def test_neighbourhoods(case, dim):
    grid, rank, mask = case[0], len(case[0]), dense(*case).to(DEVICE)
    arguments = dict(zip(("kernel_size", "stride", "dilation", "is_causal"), case[1:], strict=True))
    operation = (natten.na1d, natten.na2d, natten.na3d)[rank - 1]

    def theirs(q, k, v):
        return (x.unflatten(1, grid) for x in softmaxed(*(x.flatten(1, rank) for x in (q, k, v)), mask))

    leaves = drawn(*((2, *grid, heads, dim) for heads in (4, 2, 2)))
    compare(lambda q, k, v: operation(q, k, v, **arguments, return_lse=True), theirs, leaves)


@pytest.mark.parametrize("is_causal", [False, True])
def test_packed_sequences(is_causal):
    """Lengths stay on the GPU."""
    lengths = [torch.tensor(x, dtype=torch.int32, device=DEVICE) for x in ([50, 7, 130], [40, 90, 20])]
    leaves = drawn((1, 187, 4, 64), (1, 150, 2, 64), (1, 150, 2, 64))
    sums = generate_varlen_parameters(*leaves, *lengths)
    names = ("cumulative_seqlen_Q", "cumulative_seqlen_KV", "max_seqlen_Q", "max_seqlen_KV")
    given = dict(zip(names, sums, strict=True))

    def theirs(q, k, v):
        split = zip(q.split([50, 7, 130], 1), k.split([40, 90, 20], 1), v.split([40, 90, 20], 1), strict=True)
        each = [softmaxed(*part, triangle(*part[:2]).to(DEVICE) if is_causal else None) for part in split]
        return (torch.cat(x, 1) for x in zip(*each, strict=True))

    compare(lambda q, k, v: natten.attention(q, k, v, is_causal, return_lse=True, **given), theirs, leaves)


def test_a_module_under_autocast():
    torch.manual_seed(0)
    module = natten.NeighborhoodAttention2D(embed_dim=256, num_heads=4, kernel_size=7, dilation=2).to(DEVICE)
    x = torch.randn(2, 20, 24, 256, device=DEVICE)
    with torch.autocast("cuda", torch.bfloat16):
        out = module(x)
    assert out.dtype == torch.bfloat16
    assert (out.float() - module(x)).abs().max() < 0.02
    out.float().square().sum().backward()
    assert all(p.grad.isfinite().all() for p in module.parameters())


def test_sdpa_in_the_place_of_torchs():
    q, k, v = drawn((2, 4, 300, 64), (2, 4, 300, 64), (2, 4, 300, 64))
    mask = torch.ones(300, 300, dtype=torch.bool, device=DEVICE).tril().triu(-40)
    padding = (torch.arange(300, device=DEVICE) < torch.tensor([[200], [300]], device=DEVICE))[:, None, None]
    added = torch.randn(1, 4, 300, 300, device=DEVICE).to(q.dtype)
    attend = torch.nn.functional.scaled_dot_product_attention
    for given in ({"attn_mask": mask}, {"attn_mask": padding}, {"attn_mask": added}, {"is_causal": True}):
        with sdpa.in_place_of_torch() as served:
            out = attend(q, k, v, **given)
        assert served.calls == 1
        wide = [x.double() for x in (q, k, v)]
        exact = given | ({"attn_mask": added.double()} if given.get("attn_mask") is added else {})
        assert_close("out", out, attend(*wide, **exact), attend(q, k, v, **given))


def test_rules_of_a_video_model():
    torch.manual_seed(0)
    there, here = WanTransformer3DModel().to(DEVICE), WanTransformer3DModel()
    here.load_state_dict(there.state_dict())
    x = torch.randn(2, 8, 3, 8, 12)
    for model in (there, here):
        diffusers.set_pattern(model, neighborhood=(1, 3, 3))
    assert (there(x.to(DEVICE)).cpu() - here(x)).abs().max() < 1e-2  # products of float32 may be in tf32
