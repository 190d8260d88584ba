"""`weft doctor` where JAX is installed and torch is not."""

import json

import pytest

jax = pytest.importorskip("jax", reason="JAX is not installed")
from click.testing import CliRunner

from weft.cli import main


def run(*args):
    done = CliRunner().invoke(main, ["doctor", *args], catch_exceptions=False)
    assert done.exit_code == 0
    return done.output


def test_what_jax_can_use():
    found = json.loads(run("--json"))["jax"]
    assert found["platform"] == "cpu"
    assert len(found["devices"]) == jax.device_count()
    assert found["implementations"]["xla"] is found["implementations"]["cpu"] is None
    assert "implementation='xla'" in found["implementations"]["triton"]["cure"]
    said = run()
    assert "  xla      on cpu: ready" in said
    assert "  triton   on cpu: no\n      weft's GPU kernels are not bound to JAX" in said


def test_a_jax_that_breaks(monkeypatch):
    def broken():
        raise RuntimeError("no driver")

    monkeypatch.setattr("weft.jax.facts.facts", broken)
    assert "it cannot be used: RuntimeError: no driver" in run()
