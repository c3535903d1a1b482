#!/usr/bin/python3
"""Configs between cbk and Python, both ways: what PyYAML and json write, cbk reads; what cbk writes, they read.

Usage: config_interop.py --cbk PATH [--seed N]
"""
import argparse
import copy
import datetime
import json
import math
import os
import random
import re
import subprocess
import sys
import tempfile

import yaml

# Exponents that PyYAML takes for text: cbk reads them as floats, as their writers meant them.
EXPONENT = re.compile(r"^(?:[-+]?[0-9][0-9_]*(?:\.[0-9_]*)?|\.[0-9][0-9_]*)[eE][-+]?[0-9]+$")

SCRIPT = """
local config = require("cbk").config
for i = 1, #arg, 2 do
  local ok, err = pcall(function()
    config.save(config.load(arg[i]), arg[i + 1], { overwrite = true })
  end)
  if not ok then
    local file = assert(io.open(arg[i + 1], "w"))
    file:write("ERROR " .. tostring(err))
    file:close()
  end
end
"""


class Cases:
    """Collects (name, input text, input suffix, output suffix, check), runs them in one process, counts."""

    def __init__(self, cbk):
        self.cbk, self.cases, self.passed, self.failed = cbk, [], 0, 0

    def add(self, name, text, source, target, check):
        self.cases.append((name, text, source, target, check))

    def run(self):
        with tempfile.TemporaryDirectory() as folder:
            script = os.path.join(folder, "script.lua")
            with open(script, "w") as f:
                f.write(SCRIPT)
            paths = []
            for i, (_, text, source, target, _) in enumerate(self.cases):
                paths += [f"{folder}/{i}.in.{source}", f"{folder}/{i}.out.{target}"]
                with open(paths[-2], "w", encoding="utf-8", newline="") as f:
                    f.write(text)
            for start in range(0, len(paths), 400):
                subprocess.run([self.cbk, "run", script, *paths[start:start + 400]], check=True, timeout=300)
            for i, (name, text, _, _, check) in enumerate(self.cases):
                with open(paths[2 * i + 1], encoding="utf-8", errors="replace", newline="") as f:
                    self.judge(name, text, f.read(), check)
        print(f"{self.passed} passed, {self.failed} failed")
        return 1 if self.failed or not self.passed else 0

    def judge(self, name, text, out, check):
        try:
            problem = check(out)
        except Exception as error:  # a reader that gives up is a finding
            problem = f"{type(error).__name__}: {error}"
        if not problem:
            self.passed += 1
            return
        self.failed += 1
        print(f"FAILED {name}: {problem}\n--- in\n{text[:600]}\n--- out\n{out[:600]}")


def same(a, b):
    """Equal with kinds (1, 1.0 and True differ), NaN equal to itself, and the same order of keys."""
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return list(a) == list(b) and all(type(x) is type(y) for x, y in zip(a, b)) and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, float):
        return a.hex() == b.hex() if not math.isnan(a) else math.isnan(b)
    return a == b


def meant(value):
    """What cbk makes of a tree that PyYAML read: exponents are floats."""
    if isinstance(value, dict):
        return {meant(k): meant(v) for k, v in value.items()}
    if isinstance(value, list):
        return [meant(v) for v in value]
    if isinstance(value, str) and EXPONENT.match(value):
        return float(value.replace("_", ""))
    return value


def as_json(value):
    """The same tree after json: keys are text, dates are text."""
    if isinstance(value, dict):
        return {k if isinstance(k, str) else json.loads(json.dumps({k: 0}).split(":")[0][1:]): as_json(v) for k, v in value.items()}
    if isinstance(value, list):
        return [as_json(v) for v in value]
    return value


def expect(wanted, read):
    def check(out):
        if out.startswith("ERROR"):
            return "refused"
        found = read(out)
        return None if same(found, wanted) else f"wanted {wanted!r:.400}\nfound {found!r:.400}"
    return check


def as_pyyaml(text):
    """What PyYAML reads, or an error where it gives one; DEVIATIONS say otherwise."""
    if text in DEVIATIONS:
        wanted = DEVIATIONS[text][0]
        return refused if wanted is REFUSED else expect(wanted, yaml.safe_load)
    try:
        wanted = meant(yaml.safe_load(text))
    except Exception:  # some values end in a ValueError; a list that holds itself in a RecursionError
        return refused
    return expect(wanted, lambda out: meant(yaml.safe_load(out)))


