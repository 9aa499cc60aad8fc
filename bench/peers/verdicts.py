"""The H200 targets, cell by cell: met, excused (the same kernel without its arithmetic and checks is less than 5 % faster), missed.

Every target is a time: a number, or a share of a ceiling or a peer of the same run. `rows` are those of peers.py."""
from dataclasses import dataclass, field

import sizes

MODES = ("cold", "hot")
EXCUSE = 1.05   # times the bare form's: what our time must stay below
AHEAD = 0.99    # of the peer's time

# rope_pool_fused, bf16, with k_out: us for (32,8,128), time over SGLang's for the others; cold, hot.
ROPE = {1: (1.5, 1.15, 0.83, 0.98), 4: (1.6, 1.2, 0.84, 0.98), 16: (1.75, 1.27, 0.86, 0.98), 64: (2.0, 1.4, 0.85, 0.97), 256: (3.3, 2.35, 0.90, 0.96),
        1024: (8.0, 5.45, 0.97, 0.99), 4096: (29.0, 28.2, 0.985, 0.98), 16384: (109.5, 109.5, 0.985, 0.985), 65536: (433, 433, 0.965, 0.965)}
COPY_SHARE = {16384: 0.95, 65536: 0.945}
NARROW = (8, 1, 128)  # its targets for T >= 16384: 0.99 of SGLang's, 92 % of the copy
VERIFY = {("sweep", "none"): (27, 19), ("sweep", "partial"): (60, 57), ("prefix", "none"): (8.6, 4.6), ("prefix", "partial"): (12.5, 6.6)}
VERIFY_ALL = {"kvcanary": 0.90, "kvcanary splitmix": 0.75}
WRITE = {"1 req, 131072 tokens": (14000, None), "16 req, 131072 tokens": (1000, None), "256 req, 131072 tokens": (140, None), "1 req, 4096 tokens": (450, 450)}
WRITE_STEP = {"kvcanary": (4.0, 2.7), "kvcanary splitmix": (14, 11)}
PLAN = {64: (8.2, 4.3), 256: (11, 7.2), 1024: (30, 29)}
SCATTER = {"1x128": (1.4, 0.95), "64x2048": (2.2, 1.7), "256x8192": (8.4, 5.3), "64x131072": (28.5, 27), "2048x8192": (55.5, 55.5)}
CHECKSUM_TB_S = 4.0


@dataclass
class Cell:
    op: str
    case: str
    mode: str
    limit: float            # us
    why: str                # the limit in words
    ours: float
    bare: float
    peer: dict = field(default_factory=dict)

    @property
    def verdict(self):
        if self.ours is None or self.limit is None:
            return "not run"
        if self.ours <= self.limit:
            return "met"
        if self.bare is not None and self.ours < EXCUSE * self.bare:
            return "excused"
        return "missed"

    def json(self):
        return {"op": self.op, "case": self.case, "cache": self.mode, "target_us": self.limit, "target": self.why, "ours_us": self.ours, "bare_us": self.bare,
                "peer": self.peer.get("name"), "peer_us": self.peer.get("us"), "verdict": self.verdict}


class Run:
    def __init__(self, rows):
        self.rows = {}
        for r in rows:
            if r["suite"] != "ceilings":
                self.rows.setdefault((r["suite"], r["case"], r["mode"]), []).append(r)

    def us(self, suite, case, mode, *names):
        return min((r["us"] for r in self.rows.get((suite, case, mode), ()) if r["name"] in names), default=None)

    def copy(self, suite, case, mode):
        return min((r["us"] for r in self.rows.get((suite, case, mode), ()) if r["name"].startswith("copy") or r["name"] == "memcpy"), default=None)

    def peer(self, suite, case, mode):
        return min((r for r in self.rows.get((suite, case, mode), ()) if r.get("is_peer")), key=lambda r: r["us"], default={})

    def sglang(self, case, mode):
        return self.us("rope", case, mode, "sglang pdl", "sglang plain")

    def cell(self, suite, case, mode, name, limit, why, op=None, bare=None):
        moves = self.us(suite, case, mode, name.replace("kvcanary", "moves"))
        bare = max(filter(None, (moves, bare)), default=None)
        return Cell(op or suite, case, mode, limit, why, self.us(suite, case, mode, name), bare, self.peer(suite, case, mode))

    def cases(self, suite):
        return dict.fromkeys(case for s, case, _ in self.rows if s == suite)


def share(us, part):
    return None if us is None else us / part


def rope_cell(run, shape, tokens, mode):
    case = f"{shape_text(shape)} T={tokens}"
    sglang, copy = run.sglang(case, mode), run.copy("rope", case, mode)
    i = MODES.index(mode)
    narrow = shape == NARROW and tokens >= 16384
    limits = []
    if sglang:
        limits.append((AHEAD * sglang, "ahead of SGLang"))
    if shape == (32, 8, 128):
        limits.append((ROPE[tokens][i], f"{ROPE[tokens][i]} us"))
    else:
        ratio = 0.99 if narrow else ROPE[tokens][2 + i]
        if sglang:
            limits.append((ratio * sglang, f"{ratio} of SGLang's"))
        if tokens in COPY_SHARE and copy:
            part = 0.92 if narrow else COPY_SHARE[tokens]
            limits.append((copy / part, f"{part:.1%} of the copy"))
    limit, why = min(limits, default=(None, ""))
    return run.cell("rope", case, mode, "kvcanary", limit, why)


def shape_text(shape):
    return "(%d,%d,%d)" % shape


