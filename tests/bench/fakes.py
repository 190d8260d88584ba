"""Peers that misbehave, for the worker to survive. Imported by worker processes as `fakes`."""

import os
import time
from dataclasses import dataclass
from itertools import count

from weft.bench.peers.base import PLAN, Peer, Prepared
from weft.bench.peers.sdpa import Masked


@dataclass(frozen=True)
class Fake(Masked):
    """Right, unless `fault` says otherwise."""

    fault: str = ""

    def reason_absent(self, device):
        return "nobody installed it" if self.fault == "absent" else ""

    def reasons_against(self, workload, direction, device):
        return ["not on a Friday"] if self.fault == "refuse" else []

    def different_mask(self, workload):
        return "sees one key more" if self.fault == "mask" else ""

    def prepare(self, workload, tensors):
        right, calls = super().prepare(workload, tensors).run, count()
        if self.fault == "raise":
            raise RuntimeError(f"no kernel\n{'=' * 80}\nfor this")
        if self.fault == "crash":
            os._exit(7)
        if self.fault == "hang":
            time.sleep(1000)

        def run(q, k, v):
            number = next(calls)
            if self.fault == "late crash" and number > 2:
                os.abort()
            if self.fault == "noise":
                print('{"event": "done"}', flush=True)
            out = right(q, k, v)
            return out * 1.01 if self.fault in ("wrong", "mask") else out

        return Prepared(run)


@dataclass(frozen=True)
class Plan(Peer):
    """A yardstick without tensors."""

    def reason_absent(self, device):
        return ""

    def prepare(self, workload, tensors):
        return Prepared(lambda: time.sleep(1e-3))


FAULTS = ("absent", "refuse", "mask", "raise", "crash", "hang", "late crash", "noise", "wrong")


def all_peers():
    peers = [Fake("right"), *(Fake(fault.replace(" ", "-"), fault=fault) for fault in FAULTS)]
    return {peer.name: peer for peer in [*peers, Plan("plan", kind=PLAN, default=False)]}
