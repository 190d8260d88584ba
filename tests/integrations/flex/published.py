"""Forty score and mask functions of the kinds that FlexAttention's users publish, each for one problem.

Makers take `At` and answer a function and the tensors whose gradients are compared.
"""

import math

import torch

from weft.testing.score_functions import At

B, H, S = 2, 4, 96
GRID = (8, 12)  # S tokens
VIDEO = (4, 4, 6)  # frames, rows, columns
CUTS = torch.tensor([0, 20, 33, 70, S])


def tables(make, *shapes):
    def made(at):
        given = [at.real(*shape) for shape in shapes]
        return make(at, *given), given

    return made


def plain(function):
    return lambda at: (function, [])


def ids_of(cuts):
    return torch.repeat_interleave(torch.arange(len(cuts) - 1), cuts.diff())


# ---- scores ----------------------------------------------------------------------------------------------------------
def alibi(at):
    def score_mod(score, b, h, q_idx, kv_idx):
        scale = torch.exp2(-((h + 1) * 8.0 / at.heads))
        bias = (kv_idx - q_idx) * scale
        return score + bias

    return score_mod, []


def softcap(cap):
    def tanh_softcap(score, b, h, q_idx, kv_idx):
        return cap * torch.tanh(score / cap)

    return plain(tanh_softcap)


def soft_documents(at):
    ids, penalty = ids_of(CUTS), at.real()

    def score_mod(score, b, h, q_idx, kv_idx):
        same = ids[q_idx] == ids[kv_idx]
        return torch.where(same, score, score - penalty.abs())

    return score_mod, [penalty]


def documents_of(inner):
    """A score function of each document's own tokens."""
    ids = ids_of(CUTS)

    def make(at):
        function, learned = inner(at)

        def score_mod(score, b, h, q_idx, kv_idx):
            same = ids[q_idx] == ids[kv_idx]
            inside = function(score, b, h, q_idx - CUTS[ids[q_idx]], kv_idx - CUTS[ids[kv_idx]])
            return torch.where(same, inside, -float("inf"))

        return score_mod, learned

    return make


def checkerboard(score, batch, head, token_q, token_kv):
    score = torch.where(torch.abs(token_kv - token_q) % 2 == 1, score * 0.5, score)
    return torch.where(torch.abs(token_kv - token_q) % 2 == 0, score * 2.0, score)


def t5(at, table):
    def score_mod(score, b, h, q_idx, kv_idx):
        distance = q_idx - kv_idx
        far = 8 + (torch.log(distance.clamp(min=1) / 8.0) / math.log(16.0) * 8).to(torch.int64)
        bucket = torch.where(distance.abs() < 8, distance.abs(), far.clamp(0, 15))
        return score + table[bucket, h]

    return score_mod


def swin(at, table):
    rows, columns = GRID

    def score_mod(score, b, h, q_idx, kv_idx):
        dy = q_idx // columns - kv_idx // columns + rows - 1
        dx = q_idx % columns - kv_idx % columns + columns - 1
        return score + table[h, dy * (2 * columns - 1) + dx]

    return score_mod


def rotated(score, b, h, q_idx, kv_idx):
    q_idx, kv_idx = q_idx.to(torch.float64), kv_idx.to(torch.float64)
    return score * torch.cos((q_idx - kv_idx) * 0.01) + torch.sin((q_idx + kv_idx) * 0.02) * (h + 1)


def gate(at, table):
    return lambda score, b, h, i, j: score * torch.sigmoid(table[h])


