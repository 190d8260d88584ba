"""Channels: rings of shared memory between a producer, which fills stages, and consumers, which give them back.

A stage of a channel has two barriers, one of a `Ring` has one. A phase of `full` completes when what the producer asked
for is there; one of `empty`, when all consumers have given the stage back. The i-th tile of a ring lies in stage
i mod STAGES. No ring stores a phase: the parity of i / STAGES is that of the phase to wait for (`phase_of`), so all
functions pass i on.

A consumer that does not need a tile still waits for it before it gives it back. An arrival that comes early would count
for the tile before (`Channel.pass_over`).
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma

from weft.kernels.gpu.hopper.ops.aggregate import aggregate


@gluon.jit
def barriers(COUNT: gl.constexpr, ARRIVALS: gl.constexpr):
    """So many barriers, each of so many arrivals."""
    made = gl.allocate_shared_memory(gl.int64, [COUNT, 1], mbarrier.MBarrierLayout())
    for x in gl.static_range(COUNT):
        mbarrier.init(made.index(x), count=ARRIVALS)
    return made


@gluon.constexpr_function
def by_bits(stages):  # type: ignore[no-untyped-def]
    """Whether places in a ring of so many stages follow from bits of a tile's number."""
    return stages & (stages - 1) == 0


@gluon.jit
def stage_of(i, STAGES: gl.constexpr, BITS: gl.constexpr):
    """Where tile i of a ring lies."""
    if BITS:
        stage = i & (STAGES - 1)
    else:
        stage = i % STAGES
    return stage


@gluon.jit
def phase_of(i, STAGES: gl.constexpr, BITS: gl.constexpr):
    """The parity of how often the ring was full before tile i."""
    if BITS:
        phase = ((i & STAGES) != 0).to(gl.int32)
    else:
        phase = (i // STAGES) & 1
    return phase


@aggregate
class Arrival:
    """A tile that will be there: its barrier, and the phase that says so."""

    barrier: gl.shared_memory_descriptor
    phase: gl.tensor

    @gluon.jit
    def wait(self):
        """Wait until it is there."""
        mbarrier.wait(self.barrier, self.phase)


@aggregate
class Ring:
    """Barriers alone, of a ring of STAGES stages that has no partner: what is read, or made, beside a channel's."""

    barriers: gl.shared_memory_descriptor
    STAGES: gl.constexpr
    BITS: gl.constexpr

    @gluon.jit
    def wait(self, i):
        """Wait for the arrivals of tile i."""
        mbarrier.wait(self.barriers.index(stage_of(i, self.STAGES, self.BITS)), phase_of(i, self.STAGES, self.BITS))

    @gluon.jit
    def wait_before(self, i):
        """Wait for those of the tile whose stage tile i takes."""
        mbarrier.wait(self.barriers.index(stage_of(i, self.STAGES, self.BITS)), phase_of(i, self.STAGES, self.BITS) ^ 1)

    @gluon.jit
    def arrive(self, i):
        """Arrive for tile i."""
        mbarrier.arrive(self.barriers.index(stage_of(i, self.STAGES, self.BITS)), count=1)


@aggregate
class Channel:
    """A ring of STAGES stages and its barriers. Its stages begin at `first`, so several rings may share memory.

    BITS: places follow from bits of a tile's number; else they are remainders, as those of rings of three or five.
    """

    full: gl.shared_memory_descriptor
    empty: gl.shared_memory_descriptor
    first: gl.tensor | gl.constexpr
    STAGES: gl.constexpr
    BITS: gl.constexpr

    @gluon.jit
    def stage(self, i):
        """Where tile i lies."""
        return self.first + stage_of(i, self.STAGES, self.BITS)

    @gluon.jit
    def acquire(self, i):
        """The producer waits until the stage of tile i is free."""
        mbarrier.wait(self.empty.index(self.stage(i)), phase_of(i, self.STAGES, self.BITS) ^ 1)

    @gluon.jit
    def expect(self, i, BYTES: gl.constexpr):
        """The producer says how many bytes the bulk engine will bring."""
        mbarrier.expect(self.full.index(self.stage(i)), BYTES)

    @gluon.jit
    def copy(self, i, box, where, memory, at):
        """The producer asks the bulk engine for a box that is a part of tile i. at: its place in the memory."""
        tma.async_copy_global_to_shared(box, where, self.full.index(self.stage(i)), memory.index(at))

    @gluon.jit
    def load(self, i, box, where, memory):
        """The producer asks for a box that is all of tile i, once the stage is free. memory: that of the ring."""
        self.acquire(i)
        self.expect(i, box.block_type.nbytes)
        self.copy(i, box, where, memory, self.stage(i))

    @gluon.jit
    def commit(self, i):
        """Each thread of the producer arrives when what it asked for by cp.async is there."""
        async_copy.mbarrier_arrive(self.full.index(self.stage(i)), increment_count=False)

    @gluon.jit
    def arrival(self, i):
        """Tile i, for a consumer that waits for it later."""
        return Arrival(self.full.index(self.stage(i)), phase_of(i, self.STAGES, self.BITS))

    @gluon.jit
    def wait(self, i):
        """A consumer waits for tile i."""
        mbarrier.wait(self.full.index(self.stage(i)), phase_of(i, self.STAGES, self.BITS))

    @gluon.jit
    def release(self, i, TIMES: gl.constexpr = 1):
        """A consumer gives the stage of tile i back."""
        mbarrier.arrive(self.empty.index(self.stage(i)), count=TIMES)

    @gluon.jit
    def give_back(self, stage):
        """A consumer gives a stage back."""
        mbarrier.arrive(self.empty.index(stage), count=1)

    @gluon.jit
    def pass_over(self, i, count):
        """A consumer gives back tiles that only others need. Returns the tile after them."""
        for _ in range(0, count):
            self.wait(i)
            self.release(i)
            i += 1
        return i


@gluon.jit
def channel(STAGES: gl.constexpr, FILLS: gl.constexpr, CONSUMERS: gl.constexpr):
    """A channel whose stages are full after FILLS arrivals, and free after those of so many consumers."""
    return Channel(barriers(STAGES, FILLS), barriers(STAGES, CONSUMERS), gl.constexpr(0), STAGES, by_bits(STAGES))


@gluon.jit
def ring(STAGES: gl.constexpr, ARRIVALS: gl.constexpr):
    """Barriers of so many stages, each of so many arrivals."""
    return Ring(barriers(STAGES, ARRIVALS), STAGES, by_bits(STAGES))
