#!/usr/bin/env python3
"""Opens the page of 'kvcanary replay --html' in headless Chromium and looks at what it drew.

Goal: no console error, every section drawn from its data, pointer, keys, slider and buttons work,
nothing wider than the window at 1280 and 400 pixels in light and dark, a screenshot that is not
blank. Method: a probe script is put at the end of a copy of the page; it plays the reader and
leaves what it saw as JSON, which is compared with the data block of the page.

Exit 0 good, 1 not, 77 if there is no Chromium (1 where KVC_REQUIRE_ALL is set). Standard library only.
"""
import argparse
import html
import json
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import zlib
from pathlib import Path

BROWSERS = ["chromium", "chromium-browser", "google-chrome"]
# No sandbox: the page is our own, and containers have no user namespaces. No GPU, no /dev/shm.
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
         "--hide-scrollbars", "--no-first-run", "--disable-extensions",
         "--virtual-time-budget=4000", "--enable-logging=stderr",
         "--host-resolver-rules=MAP * ~NOTFOUND"]
DATA = re.compile(r'<script id="data" type="application/json">(.*?)</script>', re.S)

# Runs inside the page. 'errors' must be caught from the start, so it goes into the head.
CATCH = """<script>window.probeErrors = [];
addEventListener("error", (event) => probeErrors.push(String(event.message)));
addEventListener("securitypolicyviolation", (event) => probeErrors.push(event.violatedDirective));
</script>"""
PROBE = """<script>(function () {
  const all = (selector) => [...document.querySelectorAll(selector)];
  const one = (selector) => document.querySelector(selector);
  const text = (selector) => one(selector) ? one(selector).textContent : null;
  const facts = {drawn: document.documentElement.dataset.drawn || null,
    title: text("#verdict h2"), level: one("#verdict").className,
    tiles: all("#figures .tile").length, faults: all("#faults tbody tr").length,
    names: all("#faults tbody strong").map((node) => node.textContent),
    summaries: all("#faults tbody td:first-child small").map((node) => node.textContent),
    slowest: all("#slowest tbody tr").length, findings: all("#findings pre").length,
    settings: all("#options dt").length, command: text("#next pre"), foot: text("#foot").length,
    leads: all(".lead").filter((node) => !node.textContent).length,
    paths: all("#timeline path").map((node) => node.getAttribute("d").length),
    overflow: document.documentElement.scrollWidth - document.documentElement.clientWidth};
  const tip = (host) => {
    const box = one(host + " .tip");
    return box && box.style.visibility === "visible" ? box.textContent : null;
  };
  const move = (node, x, y) => {
    const box = node.getBoundingClientRect();
    node.dispatchEvent(new PointerEvent("pointermove", {bubbles: true,
      clientX: box.left + box.width * x, clientY: box.top + box.height * y}));
  };
  const colors = (canvas) => {
    const copy = document.createElement("canvas"); /* reading a canvas warns unless made for it */
    [copy.width, copy.height] = [canvas.width, canvas.height];
    const paint = copy.getContext("2d", {willReadFrequently: true});
    paint.drawImage(canvas, 0, 0);
    const data = paint.getImageData(0, 0, canvas.width, canvas.height).data;
    return new Set(new Uint32Array(data.buffer)).size;
  };
  const plot = one("#timeline .plot"), canvas = one("#pool canvas");
  if (plot) {
    move(plot, .5, .3);
    facts.pointed = tip("#timeline");
    plot.dispatchEvent(new KeyboardEvent("keydown", {key: "ArrowRight", bubbles: true}));
    facts.stepped = tip("#timeline");
    plot.dispatchEvent(new PointerEvent("pointerleave"));
    facts.left = tip("#timeline");
  }
  if (canvas) {
    facts.colors = colors(canvas);
    move(canvas, .4, .4);
    facts.cell = tip("#pool");
    const slider = one("#pool input");
    facts.moments = Number(slider.max) + 1;
    slider.value = 0;
    slider.dispatchEvent(new Event("input"));
    facts.firstMoment = text("#pool .controls span");
    all("#pool button")[1].click();
    facts.ownerColors = colors(canvas);
  }
  facts.errors = window.probeErrors;
  const out = document.createElement("template");
  out.id = "probe";
  out.setAttribute("data-facts", JSON.stringify(facts));
  document.body.append(out);
  if (parent !== window) parent.document.body.append(out);
})();</script>"""


