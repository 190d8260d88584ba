"""What each adapter asks of its library, against stand-ins with the library's own parameters and meaning.

The libraries need a GPU; a stand-in takes the parameters that the adapter may use, computes what they mean by a dense
mask, and the result is checked as a real one is.
"""

import sys
from importlib.util import find_spec
from types import ModuleType

import pytest
import torch
from tests.tiers import every
from torch.nn.attention.flex_attention import create_mask
from torch.nn.functional import scaled_dot_product_attention as sdpa

import weft
from weft.bench.check import Truth
from weft.bench.inputs import Tensors
from weft.bench.peers import all_peers
from weft.bench.peers.weft import tables
from weft.runtime.pipeline import compiled
from weft.testing.workloads import WORKLOADS

PEERS = all_peers()


def attend(q, k, v, live, sink=None):
    """(B, length, H, D) tensors under a mask (M, N), with an optional sink logit per head."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
    if sink is None:
        return sdpa(q, k, v, attn_mask=live).transpose(1, 2)
    scores = (q @ k.mT * q.shape[3] ** -0.5).masked_fill(~live, -torch.inf)
    scores = torch.cat([scores, sink[None, :, None, None].expand(*scores.shape[:3], 1)], 3)
    return (torch.softmax(scores, 3)[..., :-1] @ v).transpose(1, 2)


def band(m, n, left, right):
    """Keys from left before to right after the aligned query; None is open."""
    gap = torch.arange(n) - torch.arange(m)[:, None] - (n - m)
    return (gap >= (-n if left is None else -left)) & (gap <= (n if right is None else right))


def by_segments(q, k, v, ends, one):
    """`one` on each pair of segments of packed (tokens, H, D) tensors."""
    q_ends, k_ends = (x.tolist() for x in ends)
    out = torch.empty_like(q)
    for i in range(len(q_ends) - 1):
        rows, keys = slice(q_ends[i], q_ends[i + 1]), slice(k_ends[i], k_ends[i + 1])
        out[rows] = one(q[rows][None], k[keys][None], v[keys][None], i)[0]
    return out


# ---- stand-ins ---------------------------------------------------------------------------------------------------
def flash_attn():
    def flash_attn_func(q, k, v, *, causal=False, window_size=(None, None), learnable_sink=None):
        left, right = window_size
        live = band(q.shape[1], k.shape[1], left, 0 if causal else right)
        return attend(q, k, v, live, learnable_sink), None

    def flash_attn_varlen_func(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, *, causal, **more):
        assert max_seqlen_q == max_seqlen_k == int(cu_seqlens_q.diff().max())
        assert cu_seqlens_q.dtype == torch.int32
        assert more == {"learnable_sink": None}
        ends = cu_seqlens_q, cu_seqlens_k
        right = 0 if causal else None
        return by_segments(q, k, v, ends, lambda q, k, v, i: attend(q, k, v, band(q.shape[1], k.shape[1], None, right)))

    return {
        "flash_attn.cute": {"flash_attn_func": flash_attn_func, "flash_attn_varlen_func": flash_attn_varlen_func}
    }  # fmt: skip


def natten():
    def function(query, key, value, kernel_size, stride=1, dilation=1, is_causal=False):
        shape = tuple(query.shape[1:-2])
        dense = weft.neighborhood(shape, kernel_size, stride, dilation, is_causal).to_dense(torch.Size(shape).numel())
        flat = (x.flatten(1, len(shape)) for x in (query, key, value))
        return attend(*flat, torch.from_numpy(dense)).unflatten(1, shape)

    return {"natten": {f"na{rank}d": function for rank in (1, 2, 3)} | {"HAS_LIBNATTEN": True}}


class Bias:
    """live(m, n) -> mask."""

    def __init__(self, live):
        self.live = live


class BlockDiagonal(Bias):
    @classmethod
    def from_seqlens(cls, lengths):
        ids = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths))
        return cls(lambda m, n: ids[:, None] == ids)

    def make_causal(self):
        return Bias(lambda m, n: self.live(m, n) & band(m, n, None, 0))


def xformers():
    def memory_efficient_attention(query, key, value, attn_bias=None):
        m, n = query.shape[1], key.shape[1]
        live = torch.ones(m, n, dtype=torch.bool) if attn_bias is None else attn_bias.live(m, n)
        return attend(query, key, value, live)

    biases = {
        "LowerTriangularFromBottomRightMask": lambda: Bias(lambda m, n: band(m, n, None, 0)),
        "LocalAttentionFromBottomRightMask": lambda window_left, window_right: Bias(
            lambda m, n: band(m, n, window_left, window_right)
        ),
        "BlockDiagonalMask": BlockDiagonal,
    }
    return {
        "xformers.ops": {"memory_efficient_attention": memory_efficient_attention},
        "xformers.ops.fmha.attn_bias": biases,
    }  # fmt: skip


class Ragged:
    def __init__(self, float_workspace_buffer, kv_layout="NHD"):
        assert kv_layout == "NHD"

    def plan(
        self, qo_indptr, kv_indptr, num_qo_heads, num_kv_heads, head_dim_qk, head_dim_vo=None, custom_mask=None,
        causal=False, window_left=-1, q_data_type="float16", kv_data_type=None,
    ):  # fmt: skip
        assert q_data_type == kv_data_type == torch.float32
        self.ends, self.heads, self.custom = (qo_indptr, kv_indptr), (num_qo_heads, num_kv_heads), custom_mask
        self.band = (None if window_left < 0 else window_left, 0 if causal else None)

    def run(self, q, k, v):
        assert (q.shape[1], k.shape[1]) == self.heads

        def one(q, k, v, i):
            m, n = q.shape[1], k.shape[1]
            live = band(m, n, *self.band)
            return attend(q, k, v, live if self.custom is None else self.custom[i * m * n :][: m * n].view(m, n))

        return by_segments(q, k, v, self.ends, one)


def flashinfer():
    return {"flashinfer": {"BatchPrefillWithRaggedKVCacheWrapper": Ragged}}


def cudnn_flex():
    def create_mask_plan(mask_func, q, k, v, *, build_backward=False):
        heads, count, total = mask_func.shape
        assert mask_func.dtype == torch.int32 and count % 2 and total == q.shape[0] * q.shape[1]
        assert heads in (1, q.shape[2])
        ends = torch.cat([torch.zeros_like(mask_func[:, :1]), mask_func], 1).view(heads, -1, 2, q.shape[0], q.shape[1])
        keys = torch.arange(k.shape[1])
        inside = (keys >= ends[:, :, 0, ..., None]) & (keys < ends[:, :, 1, ..., None])
        return inside.any(1).transpose(0, 1)  # (B, heads, M, N)

    def flex_attn_func(q, k, v, *, mask_plan):
        return attend(q, k, v, mask_plan)

    return {"cudnn.flex_attention": {"create_mask_plan": create_mask_plan, "flex_attn_func": flex_attn_func}}


STAND_INS = {
    "cudnn-flex": cudnn_flex,
    "fa4": flash_attn,
    "natten": natten,
    "xformers": xformers,
    "flashinfer": flashinfer,
}


@pytest.fixture
def install(monkeypatch):
    def installed(modules):
        for name, content in modules.items():
            parts = name.split(".")
            for i in range(1, len(parts) + 1):
                full = ".".join(parts[:i])
                if full not in sys.modules or sys.modules[full].__spec__ is not None:
                    monkeypatch.setitem(sys.modules, full, ModuleType(full))
                if i > 1:
                    monkeypatch.setattr(sys.modules[".".join(parts[: i - 1])], parts[i - 1], sys.modules[full], False)
            for key, value in content.items():
                setattr(sys.modules[name], key, value)

    return installed


def runs(peer, workload):
    """Whether it takes the problem, but for the type that it would want on a GPU."""
    return set(PEERS[peer].reasons_against(workload, "fwd", "cuda")) <= {"16-bit types only"}


@pytest.mark.parametrize(
    "peer,name",
    every(4, [(peer, name) for peer in STAND_INS for name, w in WORKLOADS.items() if runs(peer, w.small())]),
)
def test_an_adapter_asks_for_the_mask(peer, name, install):
    small = WORKLOADS[name].small()
    install(STAND_INS[peer]())
    tensors = Tensors(small, "cpu")
    case = tensors.laid_out(PEERS[peer].layout)[0]
    out = PEERS[peer].prepare(small, tensors).run(case.q, case.k, case.v)
    assert out.shape == case.q.shape
    wrong = Truth(tensors).verdict("fwd", (out.transpose(1, 2),)).wrong
    assert bool(wrong) == bool(PEERS[peer].different_mask(small)), wrong


@pytest.mark.parametrize(
    "peer,expected",
    [
        ("fa2", "dense dense_d64 causal"),
        ("cudnn", "dense dense_d64 causal"),
        ("fa4", "dense dense_d64 causal causal_window_1024 window_pm256 chunk_2048_causal document_causal"),
        (
            "cudnn-flex",
            "dense dense_d64 causal causal_window_1024 window_pm256 longformer_w512_g64 chunk_2048_causal "
            "na2d_128x128_k21 document_causal",
        ),
        ("natten", "causal_window_1024 window_pm256 dilated_w512_d4 na2d_128x128_k21 na3d_30x48x80_k18x24x24"),
    ],
)
def test_what_is_taken_of_the_core_dozen(peer, expected):
    core = {name: w for name, w in WORKLOADS.items() if "core" in w.tags}
    for direction in ("fwd", "bwd"):
        taken = [name for name, w in core.items() if not PEERS[peer].reasons_against(w, direction, "cuda")]
        assert taken == expected.split()


def test_flexattention_takes_everything_but_sinks():
    refused = {name for name, w in WORKLOADS.items() if PEERS["flex"].reasons_against(w, "bwd", "cuda")}
    assert refused == {"gpt_oss_window_128"}


@pytest.mark.parametrize(
    "name,workload",
    [
        *(("sdpa", name) for name in ("dense", "causal", "gemma3_global", "decode_128k")),
        *(("sdpa-mask", name) for name in ("window_pm256", "mixed_dilation", "decode_window_4096", "share_question")),
        *(("sdpa-slices", name) for name in ("window_pm256", "dilated_w512_d4", "mistral_window_4096")),
        *(("weft-cpu", name) for name in ("dilated_w512_d4", "mixed_dilation", "gpt_oss_window_128", "verify_8")),
    ],
)
def test_peers_on_the_cpu_are_right(name, workload):
    small, peer = WORKLOADS[workload].small(), PEERS[name]
    assert not peer.reasons_against(small, "fwd", "cpu")
    tensors = Tensors(small, "cpu")
    case = tensors.cases[0]
    out = peer.prepare(small, tensors).run(case.q, case.k, case.v)
    assert not Truth(tensors).verdict("fwd", (out,)).wrong


@pytest.mark.parametrize(
    "name", ["flex", "flex-flash", "fa4", "natten", "xformers", "flashinfer", "fa2", "cudnn", "cudnn-flex"]
)
def test_gpu_peers_are_absent_on_a_cpu_or_say_what_they_need(name):
    assert PEERS[name].reason_absent("cpu") in ("", "it runs on cuda only", "it needs a C++ compiler on the CPU")


def test_flexattentions_masks_are_measured_apart():
    assert PEERS["flex-mask"].directions == ("any",)
    assert PEERS["flex-mask"].reasons_against(WORKLOADS["dense"], "any", "cuda") == ["no mask is needed"]
    assert not PEERS["flex-mask"].reasons_against(WORKLOADS["scaling_1m"], "any", "cuda")


def programs_of(plan):
    """Of a call and its gradients, in whatever order these are summed."""
    from weft.kernels.gpu.layout import Layout, Options
    from weft.kernels.gpu.programs.backward import keys_program, queries_program
    from weft.kernels.gpu.programs.forward import forward_program
    from weft.torch.gpu import dense_strides

    strides, options = dense_strides(plan), Options(0.1)
    layout = Layout(strides, True)
    of_gradients = queries_program(plan, layout, options), keys_program(plan, layout, options, summing=False)
    return forward_program(plan, Layout(strides[:3], True), options), *of_gradients


@pytest.mark.skipif(find_spec("triton") is None, reason="plans for a GPU need triton")
def test_planning_for_a_gpu_ends_with_the_tables_of_every_direction():
    workload = WORKLOADS["longformer_w512_g64"].small()
    plan, backend = compiled(workload.make(), workload.problem("cuda"))
    assert backend.name == "triton"
    found = tables(plan, "cpu")
    read = {id(table.words) for program in programs_of(plan) for table in program.tables.values()}
    assert len(found) == len(read) >= 3
    assert all(len(words) for words in found)


@pytest.mark.parametrize("name", WORKLOADS)
def test_flexattention_reads_the_formula(name):
    small = WORKLOADS[name].small()
    tensors = Tensors(small, "cpu")
    heads = small.q_heads if small.per_head else None
    mask = create_mask(small.predicate(tensors.table), None, heads, small.m, small.n, device="cpu")
    dense = torch.from_numpy(small.make().to_dense(small.m, small.n))
    assert torch.equal(mask.view(dense.shape), dense)
