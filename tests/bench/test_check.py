"""Results are told right from wrong."""

import pytest
import torch

import weft
from weft.bench.check import Truth
from weft.bench.inputs import Tensors
from weft.testing.masks import Band, Full
from weft.testing.workloads import WORKLOADS, Workload

NAMES = ("causal", "gpt_oss_window_128", "mixed_dilation", "verify_8", "bigbird_base_4096", "na3d_30x48x80_k18x24x24")


def results(tensors, pattern):
    case = tensors.cases[0]
    leaves = [x.detach().requires_grad_() for x in (case.q, case.k, case.v)]
    out = weft.attention(*leaves, pattern, sinks=tensors.sinks)
    return (out.detach(),), torch.autograd.grad(out, leaves, case.dout)


@pytest.mark.parametrize("name", NAMES)
def test_a_right_result_passes(name):
    small = WORKLOADS[name].small()
    tensors = Tensors(small, "cpu")
    truth = Truth(tensors)
    for direction, found in zip(("fwd", "bwd"), results(tensors, small.make()), strict=True):
        verdict = truth.verdict(direction, found)
        assert not verdict.wrong
        assert 0 < verdict.over_plain < 20
        assert verdict.error < 1e-4


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_window_that_is_one_key_short_is_wrong(dtype):
    workload = Workload("w", 1, 2, 1, 200, 200, 16, Band(20, 20), dtype=dtype)
    tensors = Tensors(workload, "cpu")
    truth = Truth(tensors)
    forward, backward = results(tensors, weft.window(left=20, right=19))
    assert truth.verdict("fwd", forward).wrong.startswith("out is off by")
    assert truth.verdict("bwd", backward).wrong


def test_small_outputs_of_long_rows_do_not_hide_an_error():
    workload = Workload("w", 1, 1, 1, 4096, 4096, 16, Full(), dtype="bfloat16")
    tensors = Tensors(workload, "cpu")
    case = tensors.cases[0]
    out = case.v.float().mean(2, keepdim=True).expand_as(case.q).bfloat16()  # as if all scores were 0
    assert Truth(tensors).verdict("fwd", (out,)).wrong


@pytest.mark.parametrize("which", [0, 1, 2])
def test_each_gradient_is_looked_at(which):
    small = WORKLOADS["share_question"].small()
    tensors = Tensors(small, "cpu")
    gradients = list(results(tensors, small.make())[1])
    gradients[which] = gradients[which] * 1.01
    assert Truth(tensors).verdict("bwd", tuple(gradients)).wrong.startswith(("dq", "dk", "dv")[which])


def test_nan_is_wrong():
    small = WORKLOADS["causal"].small()
    tensors = Tensors(small, "cpu")
    assert Truth(tensors).verdict("fwd", (torch.full_like(tensors.cases[0].q, torch.nan),)).wrong