def per_batch(at, table):
    return lambda score, b, h, i, j: score + table[b, h, i // 8, j // 8]


def indirect(at):
    order, table = torch.randperm(S, generator=at.random), at.real(S)
    return lambda score, b, h, i, j: score + table[order[j]] * 0.5, [table]


def time_decay(at, rate):
    return lambda score, b, h, i, j: score - torch.nn.functional.softplus(rate[h]) * (i - j).abs().to(torch.float64)


def latent(at, gain):
    def score_mod(score, b, h, q_idx, kv_idx):
        seen = (kv_idx < 8) | (q_idx // 16 == kv_idx // 16)
        return torch.where(seen, score * gain, -float("inf"))

    return score_mod


SCORES = {
    "identity": plain(lambda score, b, h, q_idx, kv_idx: score),
    "times_two": plain(lambda score, b, h, m, n: score * 2),
    "squared": plain(lambda score, b, h, m, n: score * score),
    "head_offset": tables(lambda at, t: lambda score, b, h, m, n: score * t[h], (H,)),
    "alibi": alibi,
    "relative": plain(lambda score, b, h, q_idx, kv_idx: score + (q_idx - kv_idx)),
    "relative_table": tables(lambda at, t: lambda score, b, h, i, j: score + t[i - j + S - 1], (2 * S - 1,)),
    "from_the_end": tables(lambda at, t: lambda score, b, h, i, j: score + t[h, i - j] * t[h - 2, -1], (H, S)),
    "softcap": softcap(20),
    "soft_documents": soft_documents,
    "documents_alibi": documents_of(alibi),
    "checkerboard": plain(checkerboard),
    "t5": tables(t5, (16, H)),
    "swin": tables(swin, (H, 15 * 23)),
    "rotated": plain(rotated),
    "gate": tables(gate, (H,)),
    "blocks_per_batch": tables(per_batch, (B, H, 12, 12)),
    "dense": tables(lambda at, t: lambda score, b, h, i, j: score + t[b, h, i, j], (B, H, S, S)),
    "symmetric": tables(lambda at, t: lambda score, b, h, i, j: score + t[i, j] + t[j, i], (S, S)),
    "causal_in_scores": plain(lambda score, b, h, i, j: torch.where(i >= j, score, -float("inf"))),
    "indirect": indirect,
    "time_decay": tables(time_decay, (H,)),
    "latent": tables(latent, ()),
}  # fmt: skip


# ---- masks -----------------------------------------------------------------------------------------------------------
def causal(b, h, q_idx, kv_idx):
    return q_idx >= kv_idx


def sliding(width):
    def sliding_window(b, h, q_idx, kv_idx):
        return (q_idx - kv_idx <= width) & (q_idx >= kv_idx)

    return sliding_window


def dilated(width, step):
    def dilated_window(b, h, q_idx, kv_idx):
        distance = torch.abs(q_idx - kv_idx)
        return (distance <= width) & (distance % step == 0) & (q_idx >= kv_idx)

    return dilated_window


def prefix_lm(at):
    lengths = at.ints(S // 2, at.batch) + 1
    return lambda b, h, q, k: (k < lengths[b]) | (q >= k)


def documents(inner):
    ids = ids_of(CUTS)

    def doc_mask(b, h, q_idx, kv_idx):
        same = ids[q_idx] == ids[kv_idx]
        return same & inner(b, h, q_idx - CUTS[ids[q_idx]], kv_idx - CUTS[ids[kv_idx]])

    return doc_mask


def natten(kernel_h, kernel_w):
    rows, columns = GRID

    def natten_mask(b, h, q_idx, kv_idx):
        q_x, q_y = q_idx // columns, q_idx % columns
        k_x, k_y = kv_idx // columns, kv_idx % columns
        x = q_x.clamp(kernel_h // 2, (rows - 1) - kernel_h // 2)
        y = q_y.clamp(kernel_w // 2, (columns - 1) - kernel_w // 2)
        return ((x - k_x).abs() <= kernel_h // 2) & ((y - k_y).abs() <= kernel_w // 2)

    return natten_mask


def flamingo(at):
    """Text sees the last picture before it: keys are pictures of eight tokens."""
    picture_of_text = (torch.arange(S) // 20).clamp(max=S // 8 - 1)
    return lambda b, h, q, k: picture_of_text[q] == k // 8


def transfusion(at):
    """Causal text, and pictures that see themselves."""
    begins, lengths = torch.tensor([8, 50]), torch.tensor([16, 24])

    def mask(b, h, q, k):
        live = q >= k
        for n in range(2):
            inside = (q >= begins[n]) & (q < begins[n] + lengths[n])
            live = live | (inside & (k >= begins[n]) & (k < begins[n] + lengths[n]))
        return live

    return mask


def block_diffusion(at):
    """The first half is noised, the second clean: blocks of eight."""
    n, block = S // 2, 8

    def mask(b, h, q, k):
        clean_q, clean_k = q >= n, k >= n
        block_q = torch.where(clean_q, (q - n) // block, q // block)
        block_k = torch.where(clean_k, (k - n) // block, k // block)
        diagonal = (block_q == block_k) & (clean_q == clean_k)
        offset = (block_q > block_k) & clean_k & ~clean_q
        causal_blocks = (block_q >= block_k) & clean_k & clean_q
        return diagonal | offset | causal_blocks

    return mask


def svg_spatial(at):
    frame = VIDEO[1] * VIDEO[2]
    return lambda b, h, q, k: ((q // frame - k // frame).abs() <= 1) | (k < frame)


def svg_temporal(at):
    frame = VIDEO[1] * VIDEO[2]
    return lambda b, h, q, k: ((q % frame - k % frame).abs() <= 3) | (k < frame)


def sliding_tile(at):
    """Tiles of 2 x 2 x 3 tokens in order; a window of three tiles a side."""
    tiles = tuple(a // b for a, b in zip(VIDEO, (2, 2, 3), strict=True))
    size = 12

    def tile_of(x):
        t = x // size
        return t // (tiles[1] * tiles[2]), t // tiles[2] % tiles[1], t % tiles[2]

    def mask(b, h, q, k):
        live = None
        for x, y in zip(tile_of(q), tile_of(k), strict=True):
            near = (x - y).abs() <= 1
            live = near if live is None else live & near
        return live

    return mask


def packed_images(at):
    ids = at.ints(5, at.batch, S).sort(-1).values
    return lambda b, h, q, k: ids[b, q] == ids[b, k]


def padding(at):
    lengths = at.ints(S, at.batch) + 1
    return lambda b, h, q, k: (k < lengths[b]) & (q >= k)


def random_pairs(at):
    pairs = torch.rand(S, S, generator=at.random) < 0.3
    return lambda b, h, q, k: pairs[q, k] | (q == k)


def given(function):
    return lambda at: function


MASKS = {
    "causal": given(causal),
    "anticausal": given(lambda b, h, q, k: q <= k),
    "sliding": given(sliding(17)),
    "dilated": given(dilated(40, 4)),
    "prefix_lm": prefix_lm,
    "documents": given(documents(causal)),
    "documents_of_windows": given(documents(sliding(5))),
    "natten": given(natten(5, 3)),
    "flamingo": flamingo,
    "transfusion": transfusion,
    "block_diffusion": block_diffusion,
    "svg_spatial": svg_spatial,
    "svg_temporal": svg_temporal,
    "sliding_tile": sliding_tile,
    "packed_images": packed_images,
    "padding": padding,
    "heads_apart": given(lambda b, h, q, k: (q >= k) & (q - k < 8 * (h + 1))),
    "sink_and_window": given(lambda b, h, q, k: (q >= k) & ((k < 4) | (q - k < 12))),
    "chunks": given(lambda b, h, q, k: (q // 16 == k // 16) & (q >= k)),
    "random_pairs": random_pairs,
    "nothing_for_some": given(lambda b, h, q, k: (q > 40) & (k < 30)),
}


def made(name):
    """(score_mod or None, mask_mod or None, tensors with gradients) of either table."""
    at = At(B, H, S, S)
    if name in SCORES:
        function, learned = SCORES[name](at)
        return function, None, list(learned)
    return None, MASKS[name](at), []
