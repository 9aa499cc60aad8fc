#!/usr/bin/env python3
"""Opens pages of 'kvcanary diff --html' in headless Chromium and looks at what they drew.

Goal: no console error, map, findings and layers drawn from the data, pointer, keys and zoom work,
nothing wider than the window at 1280 and 400 pixels, light and dark. Method: that of check_html.py,
a probe at the end of a copy of the page. Exit 0 good, 1 not, 77 without Chromium (1 where
KVC_REQUIRE_ALL is set). Standard library only.
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import check_html
from check_html import CATCH, DATA, Bad, facts_of, framed, require

PROBE = """<script>(function () {
  const all = (selector) => [...document.querySelectorAll(selector)];
  const canvas = document.querySelector("canvas"), tip = document.querySelector(".tip");
  const text = () => tip.style.visibility === "visible" ? tip.textContent : null;
  const facts = {drawn: document.documentElement.dataset.drawn || null, maps: all("canvas").length,
    verdict: document.querySelector("#verdict h2").textContent,
    level: document.querySelector("#verdict").className,
    findings: all("#found tbody tr").length, layers: all("#layers tbody tr").length,
    overflow: document.documentElement.scrollWidth - document.documentElement.clientWidth};
  if (canvas) {
    const colors = () => {
      const copy = document.createElement("canvas");
      [copy.width, copy.height] = [canvas.width, canvas.height];
      const paint = copy.getContext("2d", {willReadFrequently: true});
      paint.drawImage(canvas, 0, 0);
      return new Set(new Uint32Array(
        paint.getImageData(0, 0, copy.width, copy.height).data.buffer)).size;
    };
    const key = (name) => canvas.dispatchEvent(new KeyboardEvent("keydown", {key: name}));
    const box = canvas.getBoundingClientRect();
    facts.colors = colors();
    canvas.dispatchEvent(new PointerEvent("pointermove", {bubbles: true,
      clientX: box.left + box.width * .6, clientY: box.top + box.height * .3}));
    facts.pointed = text();
    canvas.dispatchEvent(new PointerEvent("pointerleave"));
    facts.left = text();
    key("ArrowRight");
    facts.first = text();
    key("ArrowDown");
    facts.second = text();
    key("Escape");
    all("button")[0].click();
    facts.zoomed = document.querySelector(".controls span").textContent;
  }
  facts.errors = window.probeErrors;
  const out = document.createElement("template");
  out.id = "probe";
  out.setAttribute("data-facts", JSON.stringify(facts));
  document.body.append(out);
  if (parent !== window) parent.document.body.append(out);
})();</script>"""

PAIRS = [("smol-seq-f16.bin", "smol-seq-f16.flip-k.bin", "3", 1),
         ("smol-seq-f16.bin", "smol-seq-q8rot.bin", "3", 0),
         ("tl-seq-swa.bin", "tl-seq-swa.swap-v-base.bin", "1", 1),
         ("tl-seq-f16.bin", "tl-seq-swa.bin", "2", 2)]


def probed(source):
    return source.replace("<head>", "<head>" + CATCH, 1).replace("</body>", PROBE + "</body>", 1)


def check_facts(facts, data, code):
    columns = sum(len(m["first"]) > 0 and len(m["rows"]) > 0 for m in data["maps"])
    wanted = {"drawn": "yes", "maps": columns, "verdict": data["verdict"].replace("_", " "),
              "level": ["good", "bad", "warn"][code], "findings": len(data["findings"]),
              "layers": sum(line["compared"] for line in data["layers"]), "errors": []}
    for name, value in wanted.items():
        require(facts[name] == value, f"{name}: drawn {facts[name]!r}, data say {value!r}")
    require(facts["overflow"] <= 0, f"the page is {facts['overflow']} pixels too wide")
    if columns:
        require(facts["colors"] > 2, "the map is blank")
        require(facts["pointed"] and "position" in facts["pointed"], "no tooltip")
        require(facts["left"] is None, "the tooltip stays when the pointer leaves")
        line = data["maps"][0]["rows"][0]
        require(facts["first"].startswith(f"layer {line['layer']} {line['tensor']}"), "no keys")
        require(facts["second"] != facts["first"], "the arrow keys do not move")


def check_page(browser, folder, page, code, thorough):
    source = page.read_text(encoding="utf-8")
    data = json.loads(DATA.search(source).group(1))
    require("http" not in source.replace("http-equiv", ""), "the page names an address")
    check_facts(facts_of(browser, folder, probed(source), "--window-size=1280,900"), data, code)
    if not thorough:  # starting a browser takes longer than all the rest
        return
    check_facts(facts_of(browser, folder, probed(source), "--blink-settings=preferredColorScheme=0"),
                data, code)
    check_facts(facts_of(browser, folder, framed(probed(source), 400)), data, code)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--command", required=True)
    parser.add_argument("--data", type=Path, default=Path("data/llamacpp"))
    arguments = parser.parse_args()
    browser = check_html.find_browser()
    if not browser:
        print("SKIP html_diff: no Chromium (apt-get install chromium)")
        return 1 if os.environ.get("KVC_REQUIRE_ALL") else 77
    with tempfile.TemporaryDirectory(prefix="kvc_html_", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        for a, b, heads, code in PAIRS:
            page = folder / "diff.html"
            done = subprocess.run([arguments.command, "diff", arguments.data / a, arguments.data / b,
                                   "--heads", heads, "--html", page], capture_output=True, check=False)
            try:
                require(done.returncode == code, f"exit {done.returncode}, not {code}")
                check_page(browser, folder, page, code, (a, b, heads, code) == PAIRS[0])
            except (Bad, subprocess.SubprocessError) as error:
                print(f"{a} {b}: {error}", file=sys.stderr)
                return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
