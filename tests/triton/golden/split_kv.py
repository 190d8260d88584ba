"""split_kv_float16_64_16x64_plain_split_softcap_alibi_sinks_1_of_1

Written by weft; 4 warps, 3 stages."""

import triton
import triton.language as tl

from weft.kernels.gpu.ops.loads import Strided
from weft.kernels.gpu.ops.scores import Scaling
from weft.kernels.gpu.split_kv.config import Config
from weft.kernels.gpu.split_kv.kernel import Results, split_kv
from weft.kernels.gpu.split_kv.rows import Deal, Keys


@triton.jit
def weft_decode_split_kv_d64_fp16(
    Q, K, V, Slopes, Tables, splits, all_heads, m, members_at, groups, lanes, span, sums, Q_batch,
    Q_head, Q_row, K_batch, K_head, K_row, V_batch, V_head, V_row, scale, softcap, shift, beside, length,
    Work,
):
    split_kv(
        Config(
            rows=16,
            cols=64,
            d=((0, 64, 64),),
            dv=((0, 64, 64),),
            bounds=1,
            steps=False,
            several=False,
            plain=True,
            group=1,
            heads=1,
            terms=1,
            split=True,
            chained=False,
            page=0,
            paired=False,
            softcap=True,
            alibi=True,
            upcast=False,
            precision=None,
            rank=1,
            linear=False,
            of_keys=False,
            scored=False,
            adds=False,
            dropout=False,
        ),
        Strided(Q, Q_batch * 8, Q_head * 8, Q_row * 8, 1),
        Strided(K, K_batch * 8, K_head * 8, K_row * 8, 1),
        Strided(V, V_batch * 8, V_head * 8, V_row * 8, 1),
        Deal(Tables, members_at, groups, lanes, span, splits, all_heads, m),
        Keys(
            shift=shift, beside=beside, length=length,
        ),
        Scaling(scale, softcap, 0, Slopes, (), ()),
        Results(work=Work, sums=sums),
    )


kernel = weft_decode_split_kv_d64_fp16
