"""dkdv_bfloat16_64_1d_128x64_2_groups_chained_apart_lines

Emitted by weft; 2 warp groups, 4 stages."""

from triton.experimental import gluon

from weft.kernels.triton.groups import key_gradients


@gluon.jit
def weft_bwd_dkdv_hopper_line_d64_bf16(
    Q, K, V, DOut, Stats, Tables, record, parts, parts_at, items_at, heads_at, first_item, all_heads,
    my_length, their_length, shift, blocks_at, blocks, Q_batch, Q_head, Q_row, K_batch, K_head, K_row,
    V_batch, V_head, V_row, DOut_batch, DOut_head, DOut_row, DK_batch, DK_head, DK_row, DV_batch,
    DV_head, DV_row, scale, softcap, DK, DV,
):
    q = Q, Q_batch, Q_head, Q_row
    k = K, K_batch, K_head, K_row
    v = V, V_batch, V_head, V_row
    dout = DOut, DOut_batch, DOut_head, DOut_row
    dk = DK, DK_batch, DK_head, DK_row
    dv = DV, DV_batch, DV_head, DV_row
    tables = Tables, record, parts_at, items_at, heads_at, blocks_at, blocks
    key_gradients(
        (k, v), (q, dout, Stats), (dk, dv), tables, (all_heads, their_length, scale),
        WIDE=2, STAGES=4, CHAINED=True,
    )


kernel = weft_bwd_dkdv_hopper_line_d64_bf16
