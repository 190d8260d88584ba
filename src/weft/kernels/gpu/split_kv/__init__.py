"""Split-KV: a few queries against many keys, in equal shares of the live keys that a second kernel combines."""
