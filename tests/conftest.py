"""Settings of every test run."""

import os

# Tensors in tests are small: a second thread only waits, and takes the core from whatever else runs. Set before torch
# is imported, so that processes started by tests inherit it; OMP_NUM_THREADS=2 pytest ... decides otherwise.
os.environ.setdefault("OMP_NUM_THREADS", "1")