def rope_cells(run):
    have = run.cases("rope")
    return [rope_cell(run, shape, tokens, mode) for shape in sizes.SHAPES for tokens in sizes.TOKENS for mode in MODES
            if f"{shape_text(shape)} T={tokens}" in have]


def tokens_of(case):
    return int(case.split("T=")[1])


def stamp_cells(run):
    out = []
    for case in run.cases("rope"):
        for mode in MODES:
            plain = run.us("rope", case, mode, "kvcanary")
            if plain and tokens_of(case) >= 4096:
                out.append(run.cell("rope", case, mode, "kvcanary stamp", 1.05 * plain, "5 % over without", "stamping"))
            elif plain and tokens_of(case) <= 64:
                out.append(run.cell("rope", case, mode, "kvcanary stamp", plain + 0.4, "0.4 us more", "stamping"))
    return out


def fp8_cells(run):
    out = []
    for case in run.cases("fp8"):
        for i, mode in enumerate(MODES):
            if tokens_of(case) >= 16384:
                out.append(run.cell("fp8", case, mode, "kvcanary", share(run.copy("fp8", case, mode), 0.90), "90 % of the copy of its bytes"))
            elif tokens_of(case) <= 64:
                out.append(run.cell("fp8", case, mode, "kvcanary", (2.2, 1.5)[i], f"{(2.2, 1.5)[i]} us"))
    return out


def numbers(run, suite, case, name, limits, bare=None):
    return [run.cell(suite, case, mode, name, limit, f"{limit:g} us", bare=bare and bare(mode)) for mode, limit in zip(MODES, limits) if limit is not None]


def canary_cells(run):
    out = []
    for case in run.cases("scatter"):
        if case in SCATTER:
            out += numbers(run, "scatter", case, "kvcanary", SCATTER[case])
    for bs, limits in PLAN.items():
        case = next((c for c in run.cases("plan") if c.startswith(f"bs {bs} ")), None)
        out += numbers(run, "plan", case, "kvcanary", limits) if case else []
    for case in run.cases("verify"):
        label, coverage = case.split()[0], case.split(", ")[1]
        if (label, coverage) in VERIFY:
            out += numbers(run, "verify", case, "kvcanary", VERIFY[label, coverage])
        else:
            for name, part in VERIFY_ALL.items():
                out += [run.cell("verify", case, mode, name, share(run.us("verify", case, mode, "read rows"), part), f"{part:.0%} of the row read",
                                 "verify" + name.replace("kvcanary", "")) for mode in MODES]
    for case in run.cases("write"):
        if not case.endswith(", all"):
            continue
        if case.startswith("64 req, 64"):
            for name, limits in WRITE_STEP.items():
                cells = numbers(run, "write", case, name, limits)
                for c in cells:
                    c.op += name.replace("kvcanary", "")
                out += cells
        for start, limits in WRITE.items():
            if case.startswith(start):
                out += numbers(run, "write", case, "kvcanary", limits, lambda mode, case=case: run.us("write", case, mode, "chain only", "chain merged"))
    for case in run.cases("checksum"):
        items, row = int(case.split()[0]), int(case.split()[-1])
        out.append(run.cell("checksum", case, "cold", "kvcanary", items * row / CHECKSUM_TB_S / 1e6, f"{CHECKSUM_TB_S} TB/s"))
    return out


def judge(rows):
    run = Run(rows)
    return rope_cells(run) + stamp_cells(run) + fp8_cells(run) + canary_cells(run)


def standing(rows):
    """rope_pool_fused against SGLang: cells ahead by more than 1 %, level, behind by more than 1 %."""
    run = Run(rows)
    out = {"ahead": [], "level": [], "behind": []}
    for case in run.cases("rope"):
        for mode in MODES:
            ours, theirs = run.us("rope", case, mode, "kvcanary"), run.sglang(case, mode)
            if ours and theirs:
                ratio = ours / theirs
                out["ahead" if ratio < AHEAD else "behind" if ratio > 2 - AHEAD else "level"].append(f"{case} {mode} {ratio:.3f}")
    return out


def time_text(us):
    return "-" if us is None else f"{us:.2f}" if us < 100 else f"{us:.0f}"


def columns(cell):
    bare = "-" if not cell.bare or not cell.ours else f"{cell.bare / cell.ours:.2f}"
    peer = f"{time_text(cell.peer['us'])} {cell.peer['name']}" if cell.peer else "-"
    return [cell.op, cell.case, cell.mode, f"{time_text(cell.limit)} ({cell.why})", time_text(cell.ours), time_text(cell.bare), bare, peer, cell.verdict]


HEAD = ["operation", "case", "", "target, us", "ours", "bare", "bare/ours", "best peer", "verdict"]


def summary(cells):
    """One line an operation: how many of its cells are met, excused, missed."""
    out = []
    for op in dict.fromkeys(c.op for c in cells):
        mine = [c.verdict for c in cells if c.op == op]
        out.append((op, len(mine), *(mine.count(v) for v in ("met", "excused", "missed", "not run"))))
    return out


def table(cells):
    lines = [HEAD] + [columns(c) for c in cells]
    widths = [max(len(line[i]) for line in lines) for i in range(len(HEAD))]
    return "\n".join("  ".join(text.ljust(w) for text, w in zip(line, widths)).rstrip() for line in lines)


def markdown(cells):
    rule = "|" + "---|" * len(HEAD)
    return "\n".join(["| " + " | ".join(HEAD) + " |", rule] + ["| " + " | ".join(columns(c)) + " |" for c in cells])
