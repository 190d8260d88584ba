"""`weft compile`: which calls it takes, what it refuses, and that a card's machine then compiles nothing."""

import json

import pytest
from click.testing import CliRunner

pytest.importorskip("triton")

import torch
import triton

import weft
from weft.cli import main
from weft.kernels.gpu.compile import compiler, filling
from weft.kernels.gpu.compile.filling import Filled, Made
from weft.kernels.gpu.layout import Layout, Options
from weft.kernels.gpu.program import row_major
from weft.kernels.gpu.programs.backward import backward_program
from weft.kernels.options import Modifiers
from weft.planning.attention_plan import plan_attention
from weft.planning.problem import Problem
from weft.score.evaluate import Rule
from weft.settings import interpreted
from weft.store import opened
from weft.target import GPUS
from weft.torch.along import scores_of

pytestmark = pytest.mark.skipif(interpreted(), reason="Triton interprets, and compiles nothing")
H200 = GPUS["h200"]
CALL = ("causal() & window(100)", "--shape", "1,2,1000,16", "--target", "h200")


@pytest.fixture(autouse=True)
def own_directory(tmp_path, monkeypatch):
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path / "cache"))


@pytest.fixture
def asked(monkeypatch):
    """(names, target) of what would be compiled; nothing is."""
    found = []

    def fill(sources, target, jobs, show):
        found.append(([one.name for one in sources], target, jobs))
        show(1, 2)
        return Filled(made=[Made(one.name, 0.5) for one in sources])

    monkeypatch.setattr(filling, "fill", fill)
    return found


def run(*args, code=0):
    done = CliRunner().invoke(main, ["compile", *args])
    assert done.exit_code == code, done.output
    return done.output


# ---- the whole -------------------------------------------------------------------------------------------------------
@pytest.mark.more
def test_a_call_on_the_card_compiles_nothing_afterwards(monkeypatch):
    facts = json.loads(run(*CALL, "--jobs", "1", "--json"))
    assert len(facts["compiled"]) == 3 == len(opened().entries()) and facts["found"] == [] and facts["refused"] == {}
    assert facts["card"] == "h200" and facts["triton"] == triton.__version__ and facts["calls"] == 1
    monkeypatch.setattr(compiler, "compile_for", lambda *given: pytest.fail("compiled"))
    again = json.loads(run(*CALL, "--json"))
    assert again["compiled"] == {} and sorted(again["found"]) == sorted(facts["compiled"])


def test_words(asked):
    said = run(*CALL)
    assert f"h200 (sm_90, 132 multiprocessors), Triton {triton.__version__}" in said
    assert "1 call: 3 kernels compiled, 0 found" in said and str(opened().root) in said


def test_what_is_refused_is_named_and_the_exit_code_is_1(monkeypatch):
    monkeypatch.setattr(filling, "fill", lambda *given: Filled(made=[Made("dq_17", 0.1, "it is wrong")]))
    assert "dq_17: it is wrong" in run(*CALL, code=1)


# ---- which calls -----------------------------------------------------------------------------------------------------
def test_options_of_a_call(asked):
    run(*CALL, "--forward-only")
    run(
        "full()",
        *CALL[1:],
        "--sinks",
        "--softcap",
        "--dtype",
        "float16",
        "--kv-heads",
        "1",
        "--dv",
        "32",
        "--keys",
        "2000",
    )
    (first, *_), (every, *_) = asked
    assert len(first) == 1 and first[0].startswith("forward_bfloat16_16_")
    assert every[0].startswith("forward_float16_16x32_") and "softcap_sinks" in every[0]
    assert every[-1] == "sink_gradient" and any(name.startswith("dkdv") and "grouped" in name for name in every)


def test_dropout_and_a_relative_bias(asked):
    """The bias is the kernels' of a call with any table: what they read is told apart by heads and distance."""
    run(*CALL, "--dropout")
    run(*CALL, "--relative-bias")
    (dropped, *_), (biased, *_) = asked
    assert len(dropped) == 3 and all("dropout" in name for name in dropped)
    plan = plan_attention(
        weft.causal() & weft.window(100), Problem(1, 2, 2, 1000, 1000, 16, 16, "bfloat16", "cuda"), H200
    )
    made = weft.bias.relative(torch.zeros(2, 65))
    scores = scores_of(Modifiers(0.25, rules=tuple(Rule(one, made.tables, (True,)) for one in made.expressions)), plan)
    layout = Layout((row_major((1, 2, 1000, 16)),) * 5, True, tables=scores.forms)
    options = Options(0.25, score=scores.score, wanted=scores.wanted, deterministic=False)
    program = backward_program(plan, layout, options)
    assert biased[1:] == [launch.kernel.name for launch in program.launches]


