"""A small DiNAT with random weights, whose attention is computed by its definition: NATTEN is not there."""

import torch
import transformers
from transformers.models.dinat import modeling_dinat as dinat


def gathered(grid, size, dilation):
    """For each query of an image its keys, and the row and column of each key less the query's, in steps."""
    keys, steps = [], []
    for axis in grid:
        rows = []
        for x in range(axis):
            mine = list(range(x % dilation, axis, dilation))  # tokens that it may see
            first = min(max(mine.index(x) - size // 2, 0), len(mine) - size)
            rows.append(mine[first : first + size])
        keys.append(torch.tensor(rows))
        steps.append((keys[-1] - torch.arange(axis)[:, None]) // dilation)
    return keys, steps


def by_definition(self, hidden_states, output_attentions=False):
    """NeighborhoodAttention.forward without NATTEN, whose functions transformers 5.24 gives axes in a wrong order."""
    q, k, v = (
        project(hidden_states).unflatten(-1, (self.num_attention_heads, -1)).permute(0, 3, 1, 2, 4)
        for project in (self.query, self.key, self.value)
    )
    (rows, columns), (down, right) = gathered(q.shape[2:4], self.kernel_size, self.dilation)
    rows, columns, down, right = rows[:, None, :, None], columns[None, :, None], down[:, None, :, None], right[:, None]
    near, values = (x[:, :, rows, columns].flatten(4, 5) for x in (k, v))
    bias = self.rpb[:, down + self.kernel_size - 1, right + self.kernel_size - 1].flatten(3)
    scores = (q.unsqueeze(4) * near).sum(-1) * self.attention_head_size**-0.5 + bias
    return ((scores.softmax(-1).unsqueeze(5) * values).sum(4).permute(0, 2, 3, 1, 4).flatten(3),)


def small(monkeypatch):
    """The model, for as long as a test runs; images are smaller than a neighbourhood in its last layers."""
    monkeypatch.setattr(dinat, "requires_backends", lambda *args: None)
    monkeypatch.setattr(dinat.NeighborhoodAttention, "forward", by_definition)
    config = transformers.DinatConfig(
        patch_size=4, embed_dim=16, depths=[2, 2], num_heads=[2, 4], kernel_size=3, dilations=[[1, 3], [1, 2]],
        drop_path_rate=0.0,
    )  # fmt: skip
    torch.manual_seed(0)
    model = dinat.DinatModel(config, add_pooling_layer=False).eval()
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "rpb" in name:
                p.normal_()
    return model
