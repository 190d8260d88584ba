"""What is measured is measured on copies, so that no cache holds what a model would read from memory."""

from types import SimpleNamespace

import torch

from weft.fusion.timing import LARGEST, in_turn


class OnACard(torch.Tensor):
    """A tensor that says that it is on a GPU."""

    device = torch.device("cuda")

    def clone(self):
        return torch.clone(self.as_subclass(torch.Tensor)).as_subclass(OnACard)


def on_a_card(*sizes):
    return torch.zeros(*sizes).as_subclass(OnACard)


def test_small_weights_are_copied_until_the_cache_is_full(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(L2_cache_size=1 << 20))
    x, weight = on_a_card(64), on_a_card(1 << 16)  # a quarter of the cache
    copies = in_turn([x, weight], [1])
    assert len(copies) == 9 and copies[0][1] is weight and all(one[0] is x for one in copies)
    assert len({one[1].data_ptr() for one in copies}) == 9
    assert len(in_turn([x, x])) == LARGEST  # not more
    assert len(in_turn([on_a_card(1 << 20)])) == 1  # which fills the cache alone
    assert in_turn([torch.zeros(3)]) != [] and len(in_turn([torch.zeros(3)])) == 1
