#!/usr/bin/python3
"""Opens the page of `cbk report` in headless Chromium: no messages on its console, no request to anywhere, the tree opens, the filter
works, it fits a phone, and keys out of a checkpoint stay texts.

Usage: report_interop.py --cbk PATH [--shots FOLDER]
"""
import argparse
import base64
import json
import os
import sys
import tempfile
import time

import browser as browsers
import harness

HOSTILE = ["<script>window.hacked = 1</script>", "<img src=x onerror=window.hacked=1>", "</script><script>window.hacked = 1</script>",
           "'\"><b id=injected>x</b>", "\u202etxt.exe", "\x1b[31mred", "<!--", "\u2028window.hacked = 1//", "__proto__.polluted", "constructor"]

MODEL = """
local root = cbk.dict()
for layer = 0, 11 do
  for i, name in ipairs { "attn.q.weight", "attn.k.weight", "mlp.up.weight", "norm.weight" } do
    root[("model.layers.%d.%s"):format(layer, name)] = cbk.randn({ 64, 32 }, { mean = 0, std = SCALE * (1 + layer / 4), seed = layer * 9 + i })
  end
end
root["lm_head.weight"] = cbk.randn({ 100, 64 }, { mean = 0, std = 1, seed = 3 })
root["model.broken"] = cbk.tensor { 1, 0 / 0, 3 }
root["ids"] = cbk.tensor({ 1, 2, 3 }, { dtype = "int64" })
root["wave"], root["nothing"] = cbk.full({ 2 }, 1, { dtype = "complex64" }), cbk.full({ 0, 3 }, 1)
for _, key in ipairs(KEYS) do root[key] = cbk.full({ 2, 2 }, 1) end
cbk.create(arg[1], { root = root }):commit()
"""


def make(run):
    keys = ", ".join('"' + "".join(f"\\{byte:03d}" for byte in key.encode()) + '"' for key in HOSTILE)
    for name, scale in (("new.pt", 0.02), ("old.pt", 0.03)):
        script = run.path("make.lua")
        with open(script, "w", encoding="utf-8") as file:
            file.write('local cbk = require "cbk"\n' + MODEL.replace("KEYS", "{ " + keys + " }").replace("SCALE", str(scale)))
        run.call("run", script, run.path(name))
    run.call("report", run.path("new.pt"), run.path("old.pt"), "-o", run.path("report.html"))
    run.call("report", run.path("new.pt"), "--no-stats", "-o", run.path("plain.html"))
    make_run(run)


def make_run(run):
    """What `cbk train` leaves, with hostile texts."""
    os.mkdir(run.path("trained"))
    facts = {"model": HOSTILE[0], "parameters": 5, "seed": 0, "samples": 9, "first_step": 0, "last_step": 400, "command": " ".join(HOSTILE) + " wide" * 90}
    for name, text in (("run.json", json.dumps(facts)), ("params.yaml", "trainer: " + HOSTILE[1] + " wide" * 90 + "\n"),
                       ("metrics.jsonl", "".join(json.dumps({"step": i, "loss": 4 - i / 100, "lr": 0.1}) + "\n" for i in range(1, 300)))):
        with open(run.path(os.path.join("trained", name)), "w", encoding="utf-8") as file:
            file.write(text)
    run.call("report", run.path("trained"), "-o", run.path("of_run.html"))


def url(run, name):
    return "file://" + run.path(name)


def is_quiet(page, run, name):
    """Nothing on the console, and nothing but the file itself is asked for."""
    page.open(url(run, name))
    time.sleep(0.3)
    page.evaluate("1")
    bad = [event for event in page.events if event["method"] in ("Log.entryAdded", "Runtime.consoleAPICalled", "Runtime.exceptionThrown")]
    assert not bad, bad
    asked = {event["params"]["request"]["url"] for event in page.events if event["method"] == "Network.requestWillBeSent"}
    assert asked == {url(run, name)}, asked


def equal(found, expected):
    assert found == expected, (found, expected)


