"""`weft plan` and `weft explain`: what they count is what the plan says, and the source is what a GPU would run."""

import json
from collections import defaultdict
from math import prod

import pytest
from click.testing import CliRunner

import weft
from weft.cli import main
from weft.cli.plan import facts_of, planned
from weft.pattern.parse import parse
from weft.planning import verify
from weft.planning.attention_plan import plan_attention
from weft.planning.problem import Problem
from weft.target import GPU

PATTERNS = ["causal() & window(100)", "longformer(30, 4)", "per_head([causal(), full()])", "nothing()",
            "neighborhood((15, 20), (5, 5))", "random_blocks(64, 2)"]  # fmt: skip
SHAPE = ("--shape", "2,2,300,32")


def run(*args):
    return CliRunner().invoke(main, args, catch_exceptions=False)


def plan(*args):
    return run("plan", *args)


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_json(pattern, device):
    said = json.loads(plan(pattern, *SHAPE, "--device", device, "--verify", "--json").output)
    dtype, torch_device = {"cpu": ("float32", "cpu"), "cuda": ("bfloat16", "cuda")}[device]
    dense = parse(pattern).to_dense(300)
    live = int(dense.sum()) * (4 if dense.ndim == 2 else 2)
    assert said["pairs"] == live and said["verified"] is True
    assert said["problem"] == str(Problem(2, 2, 2, 300, 300, 32, 32, dtype, torch_device))
    assert said["computed"] >= live and 0 <= said["useful"] <= 1
    assert said["share"] == pytest.approx(live / (4 * 300 * 300))
    assert said["distinct_heads"] == (2 if pattern.startswith("per_head") else 1)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_gpu_computes_whole_tiles(pattern):
    made = plan_attention(parse(pattern), Problem(2, 2, 2, 300, 300, 32, 32, "bfloat16", "cuda"), GPU)
    sides = {
        prod(axis.block_q * axis.block_k for axis in part.axes)
        for share in made.forward for nest in share.plan.nests for part in nest.parts
    }  # fmt: skip
    computed = facts_of(made, False)["computed"]
    assert computed % min(sides, default=64 * 64) == 0 and computed >= made.visited


def test_text():
    done = plan("longformer(30, 4)", *SHAPE, "--verify")
    made = weft.longformer(30, 4)
    assert done.exit_code == 0 and str(made) in done.output and "nest 1:" in done.output
    assert "verified  every live pair once and no other" in done.output
    assert f"format    {made.acsr(300).nbytes:,} bytes" in done.output
    assert "verified  not asked for" in plan("causal()", *SHAPE).output
    assert "of them the remainder's" in plan("random_blocks(64, 2)", *SHAPE).output


def test_a_plan_that_does_not_verify_is_an_error(monkeypatch):
    def wrong(plan):
        raise weft.errors.VerificationError("verify a plan", "a pair is lost", "do not use the plan")

    monkeypatch.setattr(verify, "verify_plan", wrong)
    done = plan("causal()", *SHAPE, "--verify")
    assert done.exit_code == 2 and "a pair is lost" in done.output
    assert plan("causal()", *SHAPE).exit_code == 0


def test_the_shape_in_full():
    options = {"shape": (1, 8, 100, 64), "keys": 50, "kv_heads": 2, "dv": 32, "dtype": "float16", "device": "cuda"}
    assert planned("full()", options).problem == Problem(1, 8, 2, 100, 50, 64, 32, "float16", "cuda")
    said = plan("full()", "--shape", "1x8x100x64", "--keys", "50", "--kv-heads", "2", "--dv", "32", "--json").output
    assert json.loads(said)["problem"] == str(Problem(1, 8, 2, 100, 50, 64, 32))


def test_it_says_what_attention_would_refuse():
    done = plan("causal()", *SHAPE, "--device", "cuda", "--dtype", "float64")
    assert done.exit_code == 0 and "float64 is not a type it computes in" in done.output
    assert plan("causal()", "--shape", "1,1,0,8", "--verify").exit_code == 0


@pytest.mark.parametrize("command", ["plan", "explain"])
def test_what_cannot_run_is_said(command):
    done = run(command, "causal()", *SHAPE, "--device", "cuda", "--dtype", "float64")
    assert "cannot run it: float64 is not a type it computes in" in done.output


