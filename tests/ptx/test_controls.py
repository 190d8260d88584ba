"""That the tests of kernels see: kernels with one thing removed or changed do not pass them.

Each change is found by what stands around it, since versions of Triton number their lines differently.
"""

import re
from functools import partial

import pytest
from tests.kernels.planned import without_groups
from tests.tiers import every

import weft
from weft.settings import interpreted

from .parse import Fault
from .problems import Call, check_in_every_order
from .run import Way

pytestmark = pytest.mark.skipif(interpreted(), reason="Triton interprets, and compiles nothing")


@pytest.fixture(autouse=True)
def _usual_forwards():
    """What is changed here is of usual kernels: of warp groups see test_group_queries."""
    with without_groups("forward"):
        yield


CALL = Call(weft.causal() & weft.window(left=150), 330, heads=(2, 1))  # loops go round a few times


def before(text, mark, what):
    """Where the last `what` before the first `mark` begins."""
    return text.rindex(what, 0, text.index(mark))


def without(what, text):
    """The first line that begins so is left out."""
    return re.sub(rf"^\s*{re.escape(what)}.*\n", "", text, count=1, flags=re.MULTILINE)


def without_all(what, text):
    return re.sub(rf"^\s*{re.escape(what)}.*\n", "", text, flags=re.MULTILINE)


def without_before(mark, what, text):
    """The last line that begins so, before the first mark, is left out."""
    at = before(text, mark, what)
    return text[:at] + without(what, text[at:])


def waits_for_one_less(text):
    """Each wait leaves one group more of copies under way."""
    return re.sub(r"(cp\.async\.wait_group\s+)(\d+)", lambda found: f"{found[1]}{int(found[2]) + 1}", text)


def some_columns_more(text):
    """Eight comparisons in a row, of a mask, let other numbers pass."""
    row = re.search(r"(setp\.(lt|ge)\.s32.*\n\s*){8}", text)
    wider = row[0].replace("setp.lt", "setp.le").replace("setp.ge", "setp.gt")
    return text[: row.start()] + wider + text[row.end() :]


WRONG = "is off by|is another one in"
CHANGES = {  # and what is said then
    "no wait for copies": (partial(without_all, "cp.async.wait_group"), WRONG),
    "a wait for fewer copies": (waits_for_one_less, WRONG),
    "no barrier between stores and loads": (partial(without_before, "ldmatrix", "bar.sync"), WRONG),
    "no wait for products": (partial(without, "wgmma.wait_group"), r"before the product .* is waited for"),
    "no fence between stores and products": (partial(without_all, "fence.proxy"), "stored without a fence"),
    "some columns more": (some_columns_more, WRONG),
}
EVERYWHERE = (
    "no wait for copies",
    "a wait for fewer copies",
    "no barrier between stores and loads",
    "some columns more",
)
CASES = [
    *(("forward", change, 90) for change in CHANGES),
    *(("dkdv", change, 90) for change in CHANGES if change != "some columns more"),
    *(("forward", change, 80) for change in EVERYWHERE),
]


@pytest.mark.parametrize(("kernel", "change", "arch"), every(7, CASES))
def test_what_is_wrong_is_seen(kernel, change, arch):
    how, said = CHANGES[change]

    def wrong(name, text):
        if not name.startswith(kernel):
            return text
        changed = how(text)
        assert changed != text, "nothing to change"
        return changed

    with pytest.raises((AssertionError, Fault), match=said):
        check_in_every_order(CALL.case(), Way(arch, change=wrong), backward=kernel != "forward")


@pytest.mark.more
def test_nothing_is_seen_where_nothing_is_wrong():
    check_in_every_order(CALL.case(), Way(90))
