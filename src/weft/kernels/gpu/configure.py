"""From what a plan chose to what a kernel is compiled as."""

from __future__ import annotations

from dataclasses import asdict, replace

from weft.errors import UnsupportedKernel
from weft.kernels.gpu.constants import STATS
from weft.kernels.gpu.score.spec import DIAGONALS, OF_ROWS
from weft.kernels.gpu.spec import NARROW, KernelSpec
from weft.kernels.gpu.tables.batches import Wave, Waves, plan_waves
from weft.planning.attention_plan import AttentionPlan
from weft.planning.families.fused_backward import SEEN
from weft.planning.families.hopper import has_row_bounds
from weft.planning.families.sparse_keys import GROUPS, TILE, TILES
from weft.planning.features import always_apart, held, in_halves, no_maximum
from weft.planning.problem import DTYPES, Problem
from weft.planning.resources import PAIR, shared_beside_sums, shared_of_blocks
from weft.planning.tiling import Direction, Tiling
from weft.planning.work import slots_of
from weft.settings import interpreted
from weft.target import Gpu, Target

# Head dimensions at which a forward on a grid takes no maximum, and holds the bounds of its masks. That was 7 to 9 %
# faster at 128 than one maximum, from the first tile. At 64 the registers of the second walk cost up to 17 %
# (benchmarks/notes/triton.md, T30). Others were not measured.
GRIDS_TAKE_NONE = range(65, 129)
BESIDE_DROPOUT, BESIDE_SCORES = 168, 128  # registers: three and four programs of four warps side by side
MOST_TERMS = 3  # that are walked in one loop: each takes registers for its bounds


def _registers(spec: KernelSpec, wave: Wave, tiling: Tiling) -> int:
    """The most registers of a thread beside options; 0 for those that would spill much (counted for sm_90)."""
    rules = spec.rules
    if not (spec.paged or spec.dropout or rules is not None):
        return tiling.registers
    light = rules is None or (spec.adds and not rules.entries and spec.direct and all(x.along for x in rules.tables))
    if spec.paged or wave.kind.rank != 1 or not light or (spec.dropout and not (spec.neighbours and spec.direct)):
        return 0
    least = BESIDE_DROPOUT if spec.dropout else BESIDE_SCORES
    return max(tiling.registers, least) if tiling.registers else 0


def _crowds_shared(spec: KernelSpec) -> bool:
    """Whether score functions take shared memory. Triton brings there what wide kernels read of tables, as it does
    tiles. Sums of pairs take room too, those along diagonals little.
    """
    assert spec.rules is not None
    read = [one for one in spec.rules.tables if not (spec.direct and one.along)]
    summed = {one.kind for one in spec.rules.entries} - ({DIAGONALS} if spec.rules.along else set())
    return bool(read and max(spec.d, spec.dv) > NARROW) or bool(summed)


OVERLAPPING = ("sm_90", "sm_100")  # cards whose launches may begin while the one before ends


def chained(direction: str, target: Target | Gpu) -> bool:
    """Whether launches of the backward overlap: on NVIDIA's cards from sm_90 on, where they run."""
    return direction != "forward" and overlaps(target)


def overlaps(target: Target | Gpu) -> bool:
    """Whether a launch may begin while the one before it ends."""
    return isinstance(target, Gpu) and target.architecture in OVERLAPPING and not interpreted()


def fast_log(direction: str, problem: Problem, target: Target | Gpu) -> bool:
    """Whether forwards may take logarithms by NVIDIA's own instruction: where they run, and not in full float32."""
    nvidia = isinstance(target, Gpu) and target.architecture.startswith("sm_")
    known = problem.dtype != "float32" and max(problem.d, problem.dv) < GRIDS_TAKE_NONE.stop  # wider: see `wave_spec`
    return nvidia and direction == "forward" and known and not interpreted()


def partial(direction: str, problem: Problem, target: Target | Gpu) -> bool:
    """Whether a forward's threads sum apart: where several share a row of a product, on NVIDIA's cards before sm_100.
    Not at wider heads, whose kernels Triton then translates to slower ones (benchmarks/notes/triton.md, T32).
    """
    shared = isinstance(target, Gpu) and target.architecture in ("sm_80", "sm_89", "sm_90")
    narrow = problem.dtype != "float32" and max(problem.d, problem.dv) <= NARROW
    return shared and direction == "forward" and narrow


