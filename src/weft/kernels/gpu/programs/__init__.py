"""Programs of attention: forward, gradients, a few rows against many keys, the gradient of sinks."""