def test_workloads(asked):
    assert "12 calls" in run("--workloads", "core", "--target", "sm_90")
    run("--workloads", "causal", "--workloads", "gpt_oss_window_128", "--target", "sm_90")
    names = asked[1][0]
    assert any("128_1d" in name for name in names) and "sink_gradient" in names


def test_a_file_of_calls(asked, tmp_path):
    path = tmp_path / "calls.txt"
    path.write_text(
        '# two calls\n\n"causal() & window(100)" --shape 1,2,1000,16\n'
        "'full()' --shape 1,2,1000,32 --dtype float16 --forward-only\n"
    )
    assert "2 calls" in run("--calls", str(path), "--target", "h200")
    names = asked[0][0]
    assert len(names) == 4 and names[-1].startswith("forward_float16_32")
    run("--calls", str(path), "--target", "h200", "--forward-only")
    assert len(asked[1][0]) == 2


def test_cards_and_architectures(asked):
    for target in ("sm_80", "gfx942", "rtx4090"):
        run(*CALL[:-1], target)
    assert [one[1] for one in asked] == [filling.target_of(x) for x in ("sm_80", "gfx942", "sm_89")]
    facts = json.loads(run(*CALL[:-1], "sm_90", "--processors", "78", "--json"))
    assert (facts["card"], facts["processors"]) == ("h200", 78)


def test_the_plan_is_that_of_a_call(asked):
    """Of the card that is named, with its own number of processors."""
    from weft.cli.compile import _card

    assert _card("h100", None) is GPUS["h100"] and _card("sm_90", None) is GPUS["h200"]
    pattern, problem = weft.causal(), weft.planning.problem.Problem(1, 2, 2, 1000, 1000, 16, 16, "bfloat16", "cuda")
    run("causal()", *CALL[1:])
    plan = plan_attention(pattern, problem, GPUS["h200"])
    from weft.kernels.gpu.programs.kernels import kernels_of

    assert asked[0][0] == [one.name for one in kernels_of(plan)]


# ---- refusals --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "args, said",
    [
        (("--target", "h200"), "exactly one of the three"),
        ((*CALL, "--workloads", "core"), "exactly one of the three"),
        (("--workloads", "core", "--shape", "1,2,3,4", "--target", "h200"), "leave --shape out"),
        (("causal()", "--target", "h200"), "add --shape B,H,M,D"),
        (("--workloads", "coree", "--target", "h200"), "there is no workload and no tag"),
        (("causal()", "--shape", "1,2,1000,300", "--target", "h200"), "a head dimension is above 256"),
        ((*CALL, "--dtype", "float64"), "use one of float32, bfloat16, float16"),
        ((*CALL, "--triton", "1.2.3"), "pip install triton==1.2.3"),
        ((*CALL[:-1], "h201"), "'h201' is not one of"),
        ((*CALL, "--device", "cpu"), "No such option"),
        (CALL[:-2], "Missing option '--target'"),
    ],
)
def test_refused(args, said):
    assert said in run(*args, code=2)


def test_the_right_triton_is_not_refused(asked):
    run(*CALL, "--triton", triton.__version__)


@pytest.mark.parametrize("name, value", [("WEFT_CACHE_DIR", "off"), ("TRITON_KERNEL_DUMP", "1")])
def test_nowhere_to_keep_them(name, value, monkeypatch):
    monkeypatch.setenv(name, value)
    assert "unset" in run(*CALL, code=2) or "set WEFT_CACHE_DIR" in run(*CALL, code=2)


@pytest.mark.parametrize(
    "line, said",
    [
        ("causal()", "Missing option '--shape'"),
        ("causal( --shape 1,2,3,4", "the pattern, at column"),
        ("'causal() --shape 1,2,3,4", "No closing quotation"),
        ("causal() --shape 1,2,3,4 --target h200", "No such option"),
        ("causal() --shape 1,2,3,4 --window 3", "No such option"),
    ],
)
def test_a_line_that_is_no_call_is_named(line, said, tmp_path):
    path = tmp_path / "calls.txt"
    path.write_text(f"# one\n{line}\n")
    found = run("--calls", str(path), "--target", "h200", code=2)
    assert f"{path}, line 2" in found.replace("\n", "") and said in found