def _direct(target: Target | Gpu) -> bool:
    """Whether kernels may have NVIDIA's own instructions."""
    return isinstance(target, Gpu) and target.architecture.startswith("sm_") and not interpreted()


def for_card(spec: KernelSpec, direction: Direction, plan: AttentionPlan) -> KernelSpec:
    """With what the card that is planned for allows."""
    problem, target = plan.problem, plan.target
    return replace(
        spec, held=held(problem, target), no_maximum=no_maximum(direction, problem, target),
        chained=chained(direction, target), fast_log=fast_log(direction, problem, target),
        partial=partial(direction, problem, target), apart=always_apart(direction, problem, target),
        makes="dv" if in_halves(direction, problem, target) and not spec.with_dq else "both",
        direct=_direct(target),
    )  # fmt: skip


def specs_of(plan: AttentionPlan, direction: Direction, split: bool = False) -> tuple[KernelSpec, ...]:
    """The kernels of one direction of a plan, without softcap, ALiBi, sinks and a gradient of lse; split: see
    `plan_waves`. q, k and v are taken to be contiguous, and so aligned wherever head dimensions allow it.
    """
    plan.check_room(direction)
    problem, transposed = plan.problem, direction == "dkdv"
    shares = plan.specialised(direction)
    groups = shares is not None and not interpreted()
    shares = shares if shares is not None and groups else plan.unspecialised(direction)
    waves = plan_waves(shares, problem, transposed, slots_of(plan.target) if split else None)
    aligned = all(size * DTYPES[problem.dtype] % 16 == 0 for size in (problem.d, problem.dv))
    grouped = transposed and problem.group != 1
    spec = KernelSpec(direction, problem.dtype, problem.d, problem.dv, 1, 0, 0, aligned, grouped=grouped)
    spec = for_card(spec, direction, plan)
    widest = max(problem.d, problem.dv)
    return tuple(dict.fromkeys(one for wave in waves.waves for one in wave_specs(spec, wave, waves, widest, groups)))


def fused_spec(problem: Problem, lse_gradient: bool = False, with_delta: bool = False) -> KernelSpec:
    """The kernel of all gradients of a short window."""
    return KernelSpec(
        "fused", problem.dtype, problem.d, problem.dv, 1, TILE, SEEN * TILE, lse_gradient=lse_gradient,
        with_delta=with_delta, groups=SEEN, warps=4, registers=128,
    )  # fmt: skip


def sparse_specs(problem: Problem) -> tuple[KernelSpec, ...]:
    """The kernels of sparse keys beside a short window: what adds to dQ, and to dK and dV."""
    add = KernelSpec(
        "sparse_keys", problem.dtype, problem.d, problem.dv, 1, TILE, TILES * TILE, groups=GROUPS, warps=4, stages=2,
        registers=168,
    )  # fmt: skip
    return add, replace(add, direction="reduce_partials", groups=1, registers=0)


def fused_specs(plan: AttentionPlan) -> tuple[KernelSpec, ...]:
    """The kernels of a fused backward, without sinks and a gradient of lse; none where the plan has none."""
    walk, problem = plan.fused_backward, plan.problem
    if walk is None:
        return ()
    beside = bool(walk.beside)
    return (fused_spec(problem, with_delta=beside), *(sparse_specs(problem) if beside else ()))


def with_room(spec: KernelSpec, plan: AttentionPlan) -> KernelSpec:
    """A kernel with as many of its stages as leave room for sums over pairs, see `resources.shared_beside_sums`.

    Raises UnsupportedKernel where a single one does not.
    """
    problem, gpu = plan.problem, plan.target
    if spec.rules is None or not isinstance(gpu, Gpu) or all(one.kind == OF_ROWS for one in spec.rules.entries):
        return spec
    direction: Direction = "dkdv" if spec.of_keys else "dq"

    def takes(stages: int) -> float:
        if spec.rank == 0:
            blocks = shared_of_blocks(direction, problem, stages, gpu, spec.tf32, spec.with_dq)
            return blocks + PAIR * spec.rows * spec.cols
        return shared_beside_sums(direction, problem, Tiling(spec.rows, spec.cols, spec.warps, stages), gpu)

    found = next((stages for stages in range(spec.stages, 0, -1) if takes(stages) <= gpu.shared), 0)
    if not found:
        raise UnsupportedKernel(
            f"gradients of a score function's tables on {problem}",
            f"their kernel for {direction} takes up to {int(takes(1))} bytes of shared memory, and {gpu.name} has "
            f"{gpu.shared}",
            "detach the tables, or use a smaller head dimension or the CPU backend",
        )
    return replace(spec, stages=found)