class Bad(Exception):
    """What is wrong, in one line."""


def require(condition, message):
    if not condition:
        raise Bad(message)


def find_browser():
    for name in BROWSERS:
        if shutil.which(name):
            return shutil.which(name)
    return None


def run_browser(browser, folder, page, *flags):
    """Returns what Chromium printed to stdout; a line on the console of the page is an error."""
    command = [browser, *FLAGS, f"--user-data-dir={folder / 'profile'}", *flags, page.as_uri()]
    done = subprocess.run(command, capture_output=True, timeout=120, check=False)
    log = done.stderr.decode("utf-8", "replace")
    require(done.returncode == 0, f"{browser} ended with {done.returncode}: {log[-400:]}")
    console = [line for line in log.splitlines() if ":CONSOLE" in line]
    require(not console, "console: " + "; ".join(console))
    return done.stdout.decode("utf-8", "replace")


def probed(source):
    return source.replace("<head>", "<head>" + CATCH, 1).replace("</body>", PROBE + "</body>", 1)


def framed(source, width):
    """In a frame, since a window of Chromium has a least width; the frame shares our origin."""
    return (f'<!doctype html><body style="margin:0"><iframe width={width} height=900 '
            f'style="border:0" srcdoc="{html.escape(source)}"></iframe></body>')


def facts_of(browser, folder, source, *flags):
    page = folder / "probed.html"
    page.write_text(source, encoding="utf-8")
    dom = run_browser(browser, folder, page, "--dump-dom", *flags)
    found = re.search(r'<template[^>]* data-facts="(.*?)"', dom, re.S)
    require(found, "the probe did not run")
    return json.loads(html.unescape(found.group(1)))


def check_facts(facts, data):
    """What was drawn is what the data block says."""
    pool, rows = data["pool"], data["timeline"]["rows"]
    wanted = {
        "drawn": "yes", "title": data["verdict"]["title"], "level": data["verdict"]["level"],
        "tiles": len(data["figures"]), "faults": len(data["faults"]),
        "names": [fault["name"] for fault in data["faults"]],
        "summaries": [fault["summary"] for fault in data["faults"]],
        "slowest": len(data["slowest"]), "findings": len(data["findings"]),
        "settings": len(data["settings"]), "command": data["next"]["command"], "leads": 0,
        "errors": [],
    }
    for name, value in wanted.items():
        require(facts[name] == value, f"{name}: drawn {facts[name]!r}, data say {value!r}")
    require(facts["overflow"] <= 0, f"the page is {facts['overflow']} pixels wider than its window")
    require(facts["foot"] > 40, "the footer is empty")
    if rows:
        require(len(facts["paths"]) == 5 and max(facts["paths"]) > 20, "the timeline is empty")
        for name in ("pointed", "stepped"):
            require(facts[name] and "step" in facts[name], f"{name}: no tooltip on the timeline")
        require(facts["left"] is None, "the tooltip stays when the pointer leaves")
    if pool["snapshots"]:
        require(facts["moments"] == len(pool["snapshots"]), "the slider lacks moments")
        require(facts["firstMoment"] == f"step {pool['snapshots'][0]['step']:,}",
                f"first moment: {facts['firstMoment']}")
        require(facts["cell"] and "slot" in facts["cell"], "no tooltip on the pool")
        require(min(facts["colors"], facts["ownerColors"]) > 1, "the map of the pool is blank")


def png_colors(data):
    """(number of distinct colours, share of the most frequent one) of an 8-bit RGB(A) PNG."""
    require(data[:8] == b"\x89PNG\r\n\x1a\n", "the screenshot is no PNG")
    at, packed = 8, b""
    while at < len(data):
        length, kind = struct.unpack(">I4s", data[at:at + 8])
        body = data[at + 8:at + 8 + length]
        if kind == b"IHDR":
            width, height, depth, color, _, _, interlace = struct.unpack(">IIBBBBB", body)
            require((depth, interlace) == (8, 0) and color in (2, 6), "an unexpected kind of PNG")
        elif kind == b"IDAT":
            packed += body
        at += 12 + length
    step = 3 if color == 2 else 4
    raw, stride = zlib.decompress(packed), width * step
    before, counts = bytearray(stride), {}
    for y in range(height):
        method = raw[y * (stride + 1)]
        row = bytearray(raw[y * (stride + 1) + 1:(y + 1) * (stride + 1)])
        unfilter(method, row, before, step)
        for x in range(0, stride, step):
            pixel = bytes(row[x:x + step])
            counts[pixel] = counts.get(pixel, 0) + 1
        before = row
    return len(counts), max(counts.values()) / (width * height)


