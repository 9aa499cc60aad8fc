"""Our own plain forms of the canary (csrc/base.cu): a thread a request, a thread a slot, splitmix, no reports."""
import torch

from harness import base, must, stream

COVERED = {0: 0, 1: 16}


def covered(case):
    return COVERED.get(int(case.mode), case.source.shape[1])


def write_call(case):
    def call(i):
        offsets, seeds, valid, ids, positions, slots = case.sets[i]
        must(base().kp_plain_write(case.canary.data_ptr(), case.source.data_ptr(), case.source.shape[1], covered(case), offsets.data_ptr(), seeds.data_ptr(),
                                   seeds.numel(), ids.data_ptr(), positions.data_ptr(), slots.data_ptr(), stream()))

    return call


def write(case):
    return [{"name": "plain", "call": write_call(case), "peer": True}]


def verify(case):
    slots, tokens, positions, prev, valid = case.plan
    bad = torch.zeros(1, dtype=torch.int32, device="cuda")

    def call(i):
        must(base().kp_plain_verify(case.canary.data_ptr(), case.source.data_ptr(), case.source.shape[1], covered(case), slots.data_ptr(), tokens.data_ptr(),
                                    positions.data_ptr(), prev.data_ptr(), case.count, bad.data_ptr(), stream()))

    stamp = write_call(case)
    return [{"name": "plain", "call": call, "peer": True, "prepare": lambda: (stamp(0), bad.zero_()), "violations": lambda: int(bad.item())}]
