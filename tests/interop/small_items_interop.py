#!/usr/bin/python3
"""Files of tens of thousands of small items: commands take memory by the size of the file, and time by the number of items.

usage: small_items_interop.py --cbk PATH
"""
import argparse
import json
import os
import string
import struct
import subprocess
import sys
import tempfile
import zipfile

from harness import Run

COUNT = 40_000
LIMIT = 100_000_000  # bytes, and four times the size of what is read


LLAMA = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 24, "hidden_size": 16, "num_attention_heads": 2,
         "num_hidden_layers": 1, "intermediate_size": 32, "tie_word_embeddings": False}


def write_tensors(path, names, value):
    """A safetensors file of tensors of one float."""
    header = {name: {"dtype": "F32", "shape": [1], "data_offsets": [4 * i, 4 * i + 4]} for i, name in enumerate(names)}
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + b"".join(struct.pack("<f", value(i)) for i in range(len(names))))


def word(i):
    out = ""
    while True:
        out += string.ascii_lowercase[i % 26]
        i //= 26
        if i == 0:
            return out


class Items:
    def __init__(self, run):
        self.run = run
        write_tensors(run.path("items.safetensors"), [f"layer_{i}.weight_{i * 7919 % COUNT}_x" for i in range(COUNT)], lambda i: 1.0)
        for name, line in {"maps": "  k{}: {{}}\n", "numbers": "  k{0}: {0}\n", "nulls": "  k{}:\n"}.items():
            with open(run.path(name + ".yaml"), "w", encoding="utf-8") as file:
                file.write("model:\n" + "".join(line.format(i) for i in range(COUNT)))
        with open(run.path("config.json"), "w", encoding="utf-8") as file:
            json.dump({"model_type": "llama", **{f"k{i}": {"a": i} for i in range(COUNT)}}, file)
        for name, field, count in ("near", "num_hidden_layer{}", 99_000), ("few", "num_hidden_layer{}", 60_000), ("many", "{:x}", 200_000):
            with open(run.path(name + ".json"), "w", encoding="utf-8") as file:
                json.dump({**LLAMA, **{field.format(i): 2 for i in range(count)}}, file, separators=(",", ":"))
        with open(run.path("llama.json"), "w", encoding="utf-8") as file:
            json.dump(LLAMA, file)
        run.call("new", run.path("llama.json"), "-o", run.path("llama.safetensors"))
        run.call("copy", run.path("items.safetensors"), run.path("items.pt"))
        with zipfile.ZipFile(run.path("dtypes.pt"), "w") as archive:
            archive.writestr("archive/data.pkl", b"\x80\x02](" + b"ctorch\nint8\n" * 190_000 + b"e.")
            archive.writestr("archive/version", "3\n")
        with open(run.path("make.lua"), "w", encoding="utf-8") as file:
            file.write("""local cbk = require "cbk"
local root = cbk.dict()
for i = 1, 60000 do root["k" .. i] = cbk.dict { a = i, b = cbk.list { i } } end
for _, name in ipairs { "a.pt", "b.pt" } do cbk.create(name, { root = root }):commit() end""")
        subprocess.run([run.cbk, "run", "make.lua"], cwd=run.folder, check=True)

    def deep(self, layers):
        """A model of so many layers of very small tensors, nine in each."""
        name = f"deep{layers}"
        with open(self.run.path(name + ".json"), "w", encoding="utf-8") as file:
            json.dump({**LLAMA, "vocab_size": 4, "hidden_size": 4, "num_attention_heads": 1, "intermediate_size": 4, "num_hidden_layers": layers}, file)
        self.run.call("new", self.run.path(name + ".json"), "-o", self.run.path(name + ".safetensors"))
        return name

    def peak(self, command, seconds):
        """The peak memory of a command, in bytes."""
        with tempfile.TemporaryFile() as errors:
            limited = ["sh", "-c", f'ulimit -t {seconds}; exec "$@"', "sh", self.run.cbk, *command]
            process = subprocess.Popen(limited, cwd=self.run.folder, stdout=subprocess.DEVNULL, stderr=errors)
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            errors.seek(0)
            said = errors.read()
            assert process.returncode in (0, 1) or b"takes more memory than 100 MB" in said, f"status {process.returncode}: {said[-300:]!r}"
        return usage.ru_maxrss * 1024

    def check_peak(self, command, files, seconds=20):
        size = sum(os.path.getsize(self.run.path(file)) for file in files)
        peak = self.peak(command, seconds)
        assert peak <= LIMIT + 4 * size, f"took {peak / 1e6:.0f} MB, where {(LIMIT + 4 * size) / 1e6:.0f} are allowed"

    def infer_peak(self, count, value, names):
        """The peak of `cbk infer` for two files of this many tensors."""
        for side in "ab":
            write_tensors(self.run.path(side + ".safetensors"), [names(side, i) for i in range(count)], lambda i: value(side, i))
        return self.peak(["infer", "a.safetensors", "b.safetensors", "-o", "mine.lua", "--overwrite"], 30)


