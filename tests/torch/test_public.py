"""The public face: names, keywords of other libraries, types."""

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch

import weft
from weft.errors import OptionError
from weft.testing.refusals import refuse
from weft.torch.keywords import CURES, OWN

from .helpers import as_dynamo_says, qkv

ROOT = Path(__file__).parents[2]


def fresh(code):
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=120,
                          check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


# ---- keywords --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", CURES)
@pytest.mark.parametrize("value", [None, 1])
def test_keywords_of_other_libraries_name_weft_s_own(name, value):
    found = refuse(
        lambda: weft.attention(*qkv(4), weft.causal(), **{name: value}), OptionError, (name, "other libraries")
    )
    assert name not in OWN
    assert "{" not in found.cure


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("attn_mask", "weft.attention(q, k, v, attn_mask)"), ("block_mask", "weft.attention(q, k, v, block_mask)"),
        ("is_causal", "mask=weft.causal()"), ("window_size", "weft.window(left"), ("enable_gqa", "leave it out"),
        ("need_weights", "return_lse=True"), ("kernel_size", "weft.neighborhood("),
        ("dropout_p", "dropout=dropout_p"), ("attn_bias", "bias=attn_bias"),
        ("score_mod", "score=score_mod"),
        ("key_padding_mask", "~key_padding_mask"), ("softmax_scale", "scale=softmax_scale"),
        ("additional_keys", "extra_keys="), ("cu_seqlens_q", "weft.varlen_attention("),
    ],
)  # fmt: skip
def test_what_keywords_name(name, says):
    """Also where no mask was passed, as by whoever renames a function."""
    refuse(lambda: weft.attention(*qkv(4), **{name: 1}), OptionError, (says,))


def test_near_keywords():
    refuse(lambda: weft.attention(*qkv(4), weft.causal(), softcapp=1.0), OptionError, ("takes no softcapp", "softcap="))
    refuse(lambda: weft.attention(*qkv(4), weft.causal(), zzz=1), OptionError, ("takes no zzz", "alibi_slopes"))


def test_keywords_inside_a_compiled_function():
    torch._dynamo.reset()
    compiled = torch.compile(
        lambda q, k, v: weft.attention(q, k, v, weft.causal(), is_causal=True), backend="eager", fullgraph=True
    )
    with pytest.raises(torch._dynamo.exc.Unsupported, match=as_dynamo_says(r"mask=weft\.causal\(\)")):
        compiled(*qkv(4))


# ---- names -----------------------------------------------------------------------------------------------------------
def test_dir_is_complete():
    modules = {"distributed", "errors", "fusion", "integrations", "torch"}
    shown = {name for name in dir(weft) if not name.startswith("__")} - {"jax"}
    assert shown == (set(weft.__all__) - {"__version__"}) | modules
    names = fresh("import weft; print(*dir(weft))")  # before anything was asked for
    assert set(weft.__all__) | {"torch"} <= set(names)


def test_near_names():
    for wrong, near in (("atention", "attention"), ("Window", "window"), ("neighbourhood", "neighborhood")):
        with pytest.raises(AttributeError, match=rf"no attribute '{wrong}'; did you mean weft\.{near}\?$"):
            getattr(weft, wrong)
    with pytest.raises(AttributeError, match=r"no attribute 'zzz'$"):
        weft.zzz  # noqa: B018 - asked for


def test_the_front_end_by_its_name():
    assert fresh("import weft; print(weft.torch.SparseAttention.__name__, weft.merge is weft.torch.merge)") == [
        "SparseAttention", "True",
    ]  # fmt: skip
    said = fresh("""
        import sys
        sys.modules["torch"] = None
        import weft
        for name in ("torch", "attention", "merge"):
            try:
                getattr(weft, name)
            except ModuleNotFoundError as error:
                print(str(error).replace(" ", "_"))
        """)
    assert said == [
        f"weft.{name}_needs_torch:_pip_install_'.[torch]'_in_a_checkout_of_weft"
        for name in ("torch", "attention", "merge")
    ]


# ---- types -----------------------------------------------------------------------------------------------------------
def test_every_parameter_is_in_the_docstring():
    text = weft.attention.__doc__
    assert [name for name in ("q", "k", "v", *OWN) if name not in text] == []


REVEALED = """
import torch
import weft

q = k = v = torch.zeros(1, 2, 8, 4)
either = bool(q.sum() > 0)
reveal_type(weft.attention(q, k, v, weft.causal()))
reveal_type(weft.attention(q, k, v, torch.ones(8, 8, dtype=torch.bool), scale=0.5, layout="bhsd"))
reveal_type(weft.attention(q, k, v, lambda q, k: q >= k, return_lse=True))
reveal_type(weft.attention(q, k, v, weft.causal(), return_lse=either))
reveal_type(weft.merge([q], [q]))
weft.attention(q, k, v, weft.causal(), attn_mask=None)
weft.attention(q, k, v, 3)
"""


@pytest.mark.wide
def test_types(tmp_path):
    """To a type checker that reads torch, a minute."""
    pytest.importorskip("mypy")
    snippet = tmp_path / "snippet.py"
    snippet.write_text(REVEALED)
    command = [sys.executable, "-m", "mypy", "--follow-imports=silent", "--cache-dir", str(tmp_path / "cache"),
               "--python-executable", sys.executable, str(snippet)]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False, cwd=tmp_path)
    said = [line.partition(": ")[2] for line in done.stdout.splitlines() if line.startswith("snippet.py")]
    tensor = "torch._tensor.Tensor"
    types = [tensor, tensor, f"tuple[{tensor}, {tensor}]", f"{tensor} | tuple[{tensor}, {tensor}]",
             f"tuple[{tensor}, {tensor}]"]  # fmt: skip
    assert [line for line in said if "Revealed" in line] == [f'note: Revealed type is "{x}"' for x in types], (
        done.stdout
    )
    errors = [line for line in said if line.startswith("error")]
    assert any('Unexpected keyword argument "attn_mask"' in line for line in errors), done.stdout
    assert any('"int"' in line for line in errors), done.stdout
