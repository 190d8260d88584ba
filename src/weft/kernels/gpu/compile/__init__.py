"""From a kernel's source to machine code: compilation, the store's key, checks for miscompiled code."""
