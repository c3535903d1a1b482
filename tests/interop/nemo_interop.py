#!/usr/bin/python3
"""NeMo's files: archives that Python's tarfile and GNU tar wrote, in every form of tar; damage is an error with a place.

Usage: nemo_interop.py --cbk PATH
"""
import argparse
import gzip
import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile

import torch

import harness
import safetensors_file

WEIGHTS = {"encoder.weight": torch.arange(12.0).reshape(3, 4), "decoder.bias": torch.ones(3, dtype=torch.bfloat16)}
LONG = "tokenizers/" + "x" * 120 + "/" + "y" * 90 + ".model"


def state_dict():
    out = io.BytesIO()
    torch.save(WEIGHTS, out)
    return out.getvalue()


def archive(path, members, form=tarfile.PAX_FORMAT):
    with tarfile.open(path, "w", format=form) as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))


class Nemo(harness.Run):
    def whole(self, path):
        self.call("copy", path, self.path("out.safetensors"), "--overwrite")
        found = safetensors_file.load(self.path("out.safetensors"))[0]
        assert list(found) == list(WEIGHTS) and all(torch.equal(found[name], tensor) for name, tensor in WEIGHTS.items()), found

    def refused(self, words, path):
        done = self.run("copy", path, self.path("refused.pt"))
        assert done.returncode == 1 and not os.path.exists(self.path("refused.pt")), done
        for word in words:
            assert word in done.stderr, (word, done.stderr)

    def forms(self):
        for form in (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
            for prefix in ("", "./"):
                long = LONG if form != tarfile.USTAR_FORMAT else LONG[-95:]
                archive(self.path("m.nemo"), {prefix + "model_config.yaml": b"a: 1\n", prefix + long: b"abc", prefix + "model_weights.ckpt": state_dict()}, form)
                self.whole(self.path("m.nemo"))
        row = self.call("ls", self.path("m.nemo")).splitlines()[0]
        assert "nemo" in row, row

    def programs(self):
        os.makedirs(self.path("in/" + os.path.dirname(LONG)))
        for name, content in {"model_config.yaml": b"a: 1\n", "model_weights.ckpt": state_dict(), LONG: b"abc"}.items():
            with open(self.path("in/" + name), "wb") as file:
                file.write(content)
        for form in ("gnu", "pax", "oldgnu"):
            subprocess.run(["tar", "--format", form, "-C", self.path("in"), "-cf", self.path("t.nemo"), "."], check=True)
            self.whole(self.path("t.nemo"))

    def others(self):
        archive(self.path("p.nemo"), {"model_config.yaml": b"", "mp_rank_00/model_weights.ckpt": state_dict()})
        self.refused(["mp_rank_00/model_weights.ckpt", "tar xf"], self.path("p.nemo"))
        archive(self.path("d.nemo"), {"model_config.yaml": b"", "model_weights/.metadata": b""})
        self.refused(["model_weights/.metadata", "tar xf"], self.path("d.nemo"))
        archive(self.path("o.nemo"), {"sys_info": b"", "pickle": b"", "tensors": b"", "storages": b""})
        self.refused(["before 0.1.10"], self.path("o.nemo"))
        archive(self.path("n.nemo"), {"notes.txt": b"a"})
        self.refused(["no member 'model_weights.ckpt'", "'notes.txt'"], self.path("n.nemo"))
        archive(self.path("m.nemo"), {"model_weights.ckpt": state_dict()})
        with open(self.path("m.nemo"), "rb") as file, gzip.open(self.path("z.nemo"), "wb") as out:
            out.write(file.read())
        self.refused(["gzip", "unpack it first"], self.path("z.nemo"))

    def later(self):
        """Of two members with one name the later one counts; bytes are where they are said to be."""
        other = io.BytesIO()
        torch.save({"encoder.weight": torch.zeros(3, 4)}, other)
        with tarfile.open(self.path("m.nemo"), "w") as tar:
            for content in (other.getvalue(), state_dict()):
                info = tarfile.TarInfo("model_weights.ckpt")
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
        self.whole(self.path("m.nemo"))
        row = next(row for row in json.loads(self.call("ls", "--json", self.path("m.nemo")))["entries"] if row["key"] == "encoder.weight")
        with open(self.path("m.nemo"), "rb") as file:
            file.seek(row["offset"])
            assert torch.equal(torch.frombuffer(bytearray(file.read(48)), dtype=torch.float32).reshape(3, 4), WEIGHTS["encoder.weight"])

    def large(self):
        """From 8 GiB on, the size is in the attributes of a member, and 0 in its header; long attributes of others do not matter."""
        content = state_dict()
        with tarfile.open(self.path("m.nemo"), "w", format=tarfile.PAX_FORMAT) as tar:
            note = tarfile.TarInfo("note")
            note.pax_headers = {"comment": "x" * 9000, "path": "y" * 9000}
            tar.addfile(note)
            info = tarfile.TarInfo("model_weights.ckpt")
            info.size, info.pax_headers = len(content), {"size": str(len(content))}
            tar.addfile(info, io.BytesIO(content))
        with open(self.path("m.nemo"), "rb") as file:
            data = bytearray(file.read())
        at = data.index(content[:64]) - 512
        data[at + 124:at + 136] = b"00000000000\0"
        data[at + 148:at + 156] = b" " * 8
        data[at + 148:at + 156] = b"%06o\0 " % sum(data[at:at + 512])
        with open(self.path("m.nemo"), "wb") as file:
            file.write(data)
        self.whole(self.path("m.nemo"))

    def damage(self):
        archive(self.path("m.nemo"), {"model_config.yaml": b"a: 1\n", "model_weights.ckpt": state_dict()})
        with open(self.path("m.nemo"), "rb") as file:
            good = file.read()
        at = good.index(b"model_weights.ckpt")

        def changed(place, content, words):
            with open(self.path("bad.nemo"), "wb") as out:
                out.write(good[:place] + content + good[place + len(content):])
            self.refused(words, self.path("bad.nemo"))
        changed(at + 130, b"7", [f"at byte {at} of the archive is damaged"])
        changed(at + 2, b"X", ["damaged"])
        changed(at + 512 + len(state_dict()) // 2, b"\xff" * 8, ["model_weights.ckpt"])
        for size in (at + 300, at + 512 + 100):
            with open(self.path("bad.nemo"), "wb") as out:
                out.write(good[:size])
            self.refused(["it was cut short; copy or download it again" if size < at + 512 else "is it cut short?"], self.path("bad.nemo"))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--cbk", required=True)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        test = Nemo(args.cbk, folder)
        for name in ("forms", "programs", "others", "later", "large", "damage"):
            test.check(name, getattr(test, name))
        return test.close()


if __name__ == "__main__":
    sys.exit(main())