def wave_specs(
    spec: KernelSpec, wave: Wave, waves: Waves, widest: int, groups: bool = False
) -> tuple[KernelSpec, ...]:  # fmt: skip
    """The specs of one wave's launches; spec: all that waves share. widest: stride of rows, elements. groups: warp
    groups specialise; else a tiling of warp groups is one of warps.
    """
    one = _wave_spec(spec, wave, waves, widest, groups)
    return (one,) if one.makes == "both" else (one, replace(one, makes="dk"))


def _wave_spec(spec: KernelSpec, wave: Wave, waves: Waves, widest: int, groups: bool) -> KernelSpec:
    kind, gathered = wave.kind._asdict(), wave.kind.listed or wave.kind.ordered
    tiling = kind.pop("tiling")
    aligned = spec.aligned and wave.span * max(widest, STATS) < 1 << 31
    # what addresses and masks need there does not fit into fewer
    crowded = not aligned or gathered or wave.kind.rank > 2
    single = wave.kind.rank == 1 and not (spec.of_keys or gathered)
    terms = wave.terms if single and wave.several and wave.terms <= MOST_TERMS else 1
    apart = spec.with_dq or spec.dropout  # a second run of tiles begins anywhere
    several = terms == 1 and (wave.several or (wave.more and apart))
    limits: dict[str, int] = {"registers": 0 if crowded else _registers(spec, wave, tiling)}
    if spec.makes != "both" and not wave.kind.formula:
        limits["stages"] = min(tiling.stages, 2)  # bounds from tables need what the third leaves not free
    if spec.rules is not None and _crowds_shared(spec):
        limits["stages"] = max(1, limits.get("stages", tiling.stages) - 1)
    if terms > 1:
        limits["apart"] = False
    elif spec.apart and wave.kind.rank == 1:
        limits["apart"] = True
    row_bounds = groups and has_row_bounds(tiling, wave.kind.rank)  # whatever says the bounds, the code is the same
    kind["formula"] = kind["formula"] or row_bounds
    direct = spec.direct and (spec.dropout or (spec.rules is not None and spec.rules.along))
    one = replace(
        spec, **kind, **asdict(tiling) | limits, aligned=aligned, row_bounds=row_bounds, several=several,
        lines=row_bounds or (wave.lines and not several), counted=wave.counted, direct=direct,
        neighbours=spec.neighbours and wave.kind.rank < 2,
        terms=terms, more=wave.more and not several and terms == 1, whole=wave.whole, packed=wave.place is None,
        adds_shared=wave.adds_shared,
        leaves_shared=waves.shared_rows is not None and not wave.adds_shared,
        accumulate=wave.merges if spec.direction == "forward" else waves.merges and not wave.adds_shared,
    )  # fmt: skip
    room = one.whole and _grid_takes_none(one) if one.direction == "forward" else not one.with_dq
    masks = one.rank > 1 and room
    # with lists both walks spill far more (compiled, not timed); ALiBi and score functions take scores below what sums
    # may be
    known = (one.rank == 1 or _grid_takes_none(one)) and not (one.listed or one.alibi or one.rules)
    takes_none = one.no_maximum and known
    # Where a maximum runs along, either has ptxas run products one by one. The logarithm does so too where bounds are
    # listed, and where boxes on a grid are cut.
    assert aligned or not groups, "select asks for it"
    short = one.fast_log and one.formula and (one.rank == 1 or one.whole)
    return replace(
        one, held=one.held and (masks or bool(one.factors)), no_maximum=takes_none, partial=one.partial and takes_none,
        fast_log=short and takes_none, groups=one.groups if groups else 0,
        short=groups and wave.short and one.no_maximum and one.narrow,
    )  # fmt: skip


def _grid_takes_none(spec: KernelSpec) -> bool:
    """Whether the forward on a grid takes no maximum."""
    return spec.rank > 1 and max(spec.d, spec.dv) in GRIDS_TAKE_NONE
