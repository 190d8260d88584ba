"""Several levels: weights, quantisation, cached outputs, cross-transfers."""

import pytest
import sympy as sp
from tests.napkin.algorithms import flash, tiled_matmul

from weft.errors import RelabelError
from weft.napkin.cost import optimum, symbol
from weft.napkin.hierarchy import (
    Link,
    at,
    cross_benefit,
    cross_transfer,
    output_cached,
    powers,
    quantised,
    weighted,
)

M, N = symbol("M"), symbol("N")
ATTENTION, MATMUL = (powers(optimum(done, "shared").transfers) for done in (flash(), tiled_matmul()))


def test_powers():
    assert [beta for _, beta in ATTENTION] == [0, 1]
    assert [beta for _, beta in MATMUL] == [0, sp.Rational(1, 2)]
    assert sp.simplify(at(MATMUL, M) - optimum(tiled_matmul(), "shared").transfers) == 0
    with pytest.raises(RelabelError, match="no power"):
        powers(sp.sqrt(M + 1))


@pytest.mark.parametrize("terms, factor", [(ATTENTION, 4), (MATMUL, 2.83)], ids=["attention", "matmul"])
def test_quantisation_factors(terms, factor):
    """Halving bytes divides what depends on memory by 2^(1 + beta)."""
    whole, half = (quantised(terms, nbytes)[-1][0] for nbytes in (2, 1))
    assert float(whole / half) == pytest.approx(factor, rel=1e-3)
    assert float(quantised(terms, 2)[0][0] / quantised(terms, 1)[0][0]) == 2


def test_weights_add_up():
    near, far = Link("register", M, 1), Link("shared", 4 * M, 10)
    assert sp.simplify(weighted(ATTENTION, [far, near]) - 10 * at(ATTENTION, 4 * M) - at(ATTENTION, M)) == 0


def test_a_level_above_cached_outputs_has_its_childrens_memory():
    link = output_cached(Link("shared", 227, 5), 64, 3)
    assert (link.memory, link.weight) == (192, 5)


@pytest.mark.parametrize("terms", [ATTENTION, MATMUL], ids=["attention", "matmul"])
def test_cross_transfers(terms):
    """Four children that talk: what is needed by all comes from above once; the rest crosses at another price."""
    child, between = Link("shared", M, symbol("c")), symbol("c") * sp.Rational(2, 3)
    together = cross_transfer(child, 4, between)
    assert [link.memory for link in together] == [4 * M, M]
    above = child.weight * at(terms, 4 * M)
    crossing = between * (at(terms, M) - at(terms, 4 * M))
    assert sp.simplify(weighted(terms, together) - above - crossing) == 0
    saved = child.weight * at(terms, M) - weighted(terms, together)
    assert sp.simplify(saved - cross_benefit(terms, child, 4, between)) == 0


def test_a_cluster_of_two_by_the_rates_quoted_for_h800():
    """2.04 TB/s from global memory, 3.27 TB/s within a cluster of two: a byte of attention costs 19 % less."""
    terms = [(1, 1)]
    child = Link("shared", 1, 1 / 2.04)
    cost = weighted(terms, cross_transfer(child, 2, 1 / 3.27))
    assert float(cost * 2.04) == pytest.approx(1 - (1 - 2.04 / 3.27) / 2)


def test_a_link_dearer_than_from_above_is_refused():
    with pytest.raises(RelabelError, match="shared"):
        cross_transfer(Link("shared", 1, 1), 2, 2)
