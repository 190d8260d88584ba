"""weft as an attention implementation of Hugging Face transformers, and sparse patterns for models that have none.

`register()` makes `attn_implementation="weft"` known. Example::

    from weft.integrations.transformers import register

    register()
    model = AutoModelForCausalLM.from_pretrained(name, attn_implementation="weft")
"""

from weft.integrations.transformers.layered import load_patterns
from weft.integrations.transformers.patterns import set_pattern
from weft.integrations.transformers.registration import register
from weft.integrations.transformers.sharded import shard
from weft.integrations.transformers.swap import swap

__all__ = ["load_patterns", "register", "set_pattern", "shard", "swap"]
