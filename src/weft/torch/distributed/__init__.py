"""Attention over the ranks of a process group: what `weft.distributed` plans, run by torch.distributed."""
