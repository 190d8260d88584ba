"""torch.func: grad, vjp, jacrev and vmap through attention, against loops and torch.autograd."""

import pytest
import torch
from torch.func import functional_call, grad, jacrev, stack_module_state, vjp, vmap

import weft
from weft.errors import UnsupportedError

from .helpers import qkv

HEADS = (4, 2)
MASK = weft.causal() & weft.window(left=5)
Q, K, V = qkv(12, heads=HEADS, dtype=torch.float64)
MANY = torch.randn(5, *Q.shape, dtype=torch.float64)


def attend(q, k=K, v=V, **options):
    return weft.attention(q, k, v, MASK, **options)


def loss(*args, **options):
    return attend(*args, **options).square().sum()


def by_autograd(function, *args):
    leaves = [x.detach().clone().requires_grad_() for x in args]
    return torch.autograd.grad(function(*leaves), leaves)


def close(found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def test_grad_and_vjp():
    for found, expected in zip(grad(loss, argnums=(0, 1, 2))(Q, K, V), by_autograd(loss, Q, K, V), strict=True):
        close(found, expected)
    out, back = vjp(attend, Q)
    close(out, attend(Q))
    close(back(2 * out)[0], by_autograd(loss, Q)[0])


def test_grad_of_lse_and_sinks():
    def both(q, sinks):
        out, lse = attend(q, sinks=sinks, return_lse=True)
        return out.sum() + lse.square().sum()

    sinks = torch.randn(4, dtype=torch.float64)
    for found, expected in zip(grad(both, argnums=(0, 1))(Q, sinks), by_autograd(both, Q, sinks), strict=True):
        close(found, expected)


@pytest.mark.parametrize("dim", [0, 2, 4])
def test_vmap_folds(dim):
    found = vmap(attend, in_dims=dim)(MANY.movedim(0, dim))
    close(found, torch.stack([attend(q) for q in MANY]))


def test_vmap_of_everything():
    keys, values = (torch.randn(5, *x.shape, dtype=torch.float64) for x in (K, V))
    close(vmap(attend)(MANY, keys, values), torch.stack([*map(attend, MANY, keys, values)]))
    close(vmap(attend, in_dims=(None, 0, None))(Q, keys, V), torch.stack([attend(Q, k) for k in keys]))
    nested = vmap(vmap(attend, in_dims=(0, None, None)), in_dims=(None, 0, 0))(MANY, keys, values)
    close(nested[3, 1], attend(MANY[1], keys[3], values[3]))


def test_gradients_of_each_sample():
    close(vmap(grad(loss))(MANY), torch.stack([grad(loss)(q) for q in MANY]))


def test_grad_of_vmap():
    found = grad(lambda k: vmap(lambda q: loss(q, k))(MANY).sum())(K)
    close(found, sum(grad(loss, argnums=1)(q, K) for q in MANY))


def test_jacobian():
    found = jacrev(lambda q: attend(q)[0, 1, 7])(Q)
    for i in range(8):
        close(found[i], by_autograd(lambda q, i=i: attend(q)[0, 1, 7, i], Q)[0])


@pytest.mark.parametrize("mask", [weft.per_batch([weft.causal(), weft.window(2, 2)]), weft.padding([12, 5])], ids=str)
def test_patterns_that_tell_batch_rows_apart(mask):
    found = vmap(lambda q: weft.attention(q, K, V, mask))(MANY)
    close(found, torch.stack([weft.attention(q, K, V, mask) for q in MANY]))


def test_tables_and_sinks_of_each_sample():
    table, sinks = torch.randn(4, 7, dtype=torch.float64), torch.randn(4, dtype=torch.float64)

    def biased(table, sinks, q):
        return loss(q, bias=weft.bias.relative(table), sinks=sinks)

    found = vmap(grad(biased, argnums=(0, 1)), in_dims=(None, None, 0))(table, sinks, MANY)
    expected = [by_autograd(lambda t, s, q=q: biased(t, s, q), table, sinks) for q in MANY]
    for x, ys in zip(found, zip(*expected, strict=True), strict=True):
        close(x, torch.stack(ys))
    tables = torch.randn(5, 4, 7, dtype=torch.float64)
    close(vmap(biased, in_dims=(0, None, None))(tables, sinks, Q), torch.stack([biased(t, sinks, Q) for t in tables]))


def test_a_score_by_batch_row():
    table = torch.randn(2, dtype=torch.float64)

    def scored(q):
        return attend(q, score=lambda score, b, h, q, k: score * (1 + table[b]))

    close(vmap(scored)(MANY), torch.stack([*map(scored, MANY)]))


def test_dropout():
    """The same pairs for all, by one seed; torch's own rule where seeds are drawn."""
    close(
        vmap(lambda q: attend(q, dropout=0.5, seed=3))(MANY),
        torch.stack([attend(q, dropout=0.5, seed=3) for q in MANY]),
    )
    seeds = torch.arange(5)
    found = vmap(lambda q, seed: attend(q, dropout=0.5, seed=seed))(MANY, seeds)
    close(found, torch.stack([attend(q, dropout=0.5, seed=s) for q, s in zip(MANY, seeds, strict=True)]))
    with pytest.raises(RuntimeError, match="randomness"):
        vmap(lambda q: attend(q, dropout=0.5))(MANY)
    same = vmap(lambda q: attend(q, dropout=0.5), randomness="same")(MANY[:1].expand(3, *Q.shape))
    assert torch.equal(same[0], same[1])
    different = vmap(lambda q: attend(q, dropout=0.5), randomness="different")(MANY[:1].expand(3, *Q.shape))
    assert not torch.equal(different[0], different[1])


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.project = torch.nn.Linear(16, 48, dtype=torch.float64)
        self.table = torch.nn.Parameter(torch.randn(2, 5, dtype=torch.float64))

    def forward(self, x):
        q, k, v = self.project(x).unflatten(-1, (3, 2, 8)).permute(2, 0, 3, 1, 4)
        return weft.attention(q, k, v, MASK, bias=weft.bias.relative(self.table)).transpose(1, 2).flatten(2)


def test_an_ensemble():
    layers, x = [Layer() for _ in range(3)], torch.randn(2, 12, 16, dtype=torch.float64)
    params, buffers = stack_module_state(layers)
    found = vmap(lambda p, b: functional_call(layers[0], (p, b), (x,)), in_dims=(0, 0))(params, buffers)
    close(found, torch.stack([layer(x) for layer in layers]))


def test_a_loss_of_each_sample():
    layer, x = Layer(), torch.randn(4, 12, 16, dtype=torch.float64)
    params = {name: p.detach() for name, p in layer.named_parameters()}

    def of_one(p, one):
        return functional_call(layer, p, (one[None],)).square().sum()

    found = vmap(grad(of_one), in_dims=(None, 0))(params, x)
    for i, one in enumerate(x):
        expected = torch.autograd.grad(layer(one[None]).square().sum(), list(layer.parameters()))
        for (name, _), grads in zip(layer.named_parameters(), expected, strict=True):
            close(found[name][i], grads)


def test_outside_of_transforms_gradients_are_recorded_too():
    q = Q.clone().requires_grad_()
    vmap(loss)(MANY * q).sum().backward()
    expected = q.grad.clone()
    q.grad = None
    sum(loss(x * q) for x in MANY).backward()
    close(expected, q.grad)


def test_forward_mode_is_refused():
    for call in (lambda: torch.func.jvp(attend, (Q,), (Q,)), lambda: torch.func.jacfwd(attend)(Q)):
        with pytest.raises(UnsupportedError, match="forward-mode"):
            call()
