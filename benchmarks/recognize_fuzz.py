"""Random compositions of library patterns, as masks or as mask functions, recognised and compared.

`recognize_fuzz.py [COUNT] [SEED] [functions] [both] [long] [-v]`. Lengths are 0 to 65; `long` takes squares of 96 to
144 tokens instead, where fewer compositions are trivial. `functions` prints every pattern as a function of (b, h, q,
k), from the definitions of the library, and recognises that; `both` recognises the mask too, and compares the number of
terms of what will run. Prints how many came back equal and in closed form, how many functions were proven by what they
say, and how long the descriptions are; with -v every one that is not closed, is long or had to be evaluated, and with
`both` those that differ. Exits with 1 if one is not equal.
"""

import sys
import time
from collections import Counter

import numpy as np
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from weft.recognition import recognize, recognize_mask
from weft.recognition.names import cost
from weft.testing.mask_functions import as_function
from weft.testing.strategies import patterns, problems


def squares():
    return st.integers(96, 144).flatmap(lambda n: st.tuples(patterns(4, length=n), st.just(n), st.just(n)))


def function_of(pattern, mask):
    """The pattern as a function, which must have the pattern's mask before anything is made of it."""
    function, (m, n) = as_function(pattern, *mask.shape), mask.shape
    if mask.size:
        assert (np.broadcast_to(function(0, 0, *np.ogrid[:m, :n]), (m, n)) == mask).all(), f"printed wrong: {pattern}"
    return function


def run(count, number, options):
    tally, costs, times, slowest = Counter(), [], [], (0.0, "")

    @seed(number)
    @settings(
        max_examples=count,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(squares() if "long" in options else problems())
    def each(problem):
        nonlocal slowest
        pattern, m, n = problem
        mask = pattern.to_dense(m, n)
        function = function_of(pattern, mask) if {"functions", "both"} & {*options} else None
        start = time.process_time()
        found = recognize(function, size=(m, n)) if function else recognize_mask(mask)
        times.append(time.process_time() - start)
        slowest = max(slowest, (times[-1], f"{pattern} at {m}, {n}"))
        tally["all"] += 1
        tally["equal"] += int((found.pattern.to_dense(m, n) == mask).all())
        tally["closed"] += found.closed
        tally["symbolic"] += found.proof == "symbolic"
        if function and "both" in options:
            other = recognize_mask(mask)
            same = (found.form.terms, found.closed) == (other.form.terms, other.closed)
            tally["alike"] += same
            if "-v" in options and not same:
                print(
                    pattern,
                    m,
                    n,
                    "-> as a function",
                    found.pattern,
                    found.form,
                    "| as a mask",
                    other.pattern,
                    other.form,
                )
        if found.closed:
            costs.append(cost(found.pattern))
        odd = not found.closed or costs[-1] > 60 or (function and found.proof != "symbolic")
        if "-v" in options and odd:
            print(pattern, m, n, "->", costs[-1] if found.closed else "loose", found.pattern, found.why)

    each()
    costs.sort()
    times.sort()
    spread = [costs[int(share * (len(costs) - 1))] for share in (0.5, 0.9, 0.99, 1)] if costs else []
    print(f"{tally['all']} compositions, {tally['equal']} equal, {tally['closed']} in closed form")
    if {"functions", "both"} & {*options}:
        print(f"{tally['symbolic']} of the functions proven by what they say, the others evaluated")
    if "both" in options:
        print(f"{tally['alike']} with as many terms by both routes, both closed or both not")
    print(f"numbers a description needs: median {spread[0]}, 90 % {spread[1]}, 99 % {spread[2]}, most {spread[3]}")
    print(f"processor time: median {times[len(times) // 2] * 1e3:.1f} ms, slowest {slowest[0]:.2f} s, {slowest[1]}")
    return int(tally["equal"] < tally["all"])


if __name__ == "__main__":
    numbers = [int(x) for x in sys.argv[1:] if x.isdigit()]
    raise SystemExit(run(*(numbers + [2000, 0][len(numbers) :]), sys.argv[1:]))
