"""Small entries, and processes, for tests of the store."""

import subprocess
import sys
from hashlib import sha256

KEY, OTHER, THIRD = (sha256(name).hexdigest() for name in (b"one", b"two", b"three"))
FILES = {"source.py": b"def kernel():\n    pass\n", "kernel.cubin": bytes(range(256)) * 40}
NO_LIMIT = 1 << 30


def put(store, key=KEY, files=FILES):
    store.put(key, {"name": "kernel"}, files)


def states(store):
    return [one.state for one in store.entries()]


def child(code, *args):
    """What a process of its own said and how it ended."""
    return subprocess.run([sys.executable, "-c", code, *map(str, args)], capture_output=True, text=True, check=False)
