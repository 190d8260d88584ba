"""Functions that a score is made of, beside torch's own: values, and derivatives by the score."""

import pytest
import torch
from torch.nn import functional

from weft.errors import OptionError
from weft.score.evaluate import Rule, evaluate
from weft.score.text import parse
from weft.torch.tracing import score_of

X = torch.tensor(
    [-30.0, -4.5, -2.9, -2.5, -1.5, -0.3, -1e-4, 1e-4, 0.2, 0.5, 1.5, 2.5, 3.7, 6.5, 30.0], dtype=torch.float64
)
NAMES = (
    "silu", "relu", "relu6", "leaky_relu", "elu", "hardtanh", "hardsigmoid", "hardswish", "softplus", "logsigmoid",
    "softsign", "tanhshrink", "mish", "gelu", "sigmoid",
)  # fmt: skip
FUNCTIONS = {
    **{name: getattr(functional, name) for name in NAMES},
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "leaky_relu_slope": lambda x: functional.leaky_relu(x, 0.3),
    "elu_alpha": lambda x: functional.elu(x, alpha=2.0),
    **{name: getattr(torch, name) for name in ("erf", "tan", "sinh", "cosh", "trunc", "frac", "round")},
    "fmod": lambda x: torch.fmod(x, -1.2),
    "truncated": lambda x: torch.div(x, -1.2, rounding_mode="trunc"),
    "hypot": lambda x: torch.hypot(x, x + 1),
    "lerp": lambda x: torch.lerp(x, x * x, 0.3),
    "addcmul": lambda x: torch.addcmul(x, x, x, value=0.1),
    "addcdiv": lambda x: torch.addcdiv(x, x, x * x + 1, value=0.1),
    "logaddexp": lambda x: torch.logaddexp(x, 0.3 * x),
    "alpha": lambda x: torch.add(x, x * x, alpha=0.5) - torch.sub(x, x * x, alpha=0.5),
    "isinf": lambda x: torch.where(torch.isinf(x), 0.0, x),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_as_torchs(name):
    function = FUNCTIONS[name]
    found = evaluate(Rule(parse(score_of(lambda score, b, h, q, k: function(score)).text)), {"score": X.numpy()})
    x = X.clone().requires_grad_()
    expected = function(x)
    (slope,) = torch.autograd.grad(expected.sum(), x, allow_unused=True, materialize_grads=True)
    torch.testing.assert_close(torch.from_numpy(found.score.copy()), expected.detach(), rtol=1e-9, atol=1e-12)
    # torch's hardsigmoid has 1/6 in float32
    torch.testing.assert_close(torch.from_numpy(found.slope.copy()), slope, rtol=1e-7, atol=1e-12)


def test_indices_towards_zero():
    """Of differences of indices, whose division rounds down otherwise."""
    made = score_of(lambda score, b, h, q, k: torch.fmod(q - k, 3) + torch.div(q - k, -3, rounding_mode="trunc"))
    q, k = torch.arange(7), torch.full((7,), 3)
    found = evaluate(Rule(parse(made.text)), {"score": X[:7].numpy(), "q": q.numpy(), "k": k.numpy()})
    expected = torch.fmod(q - k, 3) + torch.div(q - k, -3, rounding_mode="trunc")
    assert found.score.tolist() == expected.tolist()


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda score, b, h, q, k: functional.relu(score, inplace=True), "inplace=True"),
        (lambda score, b, h, q, k: functional.gelu(score, approximate="fast"), "approximate='fast'"),
        (lambda score, b, h, q, k: torch.atan(score), "`atan`"),
    ],
)
def test_refused(function, words):
    with pytest.raises(OptionError, match=words):
        score_of(function)