def unfilter(method, row, before, step):
    for i in range(len(row) if method else 0):
        left = row[i - step] if i >= step else 0
        up = before[i]
        if method == 1:
            guess = left
        elif method == 2:
            guess = up
        elif method == 3:
            guess = (left + up) // 2
        else:
            corner = before[i - step] if i >= step else 0
            paeth = left + up - corner
            guess = min((abs(paeth - left), 0, left), (abs(paeth - up), 1, up),
                        (abs(paeth - corner), 2, corner))[2]
        row[i] = (row[i] + guess) & 255


def check_screenshot(browser, folder, page, *flags):
    shot = folder / "page.png"
    shot.unlink(missing_ok=True)
    run_browser(browser, folder, page, f"--screenshot={shot}", "--window-size=900,700", *flags)
    require(shot.exists(), "no screenshot was written")
    colors, most = png_colors(shot.read_bytes())
    require(colors > 50 and most < .95, f"the screenshot looks blank: {colors} colours, "
            f"{most:.0%} of it one")
    return colors


def check_page(browser, folder, page):
    source = page.read_text(encoding="utf-8")
    data = json.loads(DATA.search(source).group(1))
    dark = "--blink-settings=preferredColorScheme=0"
    facts = facts_of(browser, folder, probed(source), "--window-size=1280,900", dark)
    check_facts(facts, data)
    check_facts(facts_of(browser, folder, framed(probed(source), 400)), data)
    colors = check_screenshot(browser, folder, page)
    print(f"{page.name}: {len(source):,} bytes, {facts['tiles']} figures, {facts['faults']} faults, "
          f"{facts.get('moments', 0)} moments, {colors} colours")


def check_the_check(browser, folder, page):
    """A page with an error and a blank one must not pass."""
    source = page.read_text(encoding="utf-8")
    broken = folder / "broken.html"
    broken.write_text(source.replace("drawVerdict() {", "drawVerdict() { nothing.here;", 1),
                      encoding="utf-8")
    blank = folder / "blank.html"
    blank.write_text("<!doctype html><title>blank</title>", encoding="utf-8")
    for check, path in ((check_page, broken), (check_screenshot, blank)):
        try:
            check(browser, folder, path)
        except Bad:
            continue
        raise Bad(f"{path.name} passed")


def make_pages(arguments, folder):
    """Pages of made-up results, and one of a short replay."""
    subprocess.run([arguments.made, str(folder)], check=True)
    pages = sorted(folder.glob("*.html"))
    if arguments.command:
        page = folder / "replay.html"
        done = subprocess.run([arguments.command, "replay", arguments.trace, "--requests", "12",
                               "--fault", "all", "--html", str(page)], capture_output=True,
                              check=False)
        # 1: too short a run for every fault to be injected often enough.
        require(done.returncode in (0, 1), f"the replay ended with {done.returncode}: "
                + done.stderr.decode("utf-8", "replace")[-400:])
        pages.append(page)
    return pages


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--made", required=True, help="test_html, which makes pages")
    parser.add_argument("--command", help="kvcanary, for the page of a real replay")
    parser.add_argument("--trace", default="data/mooncake_conversation_trace.jsonl")
    arguments = parser.parse_args()
    browser = find_browser()
    if not browser:
        print(f"SKIP html: none of {', '.join(BROWSERS)} is installed (apt-get install chromium)")
        return 1 if os.environ.get("KVC_REQUIRE_ALL") else 77
    with tempfile.TemporaryDirectory(prefix="kvc_html_", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        page = None
        try:
            pages = make_pages(arguments, folder)
            for page in pages:
                check_page(browser, folder, page)
            page = None
            check_the_check(browser, folder, pages[0])
        except (Bad, subprocess.SubprocessError) as error:
            print(f"{page.name if page else 'check_html'}: {error}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