def refused(out):
    return None if out.startswith("ERROR") else "was not refused"


STRINGS = ["", " ", "a", "a b", " a", "a ", "1", "1.0", "1e-5", "1e5", "1.5e3", "-.5", "0x1F", "0o17", "017", "08", "1_000", "1:30", "1:30.5", "true", "Yes", "no", "on", "y", "N", "null", "~", "None", ".inf",
           ".nan", "-.INF", "2024-01-31", "2024-01-31 10:00:00", "=", "<<", "- a", "-", "?", "? a", ":", "a:", "a: b", "a:b", ": a", "a #b", "#a", "a#b", "[a]", "{a}", "a, b", "a]", "&a", "*a", "!a", "!!str a", "|", ">",
           "'a'", '"a"', "it's", 'say "x"', "%a", "@a", "`a`", "a\nb", "a\nb\n", "a\n\nb", "\n", "\na", "a\n\n", " a\nb", "a\n b", "a \nb", "a\tb", "\ta", "a\\b", "\x00", "\x07", "\x1b[0m", "\x7f", "\xa0", "ü",
           "größe", "日本語", "𝄞", "\ufeff", "---", "--- a", "...", "... a", "a" * 300, "x " * 100, "k" * 1500, "{{ messages }}\n{% for m in x %}\n  {{ m }}\n{% endfor %}", "C:\\dir", "http://x/y?z=1#t", "a: 'b'", "+1", "+", "1.", ".5", "0.", "1e", "12e03", "\r", "a\r\nb"]
FLOATS = [0.0, -0.0, 1.0, -1.5, 1e-5, 1e-08, 1.5e-7, 1e16, 1e15, 123456789.123, 1e22, 1e300, 5e-324, 0.1, 1 / 3, 3e8, float("inf"), float("-inf"), float("nan"), 2.0 ** 60]
INTS = [0, 1, -1, 2 ** 31, 2 ** 53 + 1, 2 ** 63 - 1, -2 ** 63, 2 ** 64, 10 ** 40, -10 ** 40]
DATES = [datetime.date(2024, 1, 31), datetime.datetime(2024, 1, 31, 1, 2, 3)]


def scalar(r, dates):
    kind = r.randrange(9)
    if kind < 3:
        return r.choice(STRINGS)
    if kind == 3:
        return "".join(r.choice("ab01 .:-#'\"\n[]{},&*!|>%@_eE+x~\\é") for _ in range(r.randrange(12)))
    if kind == 4:
        return r.choice(INTS)
    if kind == 5:
        return r.choice(FLOATS)
    if kind == 6:
        return r.uniform(-10, 10) * 10 ** r.randrange(-20, 20)
    return copy.copy(r.choice([True, False, None] + (DATES if dates else [])))


def tree(r, depth=0, dates=True):
    kind = r.randrange(6) if depth < 5 else 0
    if depth == 0:
        kind = r.choice([2, 4])
    if kind < 2:
        return scalar(r, dates)
    if kind < 4:
        return [tree(r, depth + 1, dates) for _ in range(r.randrange(5))]
    keys = [r.choice([r.choice(STRINGS), f"key_{r.randrange(50)}", r.randrange(100), None, 2.5]) if dates else r.choice([r.choice(STRINGS), f"k{i}"]) for i in range(r.randrange(6))]
    return {key: tree(r, depth + 1, dates) for key in keys}


