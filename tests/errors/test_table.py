"""Every refusal that a user can meet, as one table: each row is triggered, and its message is held to the contract.

A row's id begins with the public entry point. What must have a row: every exception class, every function of `weft`,
every command, and every pair of (module, exception class) that the sources raise, unless ELSEWHERE names its tests.
"""

import ast
import inspect
from pathlib import Path

import pytest

import weft
from weft import errors
from weft.cli import COMMANDS
from weft.errors import WeftError
from weft.testing.refusals import refused

from .of_attention import OF_ATTENTION
from .of_commands import OF_COMMANDS
from .of_patterns import OF_PATTERNS

ROOT = Path(__file__).resolve().parents[2]
CLASSES = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, WeftError)]
NOTHING_TO_REFUSE = {"full", "nothing"}  # take no arguments

# (module, class) that no row reaches -> the tests that do.
ELSEWHERE = {
    ("weft.bench.plots", "UnsupportedError"): "tests/bench/test_rows_and_report.py",
    ("weft.bench.report", "OptionError"): "tests/bench/test_rows_and_report.py",
    ("weft.bench.run", "UnsupportedError"): "tests/bench/test_cli.py",
    ("weft.cli.fuse", "InputError"): "tests/cli/test_fuse.py",
    ("weft.cli.layer", "InputError"): "tests/cli/test_napkin.py",
    ("weft.cli.layer", "OptionError"): "tests/cli/test_napkin.py",
    ("weft.distributed.plan", "OptionError"): "tests/distributed/test_plan.py",
    ("weft.distributed.plan", "PatternError"): "tests/distributed/test_plan.py",
    ("weft.distributed.shards", "OptionError"): "tests/distributed/test_plan.py",
    ("weft.fusion.decide", "UnsupportedError"): "tests/fusion/test_run_time.py",
    ("weft.fusion.known", "OptionError"): "tests/fusion/test_search.py",
    ("weft.fusion.model", "OptionError"): "tests/fusion/test_search.py",
    ("weft.fusion.report", "OptionError"): "tests/fusion/test_search.py",
    ("weft.fusion.by_name", "UnsupportedError"): "tests/fusion/test_segments.py",
    ("weft.fusion.settings", "OptionError"): "tests/fusion/test_backend.py",
    ("weft.integrations.diffusers.models", "InputError"): "tests/integrations/test_diffusers.py",
    ("weft.integrations.diffusers.models", "UnsupportedError"): "tests/integrations/test_diffusers.py",
    ("weft.integrations.diffusers.patterns", "OptionError"): "tests/integrations/test_diffusers_rules.py",
    ("weft.integrations.diffusers.processors", "LengthError"): "tests/integrations/test_diffusers.py",
    ("weft.integrations.diffusers.processors", "UnsupportedError"): "tests/integrations/test_diffusers.py",
    ("weft.integrations.diffusers.rules", "OptionError"): "tests/integrations/test_diffusers_rules.py",
    ("weft.integrations.diffusers.view", "OptionError"): "tests/integrations/test_diffusers_rules.py",
    ("weft.integrations.flash_attn", "OptionError"): "tests/integrations/test_flash_attn.py",
    ("weft.integrations.flash_attn", "UnsupportedError"): "tests/integrations/test_flash_attn.py",
    ("weft.integrations.flash_dispatch", "UnsupportedError"): "tests/integrations/test_flash_attn.py",
    ("weft.integrations.flex.call", "UnsupportedError"): "tests/integrations/flex/test_call.py",
    ("weft.integrations.flex.checks", "InputError"): "tests/integrations/flex/test_call.py",
    ("weft.integrations.flex.checks", "OptionError"): "tests/integrations/flex/test_call.py",
    ("weft.integrations.transformers.sharded", "OptionError"): "tests/integrations/test_transformers_sharded.py",
    ("weft.integrations.transformers.sharded", "UnsupportedError"): "tests/integrations/test_transformers_sharded.py",
    ("weft.integrations.natten.checks", "ArgumentError"): "tests/integrations/test_natten.py",
    ("weft.integrations.natten.checks", "InputError"): "tests/integrations/test_natten.py",
    ("weft.integrations.natten.checks", "OptionError"): "tests/integrations/test_natten.py",
    ("weft.integrations.natten.checks", "UnsupportedError"): "tests/integrations/test_natten.py",
    ("weft.integrations.natten.context", "OptionError"): "tests/integrations/test_natten.py",
    ("weft.integrations.natten.functional", "InputError"): "tests/integrations/test_natten.py",
    ("weft.integrations.natten.modules", "InputError"): "tests/integrations/test_natten.py",
    ("weft.integrations.natten.modules", "OptionError"): "tests/integrations/test_natten.py",
    ("weft.integrations.natten.utils.varlen", "InputError"): "tests/integrations/test_natten.py",
    ("weft.integrations.transformers.big_bird", "UnsupportedError"): "tests/integrations/test_transformers_swap.py",
    ("weft.integrations.transformers.bypass", "UnsupportedError"): "tests/integrations/test_transformers_swap.py",
    ("weft.integrations.transformers.dinat", "UnsupportedError"): "tests/integrations/test_transformers_swap.py",
    ("weft.integrations.transformers.forward", "UnsupportedError"): "tests/integrations/test_transformers.py",
    ("weft.integrations.transformers.graphs", "UnsupportedError"): "tests/integrations/test_transformers_compile.py",
    ("weft.integrations.transformers.held", "UnsupportedError"): "tests/integrations/test_transformers.py",
    ("weft.integrations.transformers.keywords", "OptionError"): "tests/integrations/test_transformers.py",
    ("weft.integrations.transformers.layered", "UnsupportedError"): "tests/integrations/test_transformers_patterns.py",
    ("weft.integrations.transformers.longformer", "UnsupportedError"): "tests/integrations/test_transformers_swap.py",
    ("weft.integrations.transformers.masks", "UnsupportedError"): "tests/integrations/test_transformers.py",
    ("weft.integrations.transformers.patterns", "OptionError"): "tests/integrations/test_transformers_patterns.py",
    ("weft.integrations.transformers.patterns", "UnsupportedError"): "tests/integrations/test_transformers_patterns.py",
    ("weft.integrations.transformers.reading", "UnsupportedError"): "tests/integrations/test_transformers.py",
    ("weft.integrations.transformers.registration", "OptionError"): "tests/integrations/test_transformers.py",
    ("weft.integrations.transformers.swap", "UnsupportedError"): "tests/integrations/test_transformers_swap.py",
    ("weft.jax.distributed", "InputError"): "tests/jax/test_distributed.py",
    ("weft.jax.distributed", "OptionError"): "tests/jax/test_distributed.py",
    ("weft.jax.dot_product", "InputError"): "tests/jax/test_dot_product.py",
    ("weft.jax.dot_product", "OptionError"): "tests/jax/test_dot_product.py",
    ("weft.jax.dot_product", "UnsupportedError"): "tests/jax/test_dot_product.py",
    ("weft.jax.equinox", "OptionError"): "tests/jax/test_equinox.py",
    ("weft.jax.extras", "InputError"): "tests/jax/test_options.py",
    ("weft.jax.extras", "OptionError"): "tests/jax/test_options.py",
    ("weft.jax.extras", "UnsupportedError"): "tests/jax/test_options.py",
    ("weft.jax.gpu.attention", "UnsupportedError"): "tests/jax/test_gpu.py",
    ("weft.jax.gpu.bind", "UnsupportedKernel"): "tests/jax/test_bind.py",
    ("weft.jax.gpu.entries", "UnsupportedError"): "tests/jax/test_lowering.py",
    ("weft.jax.gpu.front", "AlignmentError"): "tests/jax/test_bind.py",
    ("weft.jax.gpu.front", "UnsupportedError"): "tests/jax/test_bind.py",
    ("weft.jax.implementations", "OptionError"): "tests/jax/test_refusals.py",
    ("weft.jax.implementations", "UnsupportedKernel"): "tests/jax/test_refusals.py",
    ("weft.jax.inputs", "AlignmentError"): "tests/jax/test_refusals.py",
    ("weft.jax.inputs", "InputError"): "tests/jax/test_refusals.py",
    ("weft.jax.inputs", "OptionError"): "tests/jax/test_refusals.py",
    ("weft.jax.inputs", "UnsupportedError"): "tests/jax/test_refusals.py",
    ("weft.jax.mask", "InputError"): "tests/jax/test_tables.py",
    ("weft.jax.nnx", "InputError"): "tests/jax/test_nnx.py",
    ("weft.jax.nnx", "OptionError"): "tests/jax/test_nnx.py",
    ("weft.jax.nnx", "UnsupportedError"): "tests/jax/test_nnx.py",
    ("weft.jax.operator", "UnsupportedError"): "tests/jax/test_transforms.py",
    ("weft.jax.partition", "UnsupportedError"): "tests/jax/test_sharding.py",
    ("weft.jax.reads", "OptionError"): "tests/jax/test_options.py",
    ("weft.jax.sizes", "InputError"): "tests/jax/test_tables.py",
    ("weft.jax.tables", "InputError"): "tests/jax/test_tables.py",
    ("weft.kernels.gpu.compile.adding", "UnsupportedKernel"): "tests/triton/test_adding.py",
    ("weft.kernels.gpu.compile.compiler", "UnsupportedKernel"): "tests/triton/test_translated.py",
    ("weft.kernels.gpu.compile.dedup", "UnsupportedKernel"): "tests/triton/test_shared_code.py",
    ("weft.kernels.gpu.documents.spec", "UnsupportedError"): "tests/gpu/test_oracle_documents.py",
    ("weft.kernels.gpu.score.slots", "UnsupportedError"): "tests/kernels/test_biases.py",
    ("weft.kernels.gpu.configure", "UnsupportedKernel"): "tests/triton/test_options.py",
    ("weft.kernels.gpu.tables.pack", "UnsupportedKernel"): "",  # a plan of 2^30 integers: no test is that patient
    ("weft.napkin.emit", "RelabelError"): "tests/napkin/test_diagram.py",
    ("weft.napkin.execute", "RelabelError"): "tests/napkin/test_relabel.py",
    ("weft.napkin.hierarchy", "RelabelError"): "tests/napkin/test_hierarchy.py",
    ("weft.napkin.schedule", "RelabelError"): "tests/napkin/test_relabel.py",
    ("weft.napkin.sketch", "RelabelError"): "tests/napkin/test_sketch.py",
    ("weft.pattern.depth", "PatternError"): "tests/pattern/test_depth.py",
    ("weft.recognition.pace", "InputError"): "tests/recognition/test_pace.py",  # while a compiler traces
    ("weft.runtime.evidence", "OptionError"): "tests/runtime/test_evidence.py",
    ("weft.runtime.tuner", "OptionError"): "tests/runtime/test_tuner.py",
    ("weft.runtime.tuner", "UnsupportedError"): "tests/runtime/test_tuner.py",
    ("weft.torch.bind", "UnsupportedError"): "tests/torch/test_graphs_of_programs.py",  # while a CUDA graph is captured
    ("weft.torch.card", "UnsupportedKernel"): "tests/runtime/test_card.py",  # an old card
    ("weft.torch.device_documents", "InputError"): "tests/kernels/test_documents.py",
    ("weft.torch.device_documents", "UnsupportedError"): "tests/kernels/test_documents.py",
    ("weft.torch.distributed.agreement", "InputError"): "tests/distributed/processes.py",
    ("weft.torch.distributed.agreement", "UnsupportedError"): "tests/distributed/test_refused.py",
    ("weft.torch.distributed.call", "InputError"): "tests/distributed/processes.py",
    ("weft.torch.distributed.call", "OptionError"): "tests/distributed/processes.py",
    ("weft.torch.distributed.decode", "OptionError"): "tests/distributed/test_refused.py",
    ("weft.torch.distributed.decode", "UnsupportedError"): "tests/distributed/test_refused.py",
    ("weft.torch.distributed.dtensors", "UnsupportedError"): "tests/distributed/test_gloo.py",
    ("weft.torch.distributed.groups", "OptionError"): "tests/distributed/test_gloo.py",
    ("weft.torch.distributed.scores", "UnsupportedError"): "tests/distributed/test_gloo.py",
    ("weft.torch.document_rows", "UnsupportedError"): "tests/torch/test_varlen.py",
    ("weft.torch.gpu", "UnsupportedKernel"): "tests/torch/test_decode.py",
    ("weft.torch.key_cache", "InputError"): "tests/kernels/test_key_cache.py",
    ("weft.torch.key_cache", "UnsupportedError"): "tests/kernels/test_key_cache.py",
    ("weft.torch.multihead", "InputError"): "tests/torch/test_multihead.py",
    ("weft.torch.multihead", "OptionError"): "tests/torch/test_multihead.py",
    ("weft.torch.paged_documents", "UnsupportedError"): "tests/torch/test_paged_documents.py",
}


