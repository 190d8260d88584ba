"""forward_bfloat16_64_1d_256x64_2_terms_4_groups_no_maximum_fast_log_partial_lines

Emitted by weft; 4 warp groups, 8 stages."""

from triton.experimental import gluon

from weft.kernels.triton.group_queries import attention


@gluon.jit
def weft_fwd_hopper_line2_d64_bf16(
    Q, K, V, Tables, record, parts, parts_at, items_at, heads_at, first_item, all_heads, my_length,
    their_length, shift, blocks_at, blocks, Q_batch, Q_head, Q_row, K_batch, K_head, K_row, V_batch,
    V_head, V_row, Out_batch, Out_head, Out_row, scale, softcap, Q_near, K_near, V_near, K_far, V_far,
    Out, Lse, Out_near,
):
    q = Q, Q_batch, Q_head, Q_row
    k = K, K_batch, K_head, K_row
    v = V, V_batch, V_head, V_row
    out = Out, Out_batch, Out_head, Out_row
    tables = Tables, record, parts_at, items_at, heads_at, blocks_at, blocks
    attention(
        (q, (k, v), (Q_near, K_near, V_near, K_far, V_far)), (out, Lse, Out_near),
        tables, (all_heads, my_length, scale, Lse),
        WIDE=4, STAGES=8, TERMS=2, SINKS=False,
    )


kernel = weft_fwd_hopper_line2_d64_bf16