# What people write by hand: read by both, compared as PyYAML sees cbk's copy of it.
DOCUMENTS = [
    "a: 1 # note\n# whole line\nb: [1, 2.0, x, 'y', \"z\\n\\x41\\u00e9\"]\n", "a: {b: c, d: [e, {f: g}], h: }\n", "- - a\n  - b\n-\n  - c\n- {}\n", "a: &x\n  p: 1\n  q: 2\nb:\n  <<: *x\n  q: 3\n",
    "base: &b {a: 1, b: 2}\nmore: &m {b: 3, c: 4}\nall: {x: 0, <<: [*b, *m], a: 9}\n", "list: &l [1, 2]\nagain: *l\n", "a: |\n  one\n   two\n\n  three\nb: >\n  folded\n  text\n\n  para\n\n    kept\nc: |-\n  x\nd: >-\n  x\n  y\ne: |+\n  x\n\n",
    "a: |2\n    x\n  y\n", "a:\n- 1\n- 2\nb:\n  - 3\n", "a: plain\n  over\n  lines\nb: 'single\n  quoted\n\n  over'\nc: \"double\n  quoted \\\n  over\"\n", "? a\n: b\n? long\n", "a: ~\nb:\nc: null\nd: ''\n", "yes: no\noff: on\n7: 2\n1.5: x\n~: y\n",
    "a: 0x1F\nb: 017\nc: 0b11\nd: 1_000\ne: 1:30\nf: 1:30.5\ng: 08\nh: 0o17\ni: +5\nj: -0\n", "a: 1.\nb: .5\nc: -.5\nd: 1.5e+3\ne: .inf\nf: -.Inf\ng: .NaN\nh: 1_0.5\n", "a: 2024-01-31\nb: 2024-01-31 01:02:03\nc: '2024-01-31'\n",
    "a: !!str 1\nb: !!int '2'\nc: !!float 3\nd: !!bool yes\ne: !!null x\nf: !!seq [1]\ng: !!map {x: 1}\n", "a: !!set {x, y}\nb: !!binary aGVsbG8=\n", "---\na: 1\n...\n", "%YAML 1.1\n---\na: 1\n", "\ufeffa: 1\n", "a: 'it''s'\nb: \"\\\"\"\n", "a: b#c\nb: c #d\nc: http://x.y/z\n", "[a, b]\n", "just text\n", "# only a comment\n", "", "a: \"\\t\\r\\n\\0\\e\\_\\N\\L\\P\\U0001d11e\\/\"\n",
    "{a: 1, b: [2, 3], 'c': \"d\", e: {f: g}}\n", "a: [\n  1,\n  2,\n]\nb: {\n  x: 1,\n}\n", "a: [b: c, d]\n", "key with spaces: value with spaces\n", "a:   b   \nc: d\n", "a: x - b\n", "a: a:b\n",
    "trainer:\n  init:\n    backend:\n      backend_type: CSX\n    model:\n      name: gpt2\n      hidden_size: 768\n    optimizer:\n      AdamW:\n        betas: [0.9, 0.95]\n        eps: 1.0e-08\n",
]
# PyYAML reads these as text, cbk as floats; YAML keeps the spelling.
EXPONENTS = ["1e-5", "1E5", "6.0e5", "3e8", "-2e-3", "+1e3", "1.e5", ".5e5", "1_0e2", "1e+16"]

