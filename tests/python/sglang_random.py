"""Random arguments for SGLang's launchers, as torch tensors on the CPU and SGLang's own classes.

Each function makes one case: a dictionary of keywords of the launcher. What its outputs are says
:data:`OUTPUTS`. Most cases are sound; some hold what SGLang refuses, some what only its reference
accepts (integers of other widths, strided tensors, batches larger than their plan). Left out is
what SGLang leaves to chance: indices outside a tensor (docs/sglang.md says what becomes of them).
"""

import sglang_reference
import torch

UNTOUCHED = -777
INT64 = 1 << 62


class Cases:
    """Draws from one seed."""

    def __init__(self, rng):
        self.rng = rng
        ops = "kernels.ops.kv_canary"
        self.verify_module = sglang_reference.module(f"{ops}.verify")
        self.write_module = sglang_reference.module(f"{ops}.write")
        self.consts = sglang_reference.module(f"{ops}.consts")

    # ---- small draws ----

    def int(self, low, high):
        """low <= drawn <= high."""
        return self.rng.randint(low, high)

    def chance(self, percent):
        return self.rng.random() * 100 < percent

    def ints(self, count, low, high):
        return [self.rng.randint(low, high) for _ in range(count)]

    def vector(self, values, dtype=torch.int64):
        """The values as a tensor, now and then every second element of a longer one."""
        made = torch.tensor(values, dtype=dtype)
        if not self.chance(3):
            return made
        wider = torch.zeros(2 * len(values), dtype=dtype)
        wider[::2] = made
        return wider[::2]

    def length(self, values):
        """An input of lengths or rows: int64, now and then int32, which the reference takes."""
        return self.vector(values, torch.int32 if self.chance(3) else torch.int64)

    def table(self, rows, columns, low, high):
        made = torch.randint(low, high + 1, (rows, columns), dtype=torch.int32)
        if self.chance(10):  # a part of a wider table
            wider = torch.zeros(rows, columns + 3, dtype=torch.int32)
            wider[:, :columns] = made
            made = wider[:, :columns]
        return made

    def untouched(self, count, dtype=torch.int64):
        return torch.full((count,), UNTOUCHED, dtype=dtype)

    # ---- plan ----

    def plan(self):
        bs, rows, columns = self.int(0, 6), self.int(2, 6), self.int(1, 20)
        capacity = self.int(1, 80)
        requests = self.int(0, 5) if self.chance(5) else bs + self.int(0, 3)
        slots = self.int(5, 40)
        mapped = self.chance(40)
        expected = self.chance(50)
        token_columns = self.int(1, 24)
        offset = self.rng.choice([0, 0, 1, -1, 2])
        least = self.rng.choice([-2, 0, 0])  # of lengths and slots
        past = 1 if self.chance(2) else 0  # a prefix or a length past its table
        mapping = None
        if mapped:
            known = slots + 1 if self.chance(90) else self.int(1, slots)
            mapping = self.vector(self.ints(known, -1, slots))
        case = {
            "verify_plan_out": self.verify_module.VerifyPlan(
                verify_slot_indices=self.untouched(capacity),
                verify_expected_tokens=self.untouched(capacity),
                verify_expected_positions=self.untouched(capacity),
                verify_prev_slot_indices=self.untouched(capacity),
                verify_num_valid=self.untouched(1, torch.int32),
                enable=self.untouched(1, torch.int32),
            ),
            "write_plan_out": self.write_module.WritePlan(
                write_offsets=self.untouched(requests + 1),
                write_seed_slot_indices=self.untouched(requests),
                write_num_valid_reqs=self.untouched(1, torch.int32),
            ),
            "req_pool_indices": self.length(self.ints(bs, 0, rows - 1)),
            "prefix_lens": self.length(self.ints(bs, least, columns + past)),
            "extend_seq_lens": self.length(self.ints(bs, least, 5)),
            "req_to_token": self.table(rows, columns, max(least, -1), slots),
            "swa_window_size": self.int(-1, columns + 2) if mapped or self.chance(3) else 0,
            "full_to_swa_index_mapping": mapping,
            "verify_capacity": capacity,
            "req_to_verify_expected_tokens": (
                self.table(rows, token_columns, -1, 99) if expected else None
            ),
            "req_to_verify_expected_tokens_valid_lens": (
                self.length(self.ints(bs, -1, token_columns + past)) if expected else None
            ),
            "kv_token_id_vs_position_offset": offset,
        }
        if self.chance(1):
            case["verify_capacity"] += self.int(-1, 1)
        if self.chance(1):
            case["req_to_verify_expected_tokens_valid_lens"] = None
        return case

    # ---- sources, contexts ----

    def source(self, slots):
        dtype = self.rng.choice([torch.uint8, torch.float16, torch.bfloat16, torch.int32])
        width, page = dtype.itemsize, self.int(1, 4)
        token_bytes = 16 * self.int(1, 3)
        row_bytes = page * token_bytes + (16 * self.int(0, 2) if self.chance(30) else 0)
        stride = row_bytes + (16 * self.int(1, 3) if self.chance(30) else 0)
        rows = (slots + page - 1) // page
        pool = torch.randint(0, 256, (rows, stride), dtype=torch.uint8).view(dtype)
        tensor = pool[:, : row_bytes // width]
        if self.chance(5):  # every second element of wider rows
            wider = torch.zeros(rows, 2 * pool.shape[1], dtype=dtype)
            wider[:, ::2] = pool
            tensor = wider[:, ::2][:, : row_bytes // width]
        return self.verify_module.RealKvSource(
            tensor=tensor,
            page_size=page,
            num_bytes_per_token=token_bytes,
            read_bytes=16 * self.int(1, token_bytes // 16),
        )

    def context(self, slots):
        words = 3 if self.chance(1) else self.rng.choice([4, 4, 4, 5, 6])
        records = torch.randint(-INT64, INT64, (slots, words))
        if self.chance(50):
            records[:] = 0
        buffer = records.view(torch.uint8)
        if self.chance(5):
            buffer = torch.cat([buffer, buffer], 1)[:, : 8 * words]
        ring = self.int(0, 6)
        sources = self.rng.choice([0, 0, 1, 1, 2, 4, 5 if self.chance(10) else 3])
        return self.verify_module.VerifyOrWriteContext(
            canary_buf=buffer,
            kernel_kind=self.verify_module.CanaryLaunchTag(self.int(0, 11)),
            violation_ring=torch.zeros(ring, 8, dtype=torch.int64),
            violation_write_index=torch.tensor(
                [self.int(0, ring + 2) if self.chance(30) else 0], dtype=torch.int32
            ),
            slot_run_counter=torch.tensor([self.int(0, 99)]),
            kernel_run_counter=torch.tensor([self.int(0, 99)]),
            real_kv_sources=tuple(self.source(slots) for _ in range(sources)),
            real_kv_hash_mode=self.consts.RealKvHashMode(self.int(0, 2)),
            enable_chain_position_assert=torch.tensor([self.int(0, 1)], dtype=torch.int32),
        )

    # ---- write ----

    def write(self):
        slots, requests = self.int(2, 20), self.int(1, 5)
        lengths = self.ints(requests, 0, 5)
        offsets = [0]
        for length in lengths:
            offsets.append(offsets[-1] + length)
        total = offsets[-1]
        context = self.context(slots)
        tokens = total + self.int(0, 3)
        chosen = self.ints(tokens, 0, slots - 1)
        if tokens <= slots and self.chance(80):
            chosen = self.rng.sample(range(slots), tokens)
        if self.chance(30):
            chosen = [-1 if self.chance(20) else slot for slot in chosen]
        if self.chance(3) and not context.real_kv_sources:
            self.rng.shuffle(offsets)  # offsets that fall
        start = self.int(0, 30)
        positions = self.vector(
            [start + i if self.chance(80) else self.int(-INT64, INT64) for i in range(tokens)]
        )
        input_ids = self.vector(
            [self.int(-INT64, INT64) if self.chance(20) else self.int(0, 9) for _ in range(tokens)]
        )
        asserting = self.chance(50)
        expected = {"expected_input_tokens": None, "expected_input_positions": None}
        if asserting or self.chance(2):
            for name, actual in zip(expected, (input_ids, positions), strict=True):
                copy = actual.clone()
                if tokens and self.chance(60):
                    copy[self.int(0, tokens - 1)] += self.int(-1, 1)
                expected[name] = copy if self.chance(98) else None
        return {
            "context": context,
            "plan": self.write_module.WritePlan(
                write_offsets=self.vector(offsets),
                write_seed_slot_indices=self.vector(
                    [self.int(-2, slots - 1) for _ in range(requests)]
                ),
                write_num_valid_reqs=torch.tensor(
                    [requests if self.chance(80) else self.int(-1, requests + 1)], dtype=torch.int32
                ),
            ),
            "input_ids": input_ids,
            "positions": positions,
            "out_cache_loc": self.vector(chosen),
            "enable_write_input_assert": asserting,
            **expected,
        }

    # ---- verify ----

    def predecessors(self, case):
        """Slot -> the slot before it, of those that a write stores."""
        offsets, slots = case["plan"].write_offsets.tolist(), case["out_cache_loc"].tolist()
        seeds, before = case["plan"].write_seed_slot_indices.tolist(), {}
        for r in range(max(0, min(int(case["plan"].write_num_valid_reqs), len(seeds)))):
            last = seeds[r]
            for slot in slots[offsets[r] : offsets[r + 1]]:
                if slot >= 0:
                    before[slot] = last
                    last = slot
        return before

    def verify(self, write):
        """Over records that `write`, a launcher, made; some of it damaged afterwards."""
        case = self.write()
        context = case["context"]
        sound = {
            "enable_write_input_assert": False,
            "expected_input_tokens": None,
            "expected_input_positions": None,
        }
        if context.canary_buf.shape[1] >= 32 and len(context.real_kv_sources) <= 4:
            write(**{**case, **sound})
        slots, capacity = context.canary_buf.shape[0], self.int(1, 12)
        before = self.predecessors(case)
        records = context.canary_buf.clone().view(torch.int64)
        if self.chance(30):
            context.canary_buf[self.int(0, slots - 1), self.int(0, 23)] ^= 1 << self.int(0, 7)
        if context.real_kv_sources and self.chance(20):
            tensor = context.real_kv_sources[0].tensor
            tensor[self.int(0, tensor.shape[0] - 1), self.int(0, tensor.shape[1] - 1)] = self.int(
                0, 127
            )
        damage = self.rng.choice([0, 0, 20])  # per cent of the entries
        chosen = self.ints(capacity, 0, slots - 1)
        if before and not damage:
            chosen = self.rng.choices(list(before), k=capacity)
        return {
            "context": context,
            "plan": self.verify_module.VerifyPlan(
                verify_slot_indices=self.vector(chosen),
                verify_expected_tokens=self.vector(
                    [
                        -1
                        if self.chance(30)
                        else self.int(-1, 9)
                        if self.chance(damage)
                        else int(records[s, 0])
                        for s in chosen
                    ]
                ),
                verify_expected_positions=self.vector(
                    [self.int(0, 9) if self.chance(damage) else int(records[s, 1]) for s in chosen]
                ),
                verify_prev_slot_indices=self.vector(
                    [
                        self.int(-2, slots - 1)
                        if s not in before or self.chance(damage)
                        else before[s]
                        for s in chosen
                    ]
                ),
                verify_num_valid=torch.tensor(
                    [capacity if self.chance(80) else self.int(-1, capacity + 1)], dtype=torch.int32
                ),
                enable=torch.tensor([1 if self.chance(90) else self.int(0, 7)], dtype=torch.int32),
            ),
            "check_verify_expected_token": self.chance(60),
        }

    # ---- scatter ----

    def scatter(self):
        bs, rows, columns = self.int(0, 8), self.int(1, 12), self.int(0, 10)
        if self.chance(1):
            bs = self.int(509, 513)
        offsets = [self.int(0, 3) if self.chance(20) else 0]
        for _ in range(bs):
            offsets.append(offsets[-1] + self.int(0, 6))
        tokens = offsets[-1] + (self.int(0, 3) if self.chance(20) else 0)
        if self.chance(5):
            self.rng.shuffle(offsets)
        if self.chance(2):
            offsets.append(offsets[-1])
        chosen = self.ints(bs, 0, rows - 1)
        if bs <= rows and self.chance(80):
            chosen = self.rng.sample(range(rows), bs)
        case = {
            "flat_in": torch.randint(-INT64, INT64, (tokens,))
            if self.chance(10)
            else torch.randint(0, 1 << 31, (tokens,)),
            "offsets": torch.tensor(offsets),
            "req_pool_indices": torch.tensor(chosen, dtype=torch.int64),
            "pool_out": torch.full((rows, columns + self.int(0, 3)), UNTOUCHED, dtype=torch.int32)[
                :, :columns
            ],
        }
        if self.chance(4):
            name = self.rng.choice(list(case))
            case[name] = self.rng.choice(
                [
                    lambda t: t.to(torch.float32),
                    lambda t: t.unsqueeze(0),
                    lambda t: t.reshape(-1)[:0],
                    lambda t: t.to(torch.int32 if t.dtype == torch.int64 else torch.int64),
                ]
            )(case[name])
        return case

    # ---- arguments that are only checked ----

    def source_arguments(self):
        """Keywords of RealKvSource, sound or not."""
        shape = [self.int(0, 4), 16 * self.int(1, 9) if self.chance(80) else 8 * self.int(0, 9)]
        if self.chance(5):
            shape = self.rng.choice([shape[:1], [*shape, self.int(1, 3)]])
        dtype = self.rng.choice([torch.uint8, torch.float16, torch.float32, torch.int64])
        tensor = torch.zeros(shape, dtype=dtype)
        if self.chance(20) and len(shape) > 1:
            stride = 16 * self.int(0, 9) if self.chance(70) else self.int(0, 80)
            tensor = torch.zeros(4 * 160 + 1600, dtype=dtype).as_strided(
                shape, [stride, self.rng.choice([1, 1, 2]), *[1] * (len(shape) - 2)]
            )
        token_bytes = 16 * self.int(1, 3) if self.chance(93) else self.int(-20, 40)
        return {
            "tensor": tensor,
            "page_size": self.int(1, 2) if self.chance(95) else self.int(-1, 1),
            "num_bytes_per_token": token_bytes,
            "read_bytes": (
                16 * self.int(1, max(token_bytes // 16, 1))
                if self.chance(93)
                else self.int(-16, 80)
            ),
        }

    def offsets_arguments(self):
        """Keywords of launch_plan_offsets_kernel, with none to three faults."""
        bs, rows, requests = self.int(0, 3), self.int(1, 3), self.int(1, 4)
        if self.chance(1):
            bs = 4097
        bs = min(bs, requests) if self.chance(90) else bs
        tensors = {
            "req_pool_indices": torch.zeros(bs, dtype=torch.int64),
            "prefix_lens": torch.zeros(bs, dtype=torch.int64),
            "extend_seq_lens": torch.zeros(bs, dtype=torch.int64),
            "req_to_token": torch.zeros(rows, self.int(0, 4), dtype=torch.int32),
            "full_to_swa_index_mapping": (
                torch.zeros(self.int(0, 5), dtype=torch.int64) if self.chance(50) else None
            ),
            "out_verify_offsets_scratch": torch.zeros(4097, dtype=torch.int64),
            "out_write_offsets": torch.zeros(requests + 1, dtype=torch.int64),
            "out_write_seed_slot_indices": torch.zeros(requests, dtype=torch.int64),
            "out_verify_num_valid": torch.zeros(1, dtype=torch.int32),
            "out_verify_enable": torch.zeros(1, dtype=torch.int32),
            "out_write_num_valid_reqs": torch.zeros(1, dtype=torch.int32),
        }
        changes = [
            lambda t: t.to(self.rng.choice([torch.int32, torch.int64, torch.float16])),
            lambda t: torch.zeros(2 * t.numel() + 2, dtype=t.dtype)[::2],
            lambda t: t.unsqueeze(1),
            lambda t: torch.zeros(self.int(0, 5), dtype=t.dtype),
            lambda t: torch.zeros(2, 3, dtype=t.dtype).T,
        ]
        for _ in range(self.int(0, 3)):
            name = self.rng.choice(list(tensors))
            if tensors[name] is not None:
                tensors[name] = self.rng.choice(changes)(tensors[name])
        return {
            **tensors,
            "swa_window_size": 0,
            "verify_capacity": self.int(0, 9) if self.chance(95) else -1,
        }


#: The tensors of a case that a launcher writes, as paths.
OUTPUTS = {
    "plan": [
        f"verify_plan_out.{name}"
        for name in (
            "verify_slot_indices",
            "verify_expected_tokens",
            "verify_expected_positions",
            "verify_prev_slot_indices",
            "verify_num_valid",
            "enable",
        )
    ]
    + [
        f"write_plan_out.{name}"
        for name in ("write_offsets", "write_seed_slot_indices", "write_num_valid_reqs")
    ],
    "write": [
        f"context.{name}"
        for name in (
            "canary_buf",
            "violation_ring",
            "violation_write_index",
            "slot_run_counter",
            "kernel_run_counter",
        )
    ],
    "scatter": ["pool_out"],
}
OUTPUTS["verify"] = OUTPUTS["write"]