INFERRED = {
    "equal tensors, numbered": (lambda side, i: 1.0, lambda side, i: f"{side}.{i}.w"),
    "equal tensors, named": (lambda side, i: 1.0, lambda side, i: f"{side}_{word(i)}"),
    "equal names, other values": (lambda side, i: i + (side == "b") / 2, lambda side, i: f"x_{word(i)}"),
    "equal tensors of layers and experts": (lambda side, i: 1.0, lambda side, i: f"{side}.{i // 64}.x.{i % 64}.w"),
    "names of 2,000 numbers": (lambda side, i: 1.0 + i % 7, lambda side, i: f"{side}{i}" + ".1" * 2000 if i < 20 else f"{side}{i}"),
}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--cbk", required=True)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run = Run(args.cbk, folder)
        items = Items(run)
        for file in "items.safetensors", "items.pt":
            for command in (["check", "--json", file], ["complete", "--", "show", file, ""], ["stats", "--json", file],
                            ["report", file, "-o", file + ".html"], ["ls", "--json", file]):
                run.check(" ".join(command), lambda command=command, file=file: items.check_peak(command, [file, "config.json"]))
        for name in "maps", "numbers", "nulls":
            command = ["convert-config", "--model", "llama", "--src-fmt", "cs-2.0", "--tgt-fmt", "cs-2.4", name + ".yaml", "-o", name]
            run.check(" ".join(command), lambda command=command, name=name: items.check_peak(command, [name + ".yaml"]))
        command = ["convert-config", "--model", "llama", "--src-fmt", "hf", "--tgt-fmt", "cs-2.4", "config.json", "-o", "hf"]
        run.check(" ".join(command), lambda: items.check_peak(command, ["config.json"]))
        for config in "near.json", "few.json", "many.json":
            for command in (["convert-config", config, "--to", "cs-2.5", "-o", "out"],
                            ["convert", "llama.safetensors", "--config", config, "--to", "cs-2.5", "-o", "out"],
                            ["identify", "llama.safetensors", "--config", config]):
                run.check(" ".join(command), lambda command=command, config=config: items.check_peak(command, ["llama.safetensors", config]))
        for layers in 1_200, 2_000:
            name = items.deep(layers)
            for options in [], ["--dry-run"], ["--debug"], ["--explain", "*.0.*"]:
                command = ["convert", name + ".safetensors", "--config", name + ".json", "--to", "cs-2.5", "-o", name, "--overwrite", *options]
                run.check(" ".join(command), lambda command=command, name=name: items.check_peak(command, [name + ".safetensors"], 40))
        for command in ["ls", "dtypes.pt"], ["check", "dtypes.pt"], ["check", "--json", "dtypes.pt"]:
            run.check(" ".join(command), lambda command=command: items.check_peak(command, ["dtypes.pt"]))
        command = ["infer", "a.pt", "b.pt", "-o", "mine.lua"]
        run.check(" ".join(command), lambda: items.check_peak(command, ["a.pt", "b.pt"]))
        for side, value in {"a": 1.0, "b": 2.0}.items():
            write_tensors(run.path(side + ".safetensors"), [f"w.{i}" for i in range(60000)], lambda i, value=value: value)
        for command in ["diff", "a.safetensors", "b.safetensors"], ["diff", "--json", "a.safetensors", "b.safetensors"]:
            run.check(" ".join(command), lambda command=command: items.check_peak(command, command[-2:]))
        for name, (value, names) in INFERRED.items():
            def grows_linearly(value=value, names=names):
                few, many = items.infer_peak(1000, value, names), items.infer_peak(4000, value, names)
                assert many <= LIMIT + 8 * 4000 * 100, f"{many / 1e6:.0f} MB for 4,000 tensors"
                assert many - few <= 5 * max(few - 15_000_000, 10_000_000), f"{few / 1e6:.0f} MB for 1,000 tensors, {many / 1e6:.0f} MB for 4,000"
            run.check("infer of " + name, grows_linearly)
        return run.close()


if __name__ == "__main__":
    sys.exit(main())