# What a config may hold that people rarely write: PyYAML's safe_load and cbk see the same, or both refuse.
SCALARS = [
    # numbers
    "0o17", "0777", "0778", "-0777", "0x_1F", "0x", "0b1_1", "0b2", "1_000", "_1", "1__0", "1:30", "1:30:59", "-1:30", "1:60", "01:30", "0:30", "1:30.5", "190:20:30.15", "1:2:3.", ".5", "-.5", "+.5",
    "5.", "1._5", "1_0.5", "1.5e+3", "1.e+3", ".5e-3", "1.5E-3", ".inf", "-.Inf", "+.INF", ".nan", "-.nan", ".NaN", ".Nan", "inf", "nan", "1.2.3", "0.", "00", "0_", "-0", "+0", "12345678901234567890", "1 000", "1,000", "0xFFFFFFFFFFFFFFFFFF",
    # tags
    "!!str 1", "!!str", "!!int '0x1F'", "!!int 1.5", "!!int x", "!!float 1", "!!float 1:30", "!!float x", "!!bool 'yes'", "!!bool maybe", "!!null ''", "!!null x", "!!seq [1]", "!!seq {a: 1}", "!!map {a: 1}", "!!map [1]", "! 12",
    "!!timestamp 2024-01-31", "!!timestamp x", "!!binary aGVsbG8=", "!!binary |\n  aGVs\n  bG8=\n", "!!binary 'a*b'", "!!binary aGVsbG8", "!!set {x, y}", "!!set {x: 1}", "!!set [x]", "!!set {x, x}", "!!omap [b: 1, a: 2]", "!!omap [b: 1, b: 2]",
    "!!omap {b: 1}", "!!omap [1]", "!!omap [{a: 1, b: 2}]", "!!pairs [b: 1, b: 2]", "!!pairs []", "!!omap []", "!!pairs x", "!!python/tuple [1]", "!!python/name:os.system x", "!x 1", "!<tag:yaml.org,2002:int> 7", "%TAG ! tag:yaml.org,2002:\n---\n!int '7'",
    "%TAG !e! tag:example.org:\n---\n!e!x 7", "!!merge x", "!!value x", "!!yaml x",
]
SNIPPETS = [
    # words
    "[true, True, TRUE, tRue, yes, Yes, YES, yEs, on, On, ON, oN, y, Y]", "[false, False, FALSE, no, No, NO, off, Off, OFF, n, N]", "[null, Null, NULL, nUll, ~, none, None, nil]", "[, ]", "{a: , b: ~}", "=", "a: =",
    # dates
    "2024-01-31", "2024-1-31", "2001-12-14t21:59:43.10-05:00", "2001-12-14 21:59:43.10 -5", "2001-12-15 2:59:43.10", "2024-01-31T10:00", "2024-13-01", "2024-02-30", "2024-01-31 25:00:00", "'2024-01-31'",
    # flow
    "[1,,2]", "[,1]", "[1,]", "[1,,]", "{a: 1,, b: 2}", "{,}", "{a: 1,}", "{a, b}", "{a: 1, b}", "[a: 1, b]", "[a: , b]", "{a: [b, , c]}", "[{a: 1,,}]", "['a','b']", "[a b, c d]", "{a: {b: {c: d}}}", "{'a':1}", "{\"a\":1}", "[a, [b, [c]]]", "[1, 2", "{a: 1", "[1]]", "{a: 1}}", "[? a : b]", "{? a : b}", "{? a}",
    "[\n1,\n2\n]", "{a: 'x\n  y'}", "[a #c\n, b]", "{a: b#c}", "[a:b]", "{a:b}", "[-1, - 1]", "[- a]",
    # keys
    "a: 1\na: 2\n", "a: 1\nb: 2\na: 3\n", "{a: 1, a: 2}", "1: a\n1.0: b\n", "1: a\ntrue: b\n", "? a\n: b\n", "? |\n  a\n: b\n", "? [a]\n: b\n", "? {a: b}\n: c\n", "null: a\n~: b\n", "'': a\n", ": a\n", "a:\n  b: 1\n c: 2\n", "a: b: c\n", "a : b\n", "a  :   b\n", "? a\n? b\n", "-1: a\n", "0x1: a\n", "1.5: a\n", "!!binary aGk=: 1\n",
    # anchors and merges
    "a: &x 1\nb: *x\n", "- &x [1]\n- *x\n", "a: &x {p: 1}\nb: {<<: *x}\n", "a: &x {p: 1, q: 2}\nb: {<<: *x, p: 3}\n", "a: &x {p: 1}\nb: {p: 3, <<: *x}\n", "a: &x {p: 1}\nb: &y {p: 2, q: 2}\nc: {<<: [*x, *y]}\n", "a: &x {p: 1}\nb: &y {<<: *x, q: 2}\nc: {<<: *y}\n",
    "<<: {a: 1}\nb: 2\n", "<<: 1\n", "<<: [1]\n", "<<: [{a: 1}, {a: 2, b: 3}]\n", "<<: {a: 1}\n<<: {b: 2}\n", "'<<': {a: 1}\n", "[<<]", "a: <<\n", "<<: []\n", "<<: ~\n", "*x", "&x a", "a: &x\nb: *x\n", "&x a: b\nc: *x\n", "a: &x 1\nb: &x 2\nc: *x\n", "a: *x\nb: &x 1\n", "a: &x [*x]\n", "a: &x !!str 1\nb: *x\n", "a: !!str &x 1\n", "a: & x\n",
    # blocks
    "a: |\n  x\n   y\n\n  z\n", "a: |-\n  x\n", "a: |+\n  x\n\n", "a: >\n  x\n  y\n\n  z\n", "a: >-\n  x\n   y\n  z\n", "a: >+\n  x\n\n", "a: >+\n  x\n\n\nb: 1\n", "a: >+\n\n  x\n   y\n\n\n", "a: >+\n", "a: >+\n\n\n", "- >2+\n   x\n\n- y\n", "- >+2\n   x\n\n\n# c\n- y\n", "a: !!str >+ # c\n  x\n\n", "a: >+\n  x", "a: >\n\n\nb: 1\n", "a: >-\n\n  \nb: 1\n", "a: >+\n  x\n  ", "a: |\n  x", "a: |+\n  x", "a: |+\n  x\n  ", "a: >\n  x", "a: >\n  x\n  ", "a: >-\n  x\n  ", "a: |\n  x\n   ", "a: |-\n  x", "a: >+\n  x\n...\n", "a: |1\n  x\n", "a: |2-\n   x\n", "a: |-2\n   x\n", "a: |0\n x\n", "a: | # note\n  x\n", "a: |\n", "a: |\nb: 1\n", "a: >\n\n  x\n", "a: |\n  x\n y\n", "a: |\n\tx\n", "|\n x\n", ">\n x\n y\n", "- |\n x\n- y\n",
    # plain and quoted texts
    "a: x\n  y\n", "a: x\n\n  y\n", "a: 'x\n\n  y'\n", "a: \"x\\n\\ty\\x41\\u00e9\\U0001d11e\"\n", "a: \"\\q\"\n", "a: \"\\xZZ\"\n", "a: 'it''s'\n", "a: 'x\n", "a: \"x\n", "a: x #c\n", "a: x#c\n", "a: #c\n", "a: -x\n", "a: -\n", "a: ?x\n", "a: ? x\n", "a: x: y\n", "a: x:y\n", "a: @x\n", "a: `x\n", "a: %x\n", "%x: 1\n", "a: &\n", "a: *\n", "a: !\n", "a: |x\n", "a: >x\n", "a: [\n", "a: ]\n", "a: }\n", "a: ,\n", "a: x,y\n", "a: x]\n",
    "a:\tb\n", "\ta: b\n", "a:\n\t- b\n", "-\ta\n", "a: b\tc\n", "a: 'b\tc'\n", "a: \x7f\n", "a: \x85\n", "a: \u2028b\n", "a: \ufeffb\n", "a: \U0001f600\n",
    # documents
    "", "---\n", "...\n", "--- a\n", "---\na: 1\n...\n", "a: 1\n---\nb: 2\n", "--- a\n--- b\n", "a\n...\nb\n", "%YAML 1.1\n---\na\n", "%YAML 1.2\n---\na\n", "%YAML 2.0\n---\na\n", "%YAML 1.1\na\n", "%FOO x\n---\na\n", "# c\n", "a: 1\n# c\n", "--- |\n x\n", "---a\n", "a: 1\n---\n", "---\n---\n",
    # lists
    "- a\n- b\n", "-\n", "- - a\n  - b\n", "a:\n- b\nc: d\n", "a:\n - b\n- c\n", "- a\nb: c\n", "- a: 1\n  b: 2\n- c\n", "- a\n - b\n", "-a\n", "- - - a\n",
]
# snippet: (what cbk makes of it, or REFUSED; why)
REFUSED = object()
DEVIATIONS = {
    "=": ("=", "PyYAML has a tag for '=' and cannot construct it; it is a text"),
    "a: =": ({"a": "="}, "the same"),
    "[<<]": (["<<"], "PyYAML has a tag for '<<' and cannot construct it where it merges nothing; it is a text"),
    "a: <<\n": ({"a": "<<"}, "the same"),
    "a: ! 12\n": ({"a": "12"}, "the tag '!' makes a text of anything; PyYAML takes no notice of it"),
    "a: !\n": ({"a": ""}, "the same"),
    ": a\n": ({None: "a"}, "YAML allows an empty key"),
    "a: &x 1\nb: &x 2\nc: *x\n": ({"a": 1, "b": 2, "c": 2}, "YAML allows an anchor to be set again"),
    "a:\tb\n": ({"a": "b"}, "YAML allows tabs within a line"),
    "-\ta\n": (["a"], "the same"),
    "a: b\tc\n": ({"a": "b\tc"}, "YAML allows tabs in texts"),
    "a: \x85\n": ({"a": "\x85"}, "lines end with a newline, since YAML 1.2"),
    "a: \u2028b\n": ({"a": "\u2028b"}, "the same"),
    "a: \ufeffb\n": (REFUSED, "a byte order mark within a text is no text"),
    "...\n": (None, "the end of no document is no document"),
}
REFUSED_YAML = ["a: 1\n---\nb: 2\n", "a: !!python/object/apply:os.getcwd []\n", "a: !x y\n", "a: [1\n", "a: 'b\n", "a: b: c\n", "? [a]\n: b\n", "*x\n", "a: &a [*a]\n", "a: \x01\n", "a: &x 1\nb: *y\n", "\tb: 1\n", "a: @x\n", "a: `x`\n", "- a\nb: c\n"]
REFUSED_JSON = ["", "{a: 1}", "{'a': 1}", '{"a": 1,}', '{"a": 1} x', "[1 2]", '{"a": 01}', '{"a": .5}', '{"a": 1.}', '{"a": +1}', '{"a": nan}', '"\n"', '{"a": 0x10}', "// x\n{}", "[" * 5000]


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--cbk", required=True)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--count", type=int, default=300)
    o = p.parse_args()
    cases, r = Cases(os.path.abspath(o.cbk)), random.Random(o.seed)

    for i, text in enumerate(DOCUMENTS):
        wanted = yaml.safe_load(text)
        cases.add(f"document {i}", text, "yaml", "yaml", expect(wanted, yaml.safe_load))
    for text in EXPONENTS:
        cases.add(f"exponent {text}", f"a: {text}\n", "yaml", "json", expect({"a": float(text.replace("_", ""))}, json.loads))
        cases.add(f"exponent {text} kept", f"a: {text}\n", "yaml", "yaml", lambda out, t=text: None if out == f"a: {t}\n" else "spelling lost")
        cases.add(f"exponent {text} quoted", f"a: '{text}'\n", "yaml", "json", expect({"a": text}, json.loads))
    # Lone surrogates: Python's json keeps them as escapes; YAML (as libyaml reads it) has no such characters.
    for value in ["\ud800", "a\udfffb", "\udc00\ud800", "\x00\ud83d\x00", "\U0001d11e\ud834"]:
        text = json.dumps({"a": value, value: [value]})
        cases.add(f"surrogates {ascii(value)}", text, "json", "json", expect(json.loads(text), json.loads))
        cases.add(f"surrogates {ascii(value)} to YAML", text, "json", "yaml", lambda out: None if out.startswith("ERROR") and "surrogate" in out else "was not refused")
    cases.add("a surrogate in YAML", 'a: "\\uD800"\n', "yaml", "json", refused)
    for text in ["1e-5", "1E5", "1e5", "1.0E+2", "0.00001", "1.5e300", "-1e-7", "1e-05", "1.0"]:
        cases.add(f"json number {text}", f'{{"a": {text}}}', "json", "yaml", expect({"a": float(text)}, yaml.safe_load))
        cases.add(f"json number {text} kept", f'{{"a": {text}}}', "json", "json", lambda out, t=text: None if f'"a": {t}\n' in out else "spelling lost")
    for text in REFUSED_YAML:
        cases.add("refused yaml", text, "yaml", "yaml", refused)
    for text in SNIPPETS + [f"a: {text}\n" for text in SCALARS]:
        cases.add(f"snippet {text!r}", text, "yaml", "yaml", as_pyyaml(text))
    for text in REFUSED_JSON:
        cases.add("refused json", text, "json", "json", refused)
    for s in STRINGS:
        cases.add(f"text {s[:20]!r}", json.dumps({"a": s, "b": [s]}), "json", "yaml", expect({"a": s, "b": [s]}, yaml.safe_load))
        if s not in ("1e-5",):
            cases.add(f"key {s[:20]!r}", json.dumps({s: 1, "z": {s: {"q": s}}}), "json", "yaml", expect({s: 1, "z": {s: {"q": s}}}, yaml.safe_load))
    for i in range(o.count):
        value = tree(r)
        style = dict(default_flow_style=r.choice([False, True, None]), indent=r.choice([2, 4, 7]), width=r.choice([20, 80, 10000]), allow_unicode=r.choice([False, True]), sort_keys=False)
        text = yaml.safe_dump(value, **style)
        # PyYAML writes the text "1e-5" without quotes; whoever reads it back gets a float from cbk.
        wanted = meant(yaml.safe_load(text))  # not `value`: PyYAML folds some long texts wrongly
        cases.add(f"yaml {i}", text, "yaml", "yaml", lambda out, w=wanted: expect(w, lambda t: meant(yaml.safe_load(t)))(out))
        plain = tree(r, dates=False)
        dumped = json.dumps(plain, indent=r.choice([None, 2, 4]), ensure_ascii=r.choice([False, True]))
        cases.add(f"json {i}", dumped, "json", "json", expect(plain, json.loads))
        cases.add(f"json to yaml {i}", dumped, "json", "yaml", expect(plain, yaml.safe_load))
        cases.add(f"yaml to json {i}", yaml.dump(plain, sort_keys=False, default_style='"' if r.random() < 0.5 else None), "yaml", "json", expect(meant(as_json(plain)), lambda t: meant(json.loads(t))))
    return cases.run()


if __name__ == "__main__":
    sys.exit(main())
