"""flex_attention: the checks of torch's, and weft.attention."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.compiler import is_compiling, is_dynamo_compiling
from torch.nn.attention import flex_attention as flex

from weft.errors import UnsupportedError
from weft.integrations.flex import graphs, host
from weft.integrations.flex.block_mask import as_weft
from weft.integrations.flex.checks import check_block_mask, check_kernel_options, check_rows, check_tensors
from weft.pattern.algebra import Pattern
from weft.pattern.library import full
from weft.score import Score
from weft.score.from_end import counted_from_the_end
from weft.torch.attention import attention
from weft.torch.tracing import score_of

FULL = full()
_said: set[str] = set()


def flex_attention(  # noqa: PLR0913 - FlexAttention's signature
    query: Tensor, key: Tensor, value: Tensor, score_mod: Callable[..., Any] | None = None,
    block_mask: flex.BlockMask | None = None, scale: float | None = None, enable_gqa: bool = False,
    return_lse: bool = False, kernel_options: flex.FlexKernelOptions | None = None, *,
    return_aux: flex.AuxRequest | None = None, **unknown: Any,
) -> Any:  # fmt: skip
    """torch.nn.attention.flex_attention.flex_attention, computed by weft.attention, with gradients on the CPU too.

    - query (B, Hq, L, E), key (B, Hkv, S, E), value (B, Hkv, S, Ev). A batch of 1 key row serves all rows of a mask.
    - score_mod: a function of (score, b, h, q_idx, kv_idx), traced once while its code and captured values are the
      same; gradients flow to captured tensors. block_mask: weft's, or torch's. scale: E ** -0.5 if None.
    - enable_gqa: must be True where Hq is a multiple of Hkv. kernel_options: checked, and without effect.
    - return_aux: AuxRequest(lse=True); max_scores is refused. return_lse: deprecated, as in torch.

    Returns out (B, Hq, L, Ev), with return_lse (out, lse), with return_aux (out, AuxOutput). A row without keys gives 0
    and an lse of -inf. Raises ValueError for shapes, devices and masks that do not fit, and NotImplementedError for
    what weft does not serve. Raises OptionError (a ValueError) for a score_mod that cannot be traced. Example::

        out = flex_attention(q, k, v, score_mod=lambda score, b, h, i, j: score - (i - j).abs(), block_mask=mask)
    """
    if unknown:
        raise TypeError(f"flex_attention() got an unexpected keyword argument {min(unknown)!r}")
    check_tensors(query, key, value, enable_gqa)
    if block_mask is not None:
        check_block_mask(block_mask, query, key)
    if query.shape[0] != key.shape[0]:
        key, value = _broadcast(query, key, value, block_mask)
    wants_lse = _wants_lse(return_lse, return_aux)
    if kernel_options:
        check_kernel_options(kernel_options)
        _say("kernel_options have no effect: weft plans its own kernels", UserWarning)
    mask, score = _meant(query, key, score_mod, block_mask)
    options: dict[str, Any] = {"scale": scale, "return_lse": wants_lse}
    if host.needs_host(query):
        _say("flex_attention in float64 is computed on the host: no kernel of a GPU has this dtype", UserWarning)
        found = host.on_host((query, key, value), mask, score, options)
    else:
        found = attention(query, key, value, mask, score=score, **options)
    if return_aux is not None:
        return (found[0], flex.AuxOutput(lse=found[1])) if wants_lse else (found, flex.AuxOutput())
    return found


def _meant(query: Tensor, key: Tensor, score_mod: Any, block_mask: Any) -> tuple[Any, Any]:
    """Mask and score as weft.attention takes them."""
    if is_dynamo_compiling():
        return graphs.meant(query, key, score_mod, block_mask)
    mask: Pattern
    if block_mask is None or block_mask.BLOCK_SIZE[0] == block_mask.BLOCK_SIZE[1] == flex._LARGE_SPARSE_BLOCK_SIZE:
        mask = FULL
    else:
        known = as_weft(block_mask)
        mask = known.pattern
        check_rows(vars(known).get("_reads", ""), query)
    if score_mod is None:
        return mask, None
    score = score_of(score_mod, own=True)
    if score.tables:
        shapes = tuple(tuple(x.shape) for x in score.tables)
        text = counted_from_the_end(score.text, shapes, (*query.shape[:3], key.shape[2]))
        score = Score(text, score.tables, score.name)
    return mask, score


def _broadcast(query: Tensor, key: Tensor, value: Tensor, block_mask: Any) -> tuple[Tensor, Tensor]:
    """One row of keys for all rows of queries."""
    rows, given = query.shape[0], key.shape[0]
    asked = "Expect query and key/value to have the same batch size, or"
    if block_mask is None:
        raise ValueError(f"{asked} non-none block_mask, but got block_mask=None, Bq={rows}, and Bkv={given}.")
    if block_mask.shape[0] != rows:
        raise ValueError(
            f"{asked} block_mask and query to have the same batch size, but got Bq={rows}, Bkv={given}, "
            f"B_block_mask={block_mask.shape[0]}."
        )
    if given != 1:
        raise ValueError(f"Bq and Bkv must broadcast. Got Bq={rows} and Bkv={given}")
    return key.expand(rows, -1, -1, -1), value.expand(rows, -1, -1, -1)


def _wants_lse(return_lse: bool, return_aux: Any) -> bool:
    if return_aux is None:
        if return_lse:
            _say("return_lse is deprecated; use return_aux=AuxRequest(lse=True) instead", FutureWarning)
        return return_lse
    if return_lse:
        raise ValueError(
            "Cannot specify both return_lse and return_aux. return_lse is deprecated, please use "
            "return_aux=AuxRequest(lse=True) instead."
        )
    if return_aux.max_scores:
        raise UnsupportedError(
            "flex_attention(return_aux=AuxRequest(max_scores=True))",
            "Returning max scores is not supported: weft's kernels keep no maximum of a row",
            "ask for AuxRequest(lse=True), which bounds it: max <= lse",
        )  # fmt: skip
    return bool(return_aux.lse)


def _say(text: str, kind: type[Warning]) -> None:
    """A warning, once in a process."""
    if text not in _said and not is_compiling():
        _said.add(text)
        warnings.warn(text, kind, stacklevel=3)