def tree_opens(page):
    names = "[...document.querySelectorAll('#tensors > details > summary .key')].map(e => e.textContent)"
    assert "model" in page.evaluate(names), page.evaluate(names)
    page.evaluate("""(() => {
      const open = (place, name) => {
        const one = [...place.children].find(e => e.tagName === 'DETAILS' && e.querySelector('summary .key').textContent === name);
        one.open = true;
        return new Promise(done => setTimeout(() => done(one), 50));
      };
      return open(document.getElementById('tensors'), 'model').then(m => open(m, 'layers')).then(l => open(l, '11'))
        .then(l => open(l, 'attn')).then(a => open(a, 'q.weight')).then(w => { window.leaf = w; });
    })()""")
    text = page.evaluate("window.leaf.textContent")
    assert "model.layers.11.attn.q.weight" in text and "norm" in text, text
    assert page.evaluate("window.leaf.querySelectorAll('svg rect').length") >= 10


def typed(text):
    return f"(() => {{ const f = document.getElementById('filter'); f.value = {text!r}; f.dispatchEvent(new Event('input')); }})()"


def filter_works(page):
    count = "document.querySelectorAll('#found > details').length"
    page.evaluate(typed("attn q"))
    equal(page.evaluate(count), 12)
    assert page.evaluate("document.getElementById('tensors').hidden")
    page.evaluate("(() => { const b = document.getElementById('bad'); b.checked = true; b.dispatchEvent(new Event('input')); })()")
    equal(page.evaluate(count), 0)
    page.evaluate(typed(""))
    equal(page.evaluate("[...document.querySelectorAll('#found .key')].map(e => e.textContent)"), ["model.broken"])
    page.evaluate("(() => { const b = document.getElementById('bad'); b.checked = false; b.dispatchEvent(new Event('input')); })()")
    page.evaluate("(() => { const b = document.getElementById('order'); b.value = 'norm'; b.dispatchEvent(new Event('input')); })()")
    equal(page.evaluate("document.querySelector('#found .key').textContent"), "lm_head.weight")
    page.evaluate("(() => { const b = document.getElementById('order'); b.value = 'key'; b.dispatchEvent(new Event('input')); })()")
    assert not page.evaluate("document.getElementById('tensors').hidden")


def charts(page):
    equal(page.evaluate("document.querySelectorAll('#charts .chart').length"), 4)
    equal(page.evaluate("document.querySelectorAll('#charts .chart:first-child circle').length"), 12)


def findings_and_differences(page):
    text = page.evaluate("document.body.innerText")
    for part in "1 of 3 elements is NaN", "Differences to old.pt", "different tensors (", "largest in ":
        assert part in text, part


RUN = os.path.join(os.path.dirname(harness.HERE), "firstuse", "inputs.lua")


def training(page, run):
    """A checkpoint of a run: its step, and states below the names of their parameters; no list has more rows than a screen."""
    run.call("run", RUN, run.folder)
    run.call("report", run.path("run/checkpoint_2000.mdl"), run.path("run/checkpoint_1000.mdl"), "-o", run.path("run.html"))
    page.open(url(run, "run.html"))
    time.sleep(0.3)
    text = page.evaluate("document.body.innerText")
    for part in ("2000\nglobal step", "0.00048\nlearning rate", "131072\nloss scale", "weight_decay\n0.1, 0", "growth_tracker\n17",
                 "different states, optimizer.state (591)", "NaN in A only: 16"):
        assert part in text, (part, text[:2000])
    rows = "document.querySelectorAll('#tensors details').length"
    assert page.evaluate(rows) <= 12, page.evaluate(rows)
    page.evaluate("""(async () => {
      for (let round = 0; round < 12; round += 1) {
        for (const one of document.querySelectorAll('#tensors details:not([open])')) {
          const name = one.querySelector('summary').textContent;
          if (!/dtype|float32/.test(name)) one.open = true;
        }
        await new Promise(done => setTimeout(done, 30));
      }
    })()""")
    shown = page.evaluate("document.getElementById('tensors').innerText")
    assert "proj_q_dense_layer" in shown and "optimizer.state" in shown, shown[:1000]
    assert not page.evaluate("[...document.querySelectorAll('#tensors .key')].some(e => /^state\\.?\\d+$/.test(e.textContent))")
    charts_shown = page.evaluate("[...document.querySelectorAll('#charts .key')].map(e => e.textContent)")
    assert "optimizer.state.transformer_decoder.layers.*.norm1.bias.exp_avg" in charts_shown, charts_shown


