"""JAX as its tests want it: on four devices of the CPU, and compiled quickly rather than well."""

import os

# read when JAX is imported: four devices, so that sharding is tested, and no optimisation, which takes most of the time
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=4".strip()
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
