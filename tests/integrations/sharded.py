"""What each of several gloo processes checks of a model of transformers; `test_transformers_sharded` starts them."""

import os

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy, pad
from transformers import AutoModelForCausalLM, Gemma3TextConfig, Llama4TextConfig

import weft
from weft.errors import OptionError, UnsupportedError
from weft.integrations.transformers import register, set_pattern, shard
from weft.testing.refusals import refuse

TOKENS, VOCABULARY = 90, 50
SMALL = {
    "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
    "vocab_size": VOCABULARY, "max_position_embeddings": 256, "attention_dropout": 0.0,
}  # fmt: skip
CONFIGS = {
    "gemma3": lambda: Gemma3TextConfig(**SMALL, num_hidden_layers=6, sliding_window=12, query_pre_attn_scalar=8),
    "llama4": lambda: Llama4TextConfig(
        **SMALL, num_hidden_layers=4, intermediate_size_mlp=48, num_local_experts=2, attention_chunk_size=20,
    ),
}  # fmt: skip


def begin(rank, world, folder, name, shards):
    """A process of its own."""
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=world)
    try:
        check_model(name, shards)
        if name == "gemma3":
            check_refusals()
    finally:
        dist.destroy_process_group()


def model_of(name):
    """The same parameters in each process."""
    torch.manual_seed(3)
    register()
    return AutoModelForCausalLM.from_config(CONFIGS[name](), attn_implementation="weft").double()


def loss_of(model, ids, ranks=None, **given):
    """The mean over all targets; over ranks its part of this rank's."""
    logits = model(ids, use_cache=False, **given).logits
    targets = pad(ids[:, 1:], (0, 1), value=-100)
    targets = targets if ranks is None else ranks.mine(targets)
    return cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-100, reduction="sum") / (TOKENS - 1)


def check_model(name, shards):
    """Loss and gradients of parameters are those of one process, with one document and with several."""
    model = model_of(name)
    if name == "gemma3":
        set_pattern(model, weft.causal() & weft.window(left=30), layers=[2])
    ids = torch.randint(VOCABULARY, (1, TOKENS), generator=torch.Generator().manual_seed(4))
    documents = torch.cat([torch.arange(n) for n in (25, 40, 25)])[None]
    for given in ({}, {"position_ids": documents}):
        wanted = loss_of(model, ids, **given)
        right = torch.autograd.grad(wanted, list(model.parameters()), allow_unused=True)
        ranks = shard(model, shards=shards)
        mine = loss_of(model, ids, ranks, **given)
        found = torch.autograd.grad(mine, list(model.parameters()), allow_unused=True)
        ranks.remove()
        total = mine.detach().clone()
        dist.all_reduce(total)
        torch.testing.assert_close(total, wanted.detach(), rtol=1e-9, atol=1e-9)
        for x, y in zip(found, right, strict=True):
            summed = torch.zeros_like(y) if x is None else x.clone()
            dist.all_reduce(summed)
            torch.testing.assert_close(summed, y, rtol=1e-5, atol=1e-7)  # norms are computed in float32
    assert torch.equal(loss_of(model, ids, **given), wanted)  # the model is whole again


def check_refusals():
    """What would give wrong results."""
    model, ids = model_of("gemma3"), torch.ones(1, TOKENS, dtype=torch.long)
    refuse(lambda: shard(model, shards="work"), OptionError, ("'work'", "contiguous"))
    refuse(lambda: shard(torch.nn.Linear(2, 2)), UnsupportedError, ("layers",))
    ranks = shard(model)
    refuse(lambda: model(ids), UnsupportedError, ("use_cache=False",))
    four = torch.zeros(1, 1, TOKENS, TOKENS, dtype=torch.float64)
    refuse(lambda: model(ids, attention_mask=four, use_cache=False), UnsupportedError, ("whole sequence",))
    ranks.remove()
