"""Random compositions of library patterns, as masks, recognised and compared.

`recognize_fuzz.py [COUNT] [SEED] [long] [-v]`. Lengths are 0 to 65; `long` takes squares of 96 to 144 tokens instead,
where fewer compositions are trivial. Prints how many came back equal and in closed form, and how long their
descriptions are; with -v every one that is not closed or is long.
"""

import sys
import time
from collections import Counter

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from weft.recognition import recognize_mask
from weft.recognition.names import cost
from weft.testing.strategies import patterns, problems


def squares():
    return st.integers(96, 144).flatmap(lambda n: st.tuples(patterns(4, length=n), st.just(n), st.just(n)))


def run(count, number, options):
    tally, costs, slowest = Counter(), [], (0.0, "")

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
        start = time.perf_counter()
        found = recognize_mask(mask)
        slowest = max(slowest, (time.perf_counter() - start, f"{pattern} at {m}, {n}"))
        tally["all"] += 1
        tally["equal"] += int((found.pattern.to_dense(m, n) == mask).all())
        tally["closed"] += found.closed
        if found.closed:
            costs.append(cost(found.pattern))
        if "-v" in options and (not found.closed or costs[-1] > 60):
            print(pattern, m, n, "->", "loose" if not found.closed else costs[-1], found.pattern)

    each()
    costs.sort()
    spread = [costs[int(share * (len(costs) - 1))] for share in (0.5, 0.9, 0.99, 1)] if costs else []
    print(f"{tally['all']} compositions, {tally['equal']} equal, {tally['closed']} in closed form")
    print(f"numbers a description needs: median {spread[0]}, 90 % {spread[1]}, 99 % {spread[2]}, most {spread[3]}")
    print(f"slowest: {slowest[0]:.2f} s, {slowest[1]}")


if __name__ == "__main__":
    numbers = [int(x) for x in sys.argv[1:] if x.isdigit()]
    run(*(numbers + [2000, 0][len(numbers) :]), sys.argv[1:])