def long_list(page, run):
    with open(run.path("long.lua"), "w", encoding="utf-8") as file:
        file.write("local cbk = require 'cbk'\nlocal root = cbk.dict()\nfor i = 1, 291 do root['state.' .. i .. '.w'] = cbk.full({ 2 }, i) end\n"
                   "cbk.create(arg[1], { root = root }):commit()\n")
    run.call("run", run.path("long.lua"), run.path("long.pt"))
    run.call("report", run.path("long.pt"), "-o", run.path("long.html"))
    page.open(url(run, "long.html"))
    time.sleep(0.3)
    page.evaluate("(() => { document.querySelector('#tensors details').open = true; })()")
    time.sleep(0.2)
    count = "document.querySelectorAll('#tensors details').length"
    assert page.evaluate(count) <= 50, page.evaluate(count)
    assert "251 more" in page.evaluate("document.getElementById('tensors').innerText")
    page.evaluate("(() => { [...document.querySelectorAll('#tensors summary')].find(e => e.textContent === '251 more').parentNode.open = true; })()")
    time.sleep(0.2)
    assert page.evaluate(count) >= 291, page.evaluate(count)


def keys_are_texts(page):
    for key in HOSTILE:
        page.evaluate(typed(key[-12:].replace("\x1b", "").replace("\u202e", "").replace("\u2028", "")))
        page.evaluate("document.querySelectorAll('#found > details').forEach(e => { e.open = true; })")
    page.evaluate(typed(""))
    page.evaluate("new Promise(done => setTimeout(done, 100))")
    equal(page.evaluate("[typeof window.hacked, document.getElementById('injected'), typeof ({}).polluted]"), ["undefined", None, "undefined"])
    equal(page.evaluate("[document.scripts.length, document.images.length]"), [2, 0])
    assert "\u202e" not in page.evaluate("document.documentElement.outerHTML")


def policy(page):
    """What a page might do if a text got through."""
    page.events = []
    page.evaluate("(() => { const s = document.createElement('script'); s.textContent = 'window.hacked = 1'; document.body.append(s); })()")
    page.evaluate("fetch('https://example.com/').catch(() => 0)")
    equal(page.evaluate("typeof window.hacked"), "undefined")
    assert any("Content Security Policy" in str(event) for event in page.events), page.events


def fits(page, width, height, scheme, shot):
    page.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600)
    page.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
    seen = page.evaluate("document.documentElement.scrollWidth")
    assert seen <= width, f"{seen} pixels on a screen of {width}"
    light = page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    equal(light, scheme == "light")
    if shot:
        with open(shot, "wb") as file:
            file.write(base64.b64decode(page.call("Page.captureScreenshot", captureBeyondViewport=True)["data"]))


def of_run(page, run, width, scheme, shot):
    page.open(url(run, "of_run.html"))
    fits(page, width, 1600, scheme, shot)
    assert page.evaluate("window.hacked") is None and page.evaluate("document.getElementById('injected')") is None
    equal(page.evaluate("document.querySelectorAll('polyline').length"), 2)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--cbk", required=True)
    parser.add_argument("--shots", help="a folder for screenshots")
    args = parser.parse_args()
    path = browsers.program()
    if not path:
        print("FAIL no Chromium is installed (chromium-headless-shell; `bash bootstrap test` installs it)\n0 passed, 1 failed")
        return 1
    with tempfile.TemporaryDirectory() as folder:
        run = harness.Run(args.cbk, os.path.realpath(folder))
        make(run)
        page = browsers.Browser(path)
        try:
            for name in "of_run.html", "plain.html", "report.html":
                run.check(f"{name} is quiet", lambda name=name: is_quiet(page, run, name))
            for check in tree_opens, filter_works, charts, findings_and_differences, keys_are_texts:
                run.check(check.__name__, lambda check=check: check(page))
            for width, height, scheme in (1100, 1400, "light"), (1100, 1400, "dark"), (390, 1600, "light"), (390, 1600, "dark"):
                shot = args.shots and os.path.join(args.shots, f"report-{width}-{scheme}.png")
                run.check(f"{width} pixels, {scheme}", lambda w=width, h=height, s=scheme, f=shot: fits(page, w, h, s, f))
            run.check("policy", lambda: policy(page))
            for width, scheme in (1100, "light"), (390, "dark"):
                shot = args.shots and os.path.join(args.shots, f"run-{width}-{scheme}.png")
                run.check(f"a run, {width} pixels", lambda w=width, s=scheme, f=shot: of_run(page, run, w, s, f))
            run.check("training", lambda: training(page, run))
            run.check("long list", lambda: long_list(page, run))
        finally:
            page.close()
        return run.close()


if __name__ == "__main__":
    sys.exit(main())