# (id, exception, words that must be in the message, call); a call that takes `folder` gets an empty one.
TABLE = [*OF_PATTERNS, *OF_ATTENTION, *OF_COMMANDS]


def run(row, folder):
    """What the row raises, held to the contract."""
    name, error, words, call = row
    found = refused(lambda: call(folder) if "folder" in inspect.signature(call).parameters else call(), error, words)
    assert type(found) is error, f"{name}: {type(found).__name__}"
    return found


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    """Id of a row -> what it raised, or what is wrong with that."""
    found = {}
    for row in TABLE:
        try:
            found[row[0]] = run(row, tmp_path_factory.mktemp("row"))
        except Exception as wrong:
            found[row[0]] = wrong
    return found


def modules_of(raised):
    """(module, class) for every module of weft that the exception came through."""
    step = raised.__traceback__
    while step is not None:
        yield step.tb_frame.f_globals["__name__"], type(raised).__name__
        step = step.tb_next


def raised_in_sources():
    """(module, class) of every weft error that the sources make."""
    names = {kind.__name__ for kind in CLASSES}
    for path in sorted((ROOT / "src" / "weft").rglob("*.py")):
        module = ".".join(path.relative_to(ROOT / "src").with_suffix("").parts).removesuffix(".__init__")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in names:
                yield module, node.func.id


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row[0])
def test_every_refusal_says_what_was_asked_what_is_wrong_and_what_to_do(row, outcomes):
    if not isinstance(outcomes[row[0]], WeftError):
        raise outcomes[row[0]]


def test_every_exception_class_has_a_row():
    assert {error for _, error, _, _ in TABLE} == set(CLASSES) - {WeftError}


def test_every_public_function_and_command_has_a_row():
    told = {row[0].partition(":")[0] for row in TABLE}
    functions = {name for name in weft.__all__ if callable(getattr(weft, name))} - NOTHING_TO_REFUSE
    assert functions - told == set()
    commands = {f"weft {name}" for name in COMMANDS} - {"weft doctor"}  # which never fails for what is missing
    assert commands - told == set()


def test_every_module_that_refuses_is_reached(outcomes):
    reached = {pair for raised in outcomes.values() for pair in modules_of(raised)}
    missing = set(raised_in_sources()) - reached - set(ELSEWHERE)
    assert missing == set(), "add rows to the table, or name the tests in ELSEWHERE"
    for (_, name), tests in ELSEWHERE.items():
        assert not tests or (ROOT / tests).is_file(), f"{name}: {tests}"
