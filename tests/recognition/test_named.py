"""The eleven named masks of 8192 x 8192: what they are recognised as, and in how much memory. Times are printed."""

import time
import tracemalloc

import numpy as np
import pytest
from tests.tiers import every

import weft
from weft.recognition import recognize_mask
from weft.recognition.raster import raster

SIZE = 8192
DOCUMENTS = [286, 895, 860, 513, 1318, 316, 1992, 558, 381, 649, 11, 413]

# name -> (what is drawn, what must come back)
NAMED = {
    "causal window": (weft.causal() & weft.window(left=1023), weft.causal() & weft.window(left=1023)),
    "dilated 3 in a window": (weft.dilated(300, 300, 3), weft.dilated(300, 300, 3)),
    "strided": (weft.strided(128), weft.strided(128)),
    "chunked": (weft.causal() & weft.chunks(1000), weft.causal() & weft.chunks(1000)),
    "12 documents": (weft.causal() & weft.documents(DOCUMENTS), weft.causal() & weft.documents(DOCUMENTS)),
    "Longformer": (weft.longformer(512, 16), weft.window(256, 256) | weft.global_tokens(16)),
    "2-D": (weft.neighborhood((64, 128), 13), weft.neighborhood((64, 128), 13)),
    "3-D": (weft.neighborhood((16, 16, 32), (5, 5, 7)), weft.neighborhood((16, 16, 32), (5, 5, 7))),
    "dilated 2-D": (
        weft.neighborhood((64, 128), 7, dilation=(3, 4)),
        weft.neighborhood((64, 128), 7, dilation=(3, 4)),
    ),
}


def measured(mask):
    """(Recognized, peak bytes beside the mask); prints the seconds of a run that nothing watches."""
    start = time.perf_counter()
    recognize_mask(mask)
    seconds = time.perf_counter() - start
    tracemalloc.start()
    found = recognize_mask(mask)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    print(f"{seconds:.3f} s, peak {1 + peak / mask.nbytes:.2f} times the mask")
    return found, peak


@pytest.mark.parametrize("name", every(3, NAMED))
def test_named_mask(name):
    drawn, expected = NAMED[name]
    mask = raster(drawn, SIZE, SIZE).dense()
    rows = np.array([0, 1, 63, 4095, 4096, SIZE - 1])
    assert (mask[rows] == drawn.contains(rows[:, None], np.arange(SIZE), SIZE)).all()
    found, peak = measured(mask)
    assert found.pattern == weft.sized(expected, SIZE, SIZE)
    assert found.exact and found.closed
    assert mask.nbytes + peak < 4 * mask.nbytes


def test_bigbird():
    drawn = weft.bigbird()
    mask = raster(drawn, SIZE, SIZE).dense()
    found, peak = measured(mask)
    listed = [part for part in found.pattern.body.part.parts if getattr(part, "name", "") == "blocks"]
    assert len(listed) == 1
    assert dict(listed[0].args)["block"] == weft.pattern.bounds.IntTable([64, 64])
    assert len(dict(listed[0].args)["pairs"]) < 128 * 3
    assert (raster(found.pattern, SIZE, SIZE).dense() == mask).all()
    assert mask.nbytes + peak < 4 * mask.nbytes


@pytest.mark.more
def test_noise_is_reported_as_remainder():
    mask = np.random.default_rng(5).random((SIZE, SIZE), dtype=np.float32) < 0.1
    found, peak = measured(mask)
    assert found.exact and found.remainder == mask.sum()
    assert (raster(found.pattern, SIZE, SIZE).dense() == mask).all()
    assert f"{SIZE} rows" in found.why
    assert mask.nbytes + peak < 4 * mask.nbytes
