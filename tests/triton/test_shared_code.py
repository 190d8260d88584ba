"""One copy of the code of groups that run the same program: what is recognised, and that nothing else is compiled."""

import re

import pytest

from weft.errors import UnsupportedKernel
from weft.kernels.gpu.compile import stages
from weft.kernels.gpu.compile.dedup import ASKS, LIKE_BEFORE, TABLE, TARGET, begin_together, rewritten, share
from weft.settings import interpreted

GROUP = """$L__BB0_{number}:
\t// begin inline asm
\t{{ {mark}
.reg .b32 t; mov.u32 t, %tid.x; }}
\t// end inline asm
\tld.shared.b32 \t%r{number}1, [%r9+8];
\tbar.sync \t{barrier}, 128;
\t@%p{number} bra \t$L__BB0_{number}9;
\tst.global.b32 \t[%rd1], %r{number}1;
$L__BB0_{number}9:
\tbar.sync \t{barrier}, 128;
\tbra.uni \t$L__BB0_1;
"""
EMPTY = """$L__BB0_{number}:
\t// begin inline asm
\t{{ {mark}
mov.b32 %r2, 0; }}
\t// end inline asm
\t{more}bra.uni \t$L__BB0_1;
"""
KERNEL = """.visible .entry kernel()
{{
\t.reg .b32 \t%r<99>;
$L__BB0_1:
\tbarrier.sync \t1;
\tld.shared.b8 \t%r5, [%r9];
\t$L_brx_0: .branchtargets
\t\t{targets};
\tbrx.idx \t%r5, $L_brx_0;
{groups}$L__BB0_8:
\t{last}ret;
}}
"""


def kernel(mark=ASKS, barriers=(2, 2), others=(LIKE_BEFORE, LIKE_BEFORE), more="", last=""):
    """A group, and others that are like it. barriers: of the first one; last: of who comes after all groups."""
    first = GROUP.replace("{barrier}", str(barriers[0]), 1).format(number=2, barrier=barriers[1], mark=mark)
    empty = [EMPTY.format(number=n, mark=one, more=more) for n, one in enumerate(others, 3)]
    numbers = range(2, 3 + len(others))
    targets = ",\n\t\t".join([*(f"$L__BB0_{n}" for n in numbers), "$L__BB0_8"])
    return KERNEL.format(targets=targets, groups="".join([first, *empty]), last=last)


def targets_of(ptx):
    ((_, found),) = TABLE.findall(ptx)
    return TARGET.findall(found)


def test_groups_take_the_code_of_the_first():
    before = kernel()
    after = share(before)
    assert targets_of(after) == ["$L__BB0_2"] * 3 + ["$L__BB0_8"]
    first, others = after[after.index("$L__BB0_2:") :].split("$L__BB0_3:")
    assert first.count("bar.sync %group_barrier, 128;") == 2
    assert "mov.u32 %group_barrier, %tid.x;" in first
    assert "add.s32 %group_barrier, %group_barrier, 1;" in first  # of the first four warps beyond the kernel's: 2
    assert others == before[before.index("$L__BB0_3:") :].split("$L__BB0_3:")[1]
    assert after.count(".reg .b32 %group_barrier;") == 1


def test_empty_groups_may_have_become_one():
    one = kernel(others=(LIKE_BEFORE,))
    merged = one.replace("$L__BB0_3,\n", "$L__BB0_3,\n\t\t$L__BB0_3,\n")
    assert targets_of(share(merged)) == ["$L__BB0_2"] * 3 + ["$L__BB0_8"]


def test_kernels_without_such_groups_are_left_as_they_are():
    ptx = kernel(others=("// nothing", "// nothing"))
    assert share(ptx) == ptx


@pytest.mark.parametrize(
    "ptx",
    [
        kernel(mark="// nothing"),
        kernel(others=(ASKS, LIKE_BEFORE)),
        kernel(others=("// nothing", LIKE_BEFORE)),
        kernel(barriers=(2, 3)),
        kernel(more="st.shared.b32 \t[%r9], %r2;\n\t"),
        kernel(last="bar.sync \t3, 128;\n\t"),
        kernel().replace("bar.sync", "barrier.sync.aligned"),
        kernel().replace("brx.idx", "$L_brx_1: .branchtargets $L__BB0_2;\n\tbrx.idx"),
    ],
    ids=[
        "the first asks nothing",
        "two ask",
        "another group between",
        "two barriers",
        "one does something",
        "a barrier of others",
        "no barrier",
        "two tables",
    ],
)
def test_what_is_not_known_is_refused(ptx):
    """Left as they are, the other groups would do nothing."""
    with pytest.raises(UnsupportedKernel, match="use Triton"):
        share(ptx)


INIT = "\tadd.s32 \t%r2, %r1, {at};\n\t// begin inline asm\n\t@%p1 mbarrier.init.shared::cta.b64 [%r2], 1;\n"
WAIT = "\tbar.sync \t0, 128;\n"


def begins(*between, after=WAIT):
    """A kernel that begins barriers, with something between each two."""
    inits = (INIT.format(at=8 * n) + then for n, then in enumerate([*between, after]))
    return KERNEL.format(targets="$L__BB0_8", groups="".join([WAIT, *inits]), last="")


def test_nobody_waits_between_beginnings():
    before = begins(WAIT, WAIT, "", WAIT)
    after = begin_together(before)
    assert before.count("bar.sync") == 5
    assert after == begins("", "", "", "")
    assert after.count("bar.sync") == 2  # before the first and after the last
    assert begin_together(after) == after


@pytest.mark.parametrize(
    "between",
    ["\tst.shared.b32 \t[%r9], %r1;\n" + WAIT, WAIT + "\tld.shared.b32 \t%r3, [%r9];\n", WAIT + "$L__BB0_5:\n",
     "\tbarrier.sync \t1;\n", "\t@%p1 " + WAIT.lstrip(), WAIT + "\tfence.proxy.async.shared::cta;\n"],
    ids=["after a store", "before a load", "a branch may come here", "of all warps", "of some", "before a fence"],
)  # fmt: skip
def test_other_waits_stay(between):
    assert begin_together(begins(between)) == begins(between)


@pytest.mark.skipif(interpreted(), reason="Triton interprets, and compiles nothing")
def test_hooks_of_others_are_asked_too(monkeypatch):
    from triton import knobs

    asked = []
    monkeypatch.setattr(knobs.runtime, "add_stages_inspection_hook", lambda *given: asked.append(given) or ("a", "b"))
    theirs = knobs.runtime.add_stages_inspection_hook
    with stages.rewriting(rewritten):
        mine = knobs.runtime.add_stages_inspection_hook
        assert mine() == ("a", "b")
        steps = {"ptx": lambda source, metadata: kernel()}
        mine(None, steps, None, None, None)
        assert "%group_barrier" in steps["ptx"]("", {})
    assert knobs.runtime.add_stages_inspection_hook is theirs
    assert len(asked) == 2
    assert not re.search("group_barrier", kernel())


@pytest.mark.skipif(interpreted(), reason="Triton interprets, and compiles nothing")
def test_the_environment_is_asked_afterwards(monkeypatch):
    from triton import knobs

    monkeypatch.delenv("TRITON_ALWAYS_COMPILE", raising=False)
    for _ in range(2):
        with stages.rewriting(rewritten):
            assert knobs.compilation.always_compile
        assert not knobs.compilation.always_compile
    monkeypatch.setenv("TRITON_ALWAYS_COMPILE", "1")
    assert knobs.compilation.always_compile