def test_explain_is_the_plans_own_text():
    options = {"shape": (2, 2, 300, 32), "keys": None, "kv_heads": None, "dv": None, "dtype": None, "device": "cpu"}
    done = run("explain", "longformer(30, 4)", *SHAPE)
    assert done.output == planned("longformer(30, 4)", options).explain() + "\n"
    said = json.loads(run("explain", "longformer(30, 4)", *SHAPE, "--json").output)
    assert said["explanation"] + "\n" == done.output and said["sources"] == {}


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("direction", ["forward", "dq", "dkdv"])
def test_sources_are_programs(pattern, direction):
    done = run("explain", pattern, *SHAPE, "--device", "cuda", "--source", direction, "--json")
    sources = json.loads(done.output)["sources"]
    assert bool(sources) == (pattern != "nothing()")
    for name, source in sources.items():
        compile(source, name, "exec")
        assert name.startswith(f"{direction}_bfloat16_32_") and "def weft_" in source


def test_sources_of_one_walk():
    """All gradients of a short window are of one kernel, beside few keys of three."""
    asked = ("causal() & window(left=127)", "--shape", "1,8,4096,64", "--device", "cuda", "--source", "fused")
    said = json.loads(run("explain", *asked, "--json").output)
    (source,) = said["sources"].values()
    assert "def weft_" in source
    assert "but taken is: one pass over queries" in said["explanation"]
    beside = ("causal() & (window(left=127) | periodic_keys(128))", *asked[1:])
    assert len(json.loads(run("explain", *beside, "--json").output)["sources"]) == 3
    assert "one pass over queries" in run("explain", *asked[:-1], "dq").stderr
    assert not run("explain", "causal()", *asked[1:-1], "dkdv").stderr


def test_sources_of_rows():
    """A step of decoding goes by rows, and its shares are combined."""
    shape = ("--shape", "1,32,1,128", "--kv-heads", "8", "--keys", "100000", "--device", "cuda")
    said = json.loads(run("explain", 'causal(align="bottom-right")', *shape, "--source", "forward", "--json").output)
    assert [name.split("_")[0] for name in said["sources"]] == ["split", "combine"]
    assert all("def weft_" in source for source in said["sources"].values())
    assert "but taken is: by rows" in said["explanation"]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_sources_are_those_that_attention_launches(pattern, monkeypatch):
    torch = pytest.importorskip("torch")
    pytest.importorskip("triton")
    from weft.kernels.options import Modifiers
    from weft.torch import bind, gpu

    made = plan_attention(parse(pattern), Problem(2, 2, 2, 300, 300, 32, 32, "bfloat16", "cuda"), GPU)
    q, k, v, out = torch.zeros(4, 2, 2, 300, 32, dtype=torch.bfloat16)
    launched = []

    def kernel_of(source, device):
        launched.append(source)
        return defaultdict(lambda: lambda *values: None)  # kernel[grid](*values), which runs nothing

    monkeypatch.setattr(bind, "kernel_of", kernel_of)
    gpu.forward((q, k, v), made, Modifiers(0.1, None, None))
    rows = torch.zeros(2, 2, 300)
    gpu.backward((q, k, v), (out, out, rows, None), made, Modifiers(0.1, None, None), with_delta=False)
    for direction in ("forward", "dq", "dkdv"):
        said = run("explain", pattern, *SHAPE, "--device", "cuda", "--source", direction, "--json").output
        meant = {source.text for source in launched if source.name.startswith(direction)}
        assert meant or pattern == "nothing()"
        entries = {source.partition("\n\n\n# weft.")[0] for source in json.loads(said)["sources"].values()}
        assert entries == {text.rstrip() for text in meant}


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["plan", "causl()", *SHAPE], "did you mean causal"),
        (["plan", "causal()", "--shape", "1,0,9,8"], "make them 1 or more"),
        (["plan", "causal()", *SHAPE, "--kv-heads", "3"], "cannot share 3 evenly"),
        (["plan", "causal()", *SHAPE, "--keys", "9"], "which query stands beside which key"),
        (["plan", "per_head([causal()])", *SHAPE], "the pattern is for 1 heads, q has 2"),
        (["explain", "causal()", *SHAPE, "--source", "dq"], "add --device cuda"),
        (["explain", "causal()", *SHAPE, "--device", "cuda", "--source", "fused"], "of two kernels"),
        (["explain", "causal()", "--shape", "1,1,9,512", "--device", "cuda", "--source", "dq"], "up to 256"),
        (["explain", "causal()", *SHAPE, "--device", "cuda", "--dtype", "float64", "--source", "dq"], "bfloat16"),
    ],
)
def test_refused(args, says):
    done = run(*args)
    assert done.exit_code == 2
    assert says in done.output and "wrong:" in done.output and "do:" in done.output


@pytest.mark.parametrize("shape", ["1,1,9", "1,1,9,8,7", "a,b,c,d", "1,1,-9,8", "1,1,99999999999,8"])
def test_shapes_that_are_none(shape):
    done = plan("causal()", f"--shape={shape}")
    assert done.exit_code == 2 and "--shape" in done.output
