"""Models of transformers under weft on a GPU: bfloat16 beside eager attention, steps of decoding as CUDA graphs."""

import pytest
import torch

if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)
models = pytest.importorskip("tests.integrations.models", exc_type=ImportError)
import copy

import transformers

from weft.integrations.transformers import register
from weft.torch import device_documents

pytestmark = [pytest.mark.gpu, pytest.mark.more]
register()
WIDE = {"hidden_size": 256, "head_dim": 64, "intermediate_size": 256}


def on_gpu(name):
    """A model whose heads have 64 numbers, in bfloat16."""
    options = {**models.SHARED, **models.DECODERS[name], **WIDE}
    if name == "Phi3":
        del options["head_dim"]
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**options)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    return model.to("cuda", torch.bfloat16).eval()


@pytest.mark.parametrize("name", models.DECODERS)
def test_logits(name):
    """No further from float32 than twice what eager bfloat16 is."""
    model, (ids, padding) = on_gpu(name), (x.cuda() for x in models.tokens(length=200))
    rows = padding.bool()
    with torch.no_grad():
        wide = copy.deepcopy(model).float()(ids, attention_mask=padding).logits[rows]
        eager = model(ids, attention_mask=padding).logits[rows].float()
        model.set_attn_implementation("weft")
        got = model(ids, attention_mask=padding).logits[rows].float()
    assert (got - wide).abs().max() <= 2 * (eager - wide).abs().max() + 1e-3


@pytest.mark.parametrize("name", ["Llama", "Mistral", "Gemma3Text", "GptOss"])
def test_static_cache_as_cuda_graphs(name):
    """generate() compiles its steps with CUDA graphs; its logits are no further from float32 than eager bfloat16 is.

    Each step is judged for the tokens before it that were generated: one tipped bit may change all that follow.
    """
    model, (ids, padding) = on_gpu(name), (x.cuda() for x in models.tokens())
    model.set_attn_implementation("weft")
    torch._dynamo.reset()
    made = model.generate(
        ids, attention_mask=padding, cache_implementation="static", max_new_tokens=32, min_new_tokens=32,
        do_sample=False, pad_token_id=0, output_logits=True, return_dict_in_generate=True,
    )  # fmt: skip
    got, first = torch.stack(made.logits, 1).float(), ids.shape[1] - 1
    model.set_attn_implementation("eager")
    told = {"attention_mask": torch.nn.functional.pad(padding, (0, 31), value=1)}
    with torch.no_grad():
        wide = copy.deepcopy(model).float()(made.sequences[:, :-1], **told).logits[:, first:]
        eager = model(made.sequences[:, :-1], **told).logits[:, first:].float()
    assert got.shape == wide.shape == (3, 32, 64)
    assert (got - wide).abs().max() <= 2 * (eager - wide).abs().max() + 1e-3
    assert (got - wide).abs().mean() <= 2 * (eager - wide).abs().mean()


@pytest.mark.parametrize("name", ["Llama", "Mistral", "Gemma2"])
def test_packed_documents(name):
    """Gradients of training on documents that differ at each step, and no plan is made for the second step."""
    model, ids = on_gpu(name).train(), models.tokens(2, 200)[0].cuda()

    def gradients(model, cut):
        positions = torch.cat([torch.arange(cut), torch.arange(200 - cut)]).expand(2, 200).cuda()
        loss = model(ids, labels=ids, position_ids=positions, use_cache=False).loss
        return torch.cat([x.flatten().float() for x in torch.autograd.grad(loss, list(model.parameters()))])

    for cut in (70, 131):
        model.set_attn_implementation("eager")
        wide, eager = gradients(copy.deepcopy(model).float(), cut), gradients(model, cut)
        model.set_attn_implementation("weft")
        calls = len(device_documents._calls)
        got = gradients(model, cut)
        assert (got - wide).norm() <= 2 * (eager - wide).norm() + 1e-3 * wide.norm()
        assert cut == 70 or len(device_documents._calls) == calls > 0


def test_t5_learns_its_biases():
    """Logits and gradients, of the table of biases among others."""
    sizes = {"vocab_size": 64, "d_model": 256, "d_kv": 64, "d_ff": 256, "num_layers": 2, "num_heads": 4}
    torch.manual_seed(0)
    config = transformers.T5Config(**sizes, decoder_start_token_id=0, dropout_rate=0.0)
    model = transformers.T5ForConditionalGeneration._from_config(config, attn_implementation="eager").cuda().bfloat16()
    with torch.no_grad():
        for module in model.modules():
            if hasattr(module, "relative_attention_bias"):
                module.relative_attention_bias.weight.normal_()
    ids, padding = (x.cuda() for x in models.tokens(length=150))

    def results(model):
        loss = model(input_ids=ids, attention_mask=padding.flip(1), labels=ids).loss
        grads = torch.autograd.grad(loss, list(model.parameters()))
        return torch.cat([x.flatten().float() for x in (loss.detach(), *grads)])

    wide, eager = results(copy.deepcopy(model).float()), results(model)
    model.set_attn_implementation("weft")
    assert (results(model) - wide).norm() <= 2 * (eager - wide).norm() + 1e-3 * wide.norm()


def test_bert_drops():
    """Dropout of attention weights is drawn anew at each call, and does not change what is expected."""
    config = transformers.BertConfig(
        vocab_size=64, hidden_size=256, num_hidden_layers=1, num_attention_heads=4, intermediate_size=256,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.2,
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.BertModel._from_config(config, attn_implementation="weft", add_pooling_layer=False).cuda()
    ids = models.tokens(length=100)[0].cuda()
    with torch.no_grad():
        kept = model.eval()(ids).last_hidden_state
        drawn = torch.stack([model.train()(ids).last_hidden_state for _ in range(64)])
    assert (drawn[0] - drawn[1]).abs().max() > 1e-3
    assert (drawn.mean(0) - kept).norm() < 0.5 * (drawn[0] - kept).norm()


def test_a_step_waits_for_nothing():
    """Making the mask of a step, and computing it, reads nothing back from the device."""
    from transformers import masking_utils

    from weft.integrations.transformers.forward import forward
    from weft.integrations.transformers.masks import mask

    window = masking_utils.sliding_window_causal_mask_function(64)
    padding = torch.ones(2, 302, dtype=torch.bool, device="cuda")  # of the longest step below
    padding[0, :5] = False
    count = torch.tensor(300, device="cuda")
    q, k = torch.randn(2, 8, 1, 64, device="cuda").half(), torch.randn(2, 2, 512, 64, device="cuda").half()

    def step():
        made = mask(
            2, 1, 512, count, 0, mask_function=window, attention_mask=padding, allow_is_causal_skip=False, device="cuda"
        )
        return forward(torch.nn.Module(), q, k, k, made)[0]

    with torch.no_grad():
        want = step()
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
        try:
            again = step()
        finally:
            torch.cuda.set_sync_debug_mode("default")
        torch.testing.assert_close(again, want)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = step()
        count += 1
        graph.replay()
        count -= 1
        graph.replay()
        torch.testing.assert_close(out, want)
