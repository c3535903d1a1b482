"""Hostile checkpoints, made anew each time and always the same: what files can claim, nest, repeat, point at and damage.

Each generator yields pairs (name, make); make(folder) writes into an empty folder and gives the name to open there.

usage: hostile_files.py CBK FOLDER [TEXT]    makes those whose names contain TEXT, each in a folder of its own, and a list of them
"""
import io
import json
import os
import pickle
import random
import struct
import subprocess
import sys
import zipfile
import zlib

import h5py
import numpy

ODD_NAMES = ["\x1b[2Jcleared\x07", "line\nFORGED: 1", "\r\x1b]0;title\x07", "c1 \x9b31m", "\u202eturned\u202c", "\u2066isolated", "zero\u200b\u200c\u200d\ufeffwidth", "soft\u00adhyphen", "tag\U000e0041\U000e007f",
             "\u2028separated\u2029", "", " ", ".", "..", "a..b", "/", "a/b", "'quoted\"", "back\\slash", "${HOME}`id`", "%s%n%d", "-rf", "--help", "nul\x00byte", "\x7f", "{0..9}", "[a-z]*", "\ud7ff\ue000\uffff", "é" * 500,
             "x" * 60000]


def one(name, content):
    """A case of one file."""
    def make(folder):
        with open(os.path.join(folder, name), "wb") as file:
            file.write(content() if callable(content) else content)
        return name
    return make


def several(files, opened):
    def make(folder):
        for name, content in files.items():
            path = os.path.join(folder, name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "wb") as file:
                file.write(content)
        return opened
    return make


# --- pickles, opcode by opcode

MARK, STOP, NONE, LIST, DICT, TUPLE, REDUCE, BUILD, POP, DUP = b"(", b".", b"N", b"]", b"}", b"t", b"R", b"b", b"0", b"2"


def text(value):
    data = value.encode("utf-8", "surrogatepass")
    return b"X" + struct.pack("<I", len(data)) + data


def number(value):
    if -2 ** 31 <= value < 2 ** 31:
        return b"J" + struct.pack("<i", value)
    data = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
    return b"\x8b" + struct.pack("<i", len(data)) + data


def parts(*items):
    return MARK + b"".join(items) + TUPLE


def name_of(module, name):
    return b"c" + module.encode() + b"\n" + name.encode() + b"\n"


def call(module, name, *arguments):
    return name_of(module, name) + parts(*arguments) + REDUCE


def a_dict(**entries):
    return DICT + MARK + b"".join(text(key) + value for key, value in entries.items()) + b"u"


def storage(key="0", numel=4, kind="FloatStorage"):
    return parts(text("storage"), name_of("torch", kind), text(key), text("cpu"), number(numel)) + b"Q"


def tensor(shape=(4,), stride=(1,), offset=0, **of_storage):
    return call("torch._utils", "_rebuild_tensor_v2", storage(**of_storage), number(offset), parts(*map(number, shape)), parts(*map(number, stride)), b"\x89",
                call("collections", "OrderedDict"))


def pickled(body, protocol=2):
    return b"\x80" + bytes([protocol]) + body + STOP


def archive(pickle_bytes, records=None, method=zipfile.ZIP_STORED, pickle_name="x/data.pkl"):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as file:
        def add(name, data):
            file.writestr(zipfile.ZipInfo(name), data, method, 9)
        if pickle_name:
            add(pickle_name, pickle_bytes)
        add("x/version", b"3\n")
        for key, data in (records or {"0": bytes(16)}).items():
            add("x/data/" + key, data)
    return out.getvalue()


def small_tensors(extent, name):
    """100,000 of them, each with a storage of its own."""
    entries = {name.format(i // 10, i % 10): tensor((extent,), key=str(i), numel=extent) for i in range(100000)}
    return archive(pickled(a_dict(**entries)), {str(i): bytes(4 * extent) for i in range(100000)})


def legacy(pickle_bytes):
    """torch.save before zip files: magic, protocol, system information, the object, the keys of its storages, their bytes."""
    info = {"protocol_version": 1001, "little_endian": True, "type_sizes": {"short": 2, "int": 4, "long": 4}}
    return pickle.dumps(0x1950a86a20f9469cfc6c, 2) + pickle.dumps(1001, 2) + pickle.dumps(info, 2) + pickle_bytes + pickle.dumps(["0"], 2) + struct.pack("<q", 4) + bytes(16)


def nested(opening, closing, depth):
    return opening * depth + NONE + closing * depth


def doubled(levels, join):
    """What holds twice what holds twice …; `join` makes a container of the two values at the top."""
    return text("x") + b"".join(DUP + join for _ in range(levels))


BODIES = {
    "a list to rename": lambda: a_dict(a=LIST + (MARK + NONE * 400 + b"e") * 900),
    "many nones": lambda: LIST + MARK + NONE * 400000 + b"e",
    "nones without a list": lambda: NONE * 3000000,
    "many marks": lambda: MARK * 1000000,
    "many lists": lambda: LIST + MARK + LIST * 1000000 + b"e",
    "many dicts": lambda: LIST + MARK + DICT * 1000000 + b"e",
    "many tuples": lambda: LIST + MARK + b")" * 1000000 + b"e",
    "many small ints": lambda: LIST + MARK + b"K\x07" * 700000 + b"e",
    "many empty texts": lambda: LIST + MARK + b"\x8c\x00" * 700000 + b"e",
    "many floats": lambda: LIST + MARK + (b"G" + bytes(8)) * 200000 + b"e",
    "many entries": lambda: DICT + MARK + b"".join(b"J" + struct.pack("<i", i) + NONE for i in range(300000)) + b"u",
    "one key many times": lambda: DICT + MARK + (b"K\x01N") * 300000 + b"u",
    "many memos": lambda: LIST + b"\x94" * 1000000,
    "a memo far away": lambda: LIST + b"r\xff\xff\xff\x7f",
    "many sets": lambda: LIST + MARK + b"\x8f" * 300000 + b"e",
    "a large set": lambda: call("builtins", "set", LIST + MARK + b"".join(number(i) for i in range(200000)) + b"e"),
    "a list in itself": lambda: LIST + b"q\x00h\x00a",
    "a dict in itself": lambda: DICT + b"q\x00" + text("me") + b"h\x00s",
    "a tuple in itself": lambda: LIST + b"q\x00h\x00\x85a",
    "doubled lists": lambda: doubled(60, parts()[:0] + b"\x86q\x01" + POP + LIST + b"h\x01a"),
    "doubled pairs": lambda: doubled(40, b"\x86"),
    "doubled keys": lambda: DICT + doubled(40, b"\x86") + NONE + b"s",
    "shared lists": lambda: LIST + MARK + NONE * 1000 + b"eq\x00" + POP + LIST + MARK + b"h\x00" * 100000 + b"e",
    "shared shared lists": lambda: b"".join(LIST + MARK + (b"h" + bytes([i - 1]) if i else NONE) * 100 + b"eq" + bytes([i]) + POP for i in range(8)) + b"h\x07",
    "a deep list": lambda: nested(LIST, b"a", 100000),
    "a deep tuple": lambda: nested(b"", b"\x85", 1000000),
    "a deep dict": lambda: (DICT + text("k")) * 100000 + NONE + b"s" * 100000,
    "deep calls": lambda: name_of("collections", "OrderedDict") * 50000 + LIST + (b"\x85" + REDUCE) * 50000,
    "deep in tensors": lambda: nested(LIST, b"a", 600).replace(NONE, tensor()),
    "text of 2^63": lambda: b"\x8d" + struct.pack("<Q", 2 ** 63) + b"x",
    "bytes of 2^40": lambda: b"\x8e" + struct.pack("<Q", 2 ** 40) + b"x",
    "a bytearray of 2^62": lambda: b"\x96" + struct.pack("<Q", 2 ** 62) + b"x",
    "a long of 2^31": lambda: b"\x8b" + struct.pack("<i", 2 ** 31 - 1) + b"x",
    "a negative long": lambda: b"\x8b" + struct.pack("<i", -5) + b"x",
    "a long of 200 KB": lambda: b"\x8b" + struct.pack("<i", 200000) + b"\x7f" * 200000,
    "a number of 300,000 digits": lambda: b"I" + b"9" * 300000 + b"\n",
    "a negative string": lambda: b"T" + struct.pack("<i", -1),
    "a frame of 2^60": lambda: b"\x95" + struct.pack("<Q", 2 ** 60) + NONE,
    "os.system": lambda: call("posix", "system", text("touch pwned")),
    "eval": lambda: call("builtins", "eval", text("open('pwned','w')")),
    "Popen": lambda: call("subprocess", "Popen", text("touch pwned")),
    "getattr": lambda: call("builtins", "getattr", name_of("builtins", "dict"), text("__subclasses__")),
    "an instance": lambda: MARK + text("touch pwned") + b"iposix\nsystem\n",
    "an object": lambda: MARK + name_of("posix", "system") + text("touch pwned") + b"o",
    "a stack global": lambda: b"\x8c\x05posix\x8c\x06system\x93" + parts(text("touch pwned")) + REDUCE,
    "a global with escapes": lambda: name_of("\x1b[2J", "\u202eevil\u200b") + parts() + REDUCE,
    "a global of 1 MB": lambda: name_of("a" * 1000000, "b") + parts() + REDUCE,
    "a bytearray by number": lambda: call("builtins", "bytearray", number(10 ** 12)),
    "bytes by number": lambda: call("builtins", "bytes", number(10 ** 12)),
    "a range": lambda: call("builtins", "range", number(2 ** 62)),
    "a list of a range": lambda: call("builtins", "list", call("builtins", "range", number(10 ** 9))),
    "int of a text": lambda: call("builtins", "int", text("9" * 100000)),
    "a deque": lambda: call("collections", "deque", LIST, number(-1)),
    "a Counter of itself": lambda: call("collections", "Counter", DICT) + b"q\x00h\x00h\x00s",
    "a state for a dict": lambda: DICT + a_dict(__class__=text("x")) + BUILD,
    "an unknown class": lambda: name_of("evil.module", "Class") + b")\x81" + a_dict(a=tensor()) + BUILD,
    "extension codes": lambda: b"\x82\x01\x83\x01\x00\x84\x01\x00\x00\x00",
    "a persistent text": lambda: b"Pstorage\n",
    "a persistent tuple of nothing": lambda: parts() + b"Q",
    "a persistent list": lambda: LIST + b"Q",
    "an empty stack": lambda: b"",
    "pops": lambda: POP * 1000,
    "appends to a number": lambda: number(1) + MARK + NONE + b"e",
    "a key alone": lambda: DICT + MARK + NONE + b"u",
    "a list as key": lambda: DICT + LIST + NONE + b"s",
    "an unknown opcode": lambda: b"\xff",
    "protocol 0": lambda: b"(lp0\n(dp1\nS'a'\nI01\nsaF1e999\naL" + b"9" * 1000 + b"L\na",
    "a long of text": lambda: b"F" + b"1" * 500000 + b"\n",
    "20,000 tensors": lambda: a_dict(**{f"k{i}": tensor() for i in range(3000)}),
    "odd names": lambda: a_dict(**{name: tensor() for name in ODD_NAMES}, texts=a_dict(**{name: text(name) for name in ODD_NAMES})),
    "a long key at each level": lambda: text("y" * 60000) + b"q\x02" + POP + tensor() + b"q\x01" + POP + (DICT + MARK + text("t") + b"h\x01h\x02") * 480 + NONE + b"u" * 480,
    "deep names": lambda: a_dict(**{"a" + ".b" * 40000: tensor(), "a" + ".b" * 39999 + ".c": tensor()}),
    "a long key above many names": lambda: DICT + text("x" * 20000) + tensor() + b"q\x01" + POP + DICT + MARK + b"".join(text(f"k{i}") + b"h\x01" for i in range(2000)) + b"us",
    "names of numbers": lambda: a_dict(**{f"{i}" + "".join(f".{(i * 7 + k) % 100}" for k in range(150)): number(i) for i in range(3000)}),
    "keys of all kinds": lambda: DICT + MARK + b"".join(key + tensor() for key in (NONE, b"\x88", number(1), b"G" + struct.pack(">d", float("nan")), number(2 ** 70), parts(number(1), text("x")), text("1"))) + b"u",
    "a tensor of -1": lambda: tensor((-1,)),
    "a tensor of 2^62": lambda: tensor((2 ** 62,)),
    "a tensor of 2^62 x 2^62": lambda: tensor((2 ** 62, 2 ** 62), (0, 0)),
    "a tensor of 2^62 x 0": lambda: a_dict(w=tensor((2 ** 62, 0), (1, 1))),
    "an empty tensor of long strides": lambda: a_dict(w=tensor((2 ** 63 - 1, 0, 2 ** 63 - 1), (2 ** 63 - 1, 2 ** 63 - 1, 2 ** 63 - 1))),
    "an empty tensor far away": lambda: a_dict(w=tensor((0,), (1,), 2 ** 63 - 1)),
    "a tensor far away": lambda: a_dict(w=tensor((4,), (1,), 2 ** 62)),
    "negative strides": lambda: a_dict(w=tensor((4,), (-1,), 3)),
    "long strides": lambda: a_dict(w=tensor((2,), (2 ** 62,))),
    "more strides than dims": lambda: a_dict(w=tensor((4,), (1, 1))),
    "64 dims": lambda: a_dict(w=tensor((1,) * 64, (1,) * 64)),
    "1,000 dims": lambda: a_dict(w=tensor((1,) * 1000, (1,) * 1000)),
    "100,000 dims": lambda: a_dict(w=tensor((1,) * 100000, (1,) * 100000)),
    "a tensor of one float repeated": lambda: a_dict(w=tensor((2 ** 40,), (0,))),
    "200 tensors of one float repeated": lambda: a_dict(**{f"w{i}": tensor((2 ** 36,), (0,)) for i in range(200)}),
    "a storage that is not there": lambda: a_dict(w=tensor(key="none")),
    "a storage elsewhere": lambda: a_dict(w=tensor(key="../../../../etc/passwd")),
    "a storage of -1": lambda: a_dict(w=tensor(numel=-1)),
    "a storage of 2^62": lambda: a_dict(w=tensor(numel=2 ** 62)),
    "a storage of another size": lambda: a_dict(a=tensor(), b=tensor(kind="DoubleStorage")),
    "an unknown storage": lambda: a_dict(w=tensor(kind="EvilStorage")),
    "a tensor without arguments": lambda: call("torch._utils", "_rebuild_tensor_v2"),
    "a tensor of texts": lambda: call("torch._utils", "_rebuild_tensor_v2", text("x"), text("y"), text("z")),
    "a parameter of nothing": lambda: call("torch._utils", "_rebuild_parameter", NONE, b"\x88", NONE),
    "a size of 10^5": lambda: call("torch", "Size", LIST + MARK + number(2 ** 40) * 100000 + b"e"),
    "a device of escapes": lambda: call("torch", "device", text("\x1b[31mcuda")),
    "a sparse tensor": lambda: call("torch._utils", "_rebuild_sparse_tensor", name_of("torch", "sparse_coo"),
                                    parts(tensor((1, 4), (4, 1)), tensor(), call("torch", "Size", LIST + MARK + number(2 ** 62) * 3 + b"e"))),
    "a numpy array": lambda: call("numpy.core.multiarray", "_reconstruct", name_of("numpy", "ndarray"), parts(number(0)), text("b")) + parts(
        number(1), parts(number(2 ** 60)), call("numpy", "dtype", text("f8"), b"\x89", b"\x88"), b"\x89", b"C\x04abcd") + BUILD,
    "a numpy dtype": lambda: call("numpy", "dtype", text("V999999999"), b"\x89", b"\x88"),
    "a numpy scalar": lambda: call("numpy.core.multiarray", "scalar", call("numpy", "dtype", text("f8"), b"\x89", b"\x88"), b"C\x01x"),
}


def pickles():
    for name, body in BODIES.items():
        yield f"pickle, zip: {name}", one("x.pt", lambda body=body: archive(pickled(body())))
    for index, (name, body) in enumerate(BODIES.items()):
        if index % 6 == 0:
            yield f"pickle, legacy: {name}", one("x.pt", lambda body=body: legacy(pickled(body())))
        elif index % 6 == 3:
            yield f"pickle, deflated: {name}", one("x.pt", lambda body=body: archive(pickled(body()), method=zipfile.ZIP_DEFLATED))
    whole = pickled(a_dict(w=tensor(), t=text("text"), l=LIST + MARK + number(1) * 3 + b"e"))
    for cut in range(1, len(whole), len(whole) // 8):
        yield f"pickle, cut at {cut}", one("x.pt", archive(whole[:cut]))
    for protocol in (0, 1, 5, 6, 255):
        yield f"pickle, protocol {protocol}", one("x.pt", archive(pickled(a_dict(w=tensor()), protocol)))


# --- zip archives

def zips():
    good = pickled(a_dict(w=tensor()))
    bomb = zlib.compressobj(9, zlib.DEFLATED, -15)
    nones = b"".join([bomb.compress(b"\x80\x02](")] + [bomb.compress(NONE * 2 ** 20) for _ in range(64)] + [bomb.compress(b"e."), bomb.flush()])
    yield "zip: 64 million nones", one("x.pt", deflated_entry(nones, 4 + 2 ** 26 + 2, "x/data.pkl"))
    long_text = zlib.compressobj(9, zlib.DEFLATED, -15)
    letters = b"".join([long_text.compress(b"\x80\x02X" + struct.pack("<I", 2 ** 29))] + [long_text.compress(b"x" * 2 ** 20) for _ in range(512)] + [long_text.compress(b"."), long_text.flush()])
    yield "zip: a text of 512 MB", one("x.pt", deflated_entry(letters, 8 + 2 ** 29, "x/data.pkl"))
    yield "zip: a deflated record", one("x.pt", archive(pickled(a_dict(w=tensor((2 ** 24,), numel=2 ** 24))), {"0": bytes(2 ** 26)}, zipfile.ZIP_DEFLATED))
    yield "zip: no pickle", one("x.pt", archive(good, pickle_name=None))
    yield "zip: two pickles", one("x.pt", archive(good, {"../data.pkl": good, "0": bytes(16)}))
    yield "zip: 65,000 entries", one("x.pt", lambda: archive(good, {str(i): b"" for i in range(20000)}))
    yield "zip: entries of one name", one("x.pt", many_of_one_name)
    yield "zip: odd names", one("x.pt", archive(good, {name.replace("\x00", "")[:60000]: bytes(16) for name in ODD_NAMES if "\ud7ff" not in name} | {"0": bytes(16)}))
    whole = archive(good)
    yield "zip: twice", one("x.pt", whole + whole)
    yield "zip: behind text", one("x.pt", b"text" * 1000 + whole)
    yield "zip: a long comment", one("x.pt", whole[:-2] + b"\xff\xff" + b"PK\x05\x06" * 16000)
    end = whole.rindex(b"PK\x05\x06")
    for name, offset, value in (("entries", 8, b"\xff\xff\xff\xff"), ("size", 12, b"\xff\xff\xff\xff"), ("start", 16, b"\xff\xff\xff\xff"), ("disk", 4, b"\x01\x00")):
        yield f"zip: end with another {name}", one("x.pt", whole[:end + offset] + value + whole[end + offset + len(value):])
    first = whole.index(b"PK\x01\x02")
    for name, offset, value in (("size", 24, b"\xfe\xff\xff\xff"), ("packed size", 20, b"\xff\xff\xff\x7f"), ("offset", 42, b"\x00\x00\x00\x70"), ("name length", 28, b"\xff\xff"), ("method", 10, b"\x63\x00"), ("flags", 8, b"\x01\x00"),
                                ("crc", 16, b"\x01\x02\x03\x04")):
        yield f"zip: entry with another {name}", one("x.pt", whole[:first + offset] + value + whole[first + offset + len(value):])
    for cut in (1, 4, 30, 60, len(whole) // 2, len(whole) - 22, len(whole) - 1):
        yield f"zip: cut at {cut}", one("x.pt", whole[:cut])


def many_of_one_name():
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as file:
        for _ in range(1000):
            file.writestr(zipfile.ZipInfo("x/data.pkl"), pickled(NONE))
    return out.getvalue()


def deflated_entry(packed, size, name):
    """A zip of one entry whose stream is there already, so that nothing large is made here."""
    name = name.encode()
    sizes = struct.pack("<III", 0, len(packed), size)
    local = b"PK\x03\x04" + struct.pack("<HHHHH", 20, 0, 8, 0, 33) + sizes + struct.pack("<HH", len(name), 0) + name + packed
    central = b"PK\x01\x02" + struct.pack("<HHHHHH", 20, 20, 0, 8, 0, 33) + sizes + struct.pack("<HHHHHII", len(name), 0, 0, 0, 0, 0, 0) + name
    return local + central + b"PK\x05\x06" + struct.pack("<HHHHIIH", 0, 0, 1, 1, len(central), len(local), 0)


# --- safetensors

def safe(header, data=b""):
    header = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(header)) + header + data


def entry(dtype="F32", shape=(0,), begin=0, end=0):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}


EXTREMES = {
    "BOOL": b"\x00\x01", "U8": b"\x00\xff", "I8": b"\x80\x7f", "U16": b"\x00\x00\xff\xff", "I16": b"\x00\x80\xff\x7f", "U32": b"\x00" * 4 + b"\xff" * 4, "I32": struct.pack("<ii", -2 ** 31, 2 ** 31 - 1),
    "U64": struct.pack("<QQQ", 0, 2 ** 63, 2 ** 64 - 1), "I64": struct.pack("<qqq", -2 ** 63, 2 ** 53 + 1, 2 ** 63 - 1), "F16": struct.pack("<8H", 0, 0x8000, 1, 0x3ff, 0x7bff, 0xfc00, 0x7e01, 0xfe00),
    "BF16": struct.pack("<8H", 0, 0x8000, 1, 0x7f, 0x7f7f, 0xff80, 0x7fc1, 0xffff), "F32": struct.pack("<8I", 0, 0x80000000, 1, 0x7fffff, 0x7f7fffff, 0xff800000, 0x7f800001, 0xffc00001),
    "F64": struct.pack("<9Q", 0, 2 ** 63, 1, 2 ** 52 - 1, 0x7fefffffffffffff, 0xfff0000000000000, 0x7ff0000000000001, 0xfff8000000000001, 0x54b249ad2594c37d),
    "F8_E4M3": bytes(range(256)), "F8_E5M2": bytes(range(256)), "F8_E8M0": bytes(range(256)), "F8_E4M3FNUZ": bytes(range(256)), "F8_E5M2FNUZ": bytes(range(256)), "C64": struct.pack("<4f", float("nan"), 3e38, -0.0, float("inf")), "F4": b"\x01\x23",
    "F6_E2M3": b"\x01\x23\x45", "F6_E3M2": b"\x01\x23\x45"}
BITS = {"BOOL": 8, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "C64": 64}
SHAPES = [(), (0,), (2 ** 62, 0), (0, 2 ** 53 + 1), (1,) * 64, (2, 0, 3), (2, 1, 2), (1, 2 ** 62, 1, 0)]


def extremes(dtypes):
    """A file without a fault: each value, and each shape, that a dtype can have."""
    header, data = {}, b""
    for dtype in dtypes:
        values = EXTREMES[dtype]
        bits = BITS.get(dtype) or int("".join(filter(str.isdigit, dtype.split("_", maxsplit=1)[0])))
        header[f"{dtype}.all"] = entry(dtype, (len(values) * 8 // bits,), len(data), len(data) + len(values))
        data += values
        for index, shape in enumerate(SHAPES):
            count = int(numpy.prod([float(extent) for extent in shape]))
            size = count * bits // 8
            if size * 8 != count * bits:
                continue
            header[f"{dtype}.shape{index}"] = entry(dtype, shape, len(data), len(data) + size)
            data += (values * 4)[:size]
    return safe(header, data)


def safetensors():
    for dtype in EXTREMES:
        yield f"good: {dtype}", one("x.safetensors", lambda dtype=dtype: extremes([dtype]))
    yield "good: all dtypes of whole bytes", one("x.safetensors", extremes([dtype for dtype in EXTREMES if BITS.get(dtype, 8) > 6]))
    for extent, name in ((64, "model.layers.{}.part.{}.weight"), (1, "t{}{}.weight")):
        yield f"good: 100,000 small tensors of {4 * extent} bytes", one("x.pt", lambda extent=extent, name=name: small_tensors(extent, name))
    yield "good: odd names", one("x.safetensors", safe({name: entry() for name in ODD_NAMES if "\ud7ff" not in name}))
    headers = {
        "length of 2^63": struct.pack("<Q", 2 ** 63) + b"{}", "length of 10^8": struct.pack("<Q", 10 ** 8) + b"{}", "nothing": struct.pack("<Q", 0), "empty": safe(b""), "no object": safe(b"[]"), "cut text": safe(b'{"a":'), "blanks": safe(b"{" + b" " * 4000000 + b"}"),
        "deep lists": safe(b'{"a":' + b"[" * 100000), "deep objects": safe(b'{"a":' * 100000), "many equal keys": safe(b"{" + b",".join([b'"a":0'] * 40000) + b"}"),
        "30,000 tensors": lambda: safe({f"t{i}": entry() for i in range(30000)}), "100,000 tensors": lambda: safe({f"t{i}": entry() for i in range(70000)}), "300,000 members": lambda: safe(b"{" + b",".join(b'"%d":{}' % i for i in range(300000)) + b"}"),
        "one long name": safe({"x" * 2000000: entry()}), "a name of 40,000 parts": safe({"a" + ".b" * 40000: entry()}), "a name of a million parts": safe({"a" + ".b" * 1000000: entry()}), "a name of slashes": safe({"a" + "/b" * 300000: entry(), "a" + "/b" * 300001: entry()}),
        "two names of a million parts": lambda: safe({"a" + ".b" * 500000 + ".x": entry(), "a" + ".b" * 500000 + ".y": entry()}), "names like stairs": lambda: safe({"n." * i + "w": entry() for i in range(1500)}),
        "names of 150 numbers": lambda: safe({f"{i}." + ".".join(str((i * 7 + k) % 100) for k in range(150)): entry() for i in range(6000)}), "names of braces": safe({"{" * i + "0..9}." + "}" * i: entry() for i in range(300)}),
        "names of digits": safe({"9" * i: entry() for i in range(1, 1500)}), "a hole": safe({"a": entry(begin=4, end=8, shape=(1,))}, bytes(8)), "an overlap": safe({"a": entry(shape=(1,), end=4), "b": entry(shape=(1,), end=4)}, bytes(4)),
        "offsets of 2^63": safe({"a": entry(begin=2 ** 63, end=2 ** 63 + 4, shape=(1,))}), "offsets backwards": safe({"a": entry(begin=4, end=0)}, bytes(4)), "negative offsets": safe({"a": entry(begin=-4, end=0)}), "offsets of text": safe({"a": {"dtype": "F32", "shape": [0], "data_offsets": ["0", "0"]}}),
        "offsets of floats": safe({"a": entry(begin=0.0, end=1e300)}), "no offsets": safe({"a": {"dtype": "F32", "shape": [0]}}), "shape of 2^64": safe({"a": entry(shape=(2 ** 64,))}), "shape of -1": safe({"a": entry(shape=(-1,))}), "shape that overflows": safe({"a": entry(shape=(2 ** 40, 2 ** 40))}),
        "shape of 100,000 dims": safe({"a": entry(shape=(1,) * 99999 + (0,))}), "shape of lists": safe({"a": {"dtype": "F32", "shape": [[1]], "data_offsets": [0, 0]}}), "unknown dtype": safe({"a": entry("\x1b[2J\u202e")}), "long dtype": safe({"a": entry("X" * 100000)}),
        "no dtype": safe({"a": {"shape": [0], "data_offsets": [0, 0]}}), "metadata of numbers": safe({"__metadata__": {"a": 1}}), "metadata of lists": safe({"__metadata__": []}), "metadata of 3 MB": safe({"__metadata__": {"a": "x" * 3000000}, "w": entry()}),
        "metadata of 50,000 keys": lambda: safe({"__metadata__": {f"k{i}": "" for i in range(50000)}, "w": entry()}), "odd metadata": safe({"__metadata__": {name: name for name in ODD_NAMES if "\ud7ff" not in name}, "w": entry()}), "lone surrogates": safe(b'{"\\ud800": {}}'),
        "NaN": safe(b'{"a": NaN}'), "1e999": safe(b'{"a": 1e999}'), "a number of 2 MB": safe(b'{"a": ' + b"9" * 2000000 + b"}"), "not UTF-8": safe(b'{"\xff\xfe": 1}'), "a NUL": safe(b'{"a": \x00}'), "UTF-16": safe('{"a": 1}'.encode("utf-16")), "a tail": safe({"a": entry(shape=(1,), end=4)}, bytes(400)),
        "cut data": safe({"a": entry(shape=(1000,), end=4000)}, bytes(10)),
    }
    for name, content in headers.items():
        yield f"safetensors: {name}", one("x.safetensors", content)


# --- an index of shards, and other text

def indexes():
    shard = safe({"a": entry(shape=(1,), end=4)}, bytes(4))

    def index(weight_map, more=""):
        return ('{"metadata": {"total_size": 4}, "weight_map": %s%s}' % (weight_map if isinstance(weight_map, str) else json.dumps(weight_map), more)).encode()
    texts = {
        "empty objects": b"[" + b"{}," * 1000000 + b"{}]", "empty objects beside the map": index({"a": "s.safetensors"}, ', "x": [' + "{}," * 1000000 + "{}]"), "no map": b'{"weight_map": {}}', "a list": index("[]"), "numbers": index({"a": 1}), "null": index("null"),
        "a map twice": index({"a": "s.safetensors"}, ', "weight_map": {}'), "40,000 equal keys": index("{" + ",".join(['"a": "s.safetensors"'] * 40000) + "}"), "100,000 keys": index({f"k{i}": "s.safetensors" for i in range(60000)}),
        "30,000 shards": index({f"k{i}": f"{i}.safetensors" for i in range(30000)}), "missing": index({"a": "none.safetensors"}), "above": index({"a": "../../etc/passwd"}), "absolute": index({"a": "/etc/passwd"}), "itself": index({"a": "x.safetensors.index.json"}),
        "a folder": index({"a": "."}), "odd files": index({name: name for name in ODD_NAMES if "\ud7ff" not in name}), "odd keys": index({name: "s.safetensors" for name in ODD_NAMES if "\ud7ff" not in name}), "a key that is not there": index({"b" * 100000: "s.safetensors"}),
        "deep": index('{"a": ' * 100000), "NaN": index({"a": "s.safetensors"}, ', "x": NaN'), "many NaN": index({"a": "s.safetensors"}, ', "x": [' + "NaN," * 800000 + "1]"), "lone surrogates": index({"a": "s.safetensors"}, ', "x": [' + '"\\ud800",' * 300000 + "1]"),
        "ints": index({"a": "s.safetensors"}, ', "x": [' + "1," * 1500000 + "1]"), "texts": index({"a": "s.safetensors"}, ', "x": [' + '"",' * 1000000 + "1]"), "cut": index({"a": "s.safetensors"})[:-30], "a mark at its start": b"\xef\xbb\xbf" + index({"a": "s.safetensors"}), "UTF-16": index({"a": "s.safetensors"}).decode().encode("utf-16"),
        "a long name": index({"a": "s" * 5000}), "metadata of a list": b'{"metadata": [' + b"[]," * 500000 + b'[]], "weight_map": {"a": "s.safetensors"}}',
    }
    for name, content in texts.items():
        yield f"index: {name}", several({"s.safetensors": shard, "x.safetensors.index.json": content}, "x.safetensors.index.json")
    foreign = {
        "empty": b"", "a byte": b"x", "NULs": bytes(100000), "noise": random.Random(1).randbytes(300000), "HTML": b"<!DOCTYPE html><html>" + b"x" * 1000, "LFS": b"version https://git-lfs.github.com/spec/v1\n", "GGUF": b"GGUF" + bytes(1000), "gzip": b"\x1f\x8b" + bytes(1000), "NumPy": b"\x93NUMPY" + bytes(1000),
        "ELF": b"\x7fELF" + bytes(1000), "a pickle": pickled(a_dict(a=number(1))), "JSON": b'{"hidden_size": 4}', "JSON bomb": b"[" * 1000000, "YAML": b"model:\n  hidden_size: 4\n", "YAML bomb": b"a: &a [x,x]\n" + b"".join(b"b%d: &b%d [*%s,*%s]\n" % (i, i, s, s) for i in range(30) for s in [b"b%d" % (i - 1) if i else b"a"]),
        "escapes": b"\x1b[2J\x1b]0;x\x07" * 1000, "HDF5 mark": b"\x89HDF\r\n\x1a\n", "HDF5 mark and noise": b"\x89HDF\r\n\x1a\n" + random.Random(2).randbytes(5000), "torch mark": b"PK\x03\x04" + bytes(1000), "TensorFlow mark": bytes(1000) + bytes.fromhex("57fb808b247547db"),
    }
    for name, content in foreign.items():
        yield f"no checkpoint: {name}", one("x.ckpt", content)
    yield "folder: empty", several({"inner/note": b""}, "inner")
    yield "folder: several", several({"inner/a.pt": b"", "inner/b.pt": b""}, "inner")
    yield "folder: 5,000 files", several({f"inner/{i}.pt": b"" for i in range(5000)}, "inner")
    yield "folder: shards without an index", several({"inner/model-00001-of-00002.safetensors": shard}, "inner")

    def special(make_one):
        def make(folder):
            make_one(os.path.join(folder, "x.pt"))
            return "x.pt"
        return make
    yield "special: a pipe", special(os.mkfifo)
    yield "special: a link to itself", special(lambda path: os.symlink("x.pt", path))
    yield "special: a link to /dev/zero", special(lambda path: os.symlink("/dev/zero", path))
    yield "special: a link to a terminal", special(lambda path: os.symlink("/dev/tty", path))


# --- HDF5

def h5_file(fill, **options):
    def make(folder):
        with h5py.File(os.path.join(folder, "x.h5"), "w", **options) as file:
            fill(file)
        return "x.h5"
    return make


def gzip_chunk(size, claimed=None, count=1):
    """Datasets of chunks whose stream is zeros."""
    def fill(file):
        press = zlib.compressobj(9)
        packed = b"".join([press.compress(bytes(2 ** 20)) for _ in range(size >> 20)] + [press.flush()])
        for i in range(count):
            data = file.create_dataset(f"w{i}", shape=((claimed or size) // 4,), chunks=((claimed or size) // 4,), dtype="f4", compression="gzip")
            data.id.write_direct_chunk((0,), packed)
    return fill


def h5_spec(text_of_spec, **more):
    """A file that says it is of the Model Zoo's newer layout."""
    def fill(file):
        file.attrs["__version__"] = more.get("version", "0.5")
        file.attrs["__spec__"] = text_of_spec
        for name in ("a", "b"):
            data = file.create_dataset(name, data=numpy.arange(4, dtype="f4"))
            data.attrs["__H5_TYPE__"] = more.get("kind", "torch.Tensor")
            data.attrs["__OBJECT__"] = more.get("object", "{}")
    return fill


def h5():
    def groups(depth):
        def fill(file):
            group = file
            for _ in range(depth):
                group = group.create_group("g")
            group["w"] = numpy.zeros(2)
        return fill

    def loops(file):
        file["w"] = numpy.zeros(2)
        file.create_group("g")["up"] = file["/"]
        file["g/self"] = h5py.SoftLink("/g/self")
        file["g/other"] = h5py.SoftLink("/nowhere")

    def external_links(file):
        file["w"] = numpy.zeros(2)
        file["passwd"] = h5py.ExternalLink("/etc/passwd", "/")
        file["above"] = h5py.ExternalLink("../../x.h5", "/w")
        file["me"] = h5py.ExternalLink("x.h5", "/me")

    def types(file):
        for i, dtype in enumerate([">f8", ">i4", "V3", "S7", [("a", "f4"), ("b", "i8", (3,))], h5py.enum_dtype({"A": 1}), h5py.string_dtype(), h5py.vlen_dtype("i4"), h5py.ref_dtype, ("f4", (2, 2)), "c16", "c8", "?", "f2", "u8"]):
            file.create_dataset(f"t{i}", shape=(2,), dtype=dtype)
        file.create_dataset("null", data=h5py.Empty("f4"))
        file.create_dataset("scalar", data=1.5)
        file.create_dataset("dims", shape=(1,) * 32, dtype="f4")
        file.create_dataset("zero", shape=(2 ** 62, 0), dtype="f4")
        file["texts"] = numpy.array(["\x1b[2J", "\u202e"], dtype=h5py.string_dtype())

    def names(file):
        for name in ODD_NAMES:
            if name and "\x00" not in name and "\ud7ff" not in name and not set(name) <= set("./"):
                file[name] = numpy.zeros(2)

    def odd_attributes(file):
        file["w"] = numpy.zeros(2)
        for i, name in enumerate(ODD_NAMES):
            if name and "\x00" not in name and "\ud7ff" not in name:
                file["w"].attrs[name[:5000]] = name.replace("\x00", "")[:5000]
        for name in ("__version__", "__spec__", "__metadata__"):
            file.attrs[name] = numpy.arange(3)

    def legacy_paths(file):
        file.attrs["__version__"] = "0.4"
        file.attrs["__spec__"] = json.dumps({"w": "*", "p": "*"})
        file["w"] = numpy.zeros(2, "f4")
        file["w"].attrs["filepath"] = "/etc/passwd"
        file["w"].attrs["key"] = "w"

    def old_pickle(file):
        file["data"] = numpy.zeros(2, "f4")
        for name in ("state", "__spec__", "pickle"):
            file.attrs[name] = numpy.void(pickled(call("posix", "system", text("touch pwned"))))
            file[name] = numpy.frombuffer(pickled(call("posix", "system", text("touch pwned"))), "u1")

    fills = {
        "types": types, "names": names, "odd attributes": odd_attributes, "loops": loops, "external links": external_links, "filepath": legacy_paths, "pickles": old_pickle, "empty": lambda file: None, "40 groups deep": groups(40), "800 groups deep": groups(800),
        "3,000 groups": lambda file: [file.create_group(f"g{i}") for i in range(3000)], "3,000 datasets": lambda file: [file.create_dataset(f"d.{i}.{i % 7}", data=i) for i in range(3000)], "20,000 attributes": lambda file: [file.attrs.create(f"a{i}", i) for i in range(4000)],
        "a name of 40,000 parts": lambda file: file.create_dataset("a" + ".b" * 20000, data=1.0), "never written, 4 TB": lambda file: file.create_dataset("w", shape=(2 ** 40,), chunks=(2 ** 20,), dtype="f4"), "never written, contiguous": lambda file: file.create_dataset("w", shape=(2 ** 40,), dtype="f4"),
        "never written, 2^62 bytes": lambda file: file.create_dataset("w", shape=(2 ** 60,), dtype="f4"), "a million chunks": lambda file: file.create_dataset("w", shape=(2 ** 20,), chunks=(1,), dtype="f4", compression="gzip"),
        "external storage": lambda file: file.create_dataset("w", shape=(16,), dtype="u1", external=[("/etc/passwd", 0, 16)]), "external storage above": lambda file: file.create_dataset("w", shape=(16,), dtype="u1", external=[("../../../../../../../../etc/passwd", 0, 16)]),
        "one chunk of 64 MB": gzip_chunk(2 ** 26), "one chunk of 256 MB": gzip_chunk(2 ** 28), "a chunk longer than it says": gzip_chunk(2 ** 27, 2 ** 12), "a chunk shorter than it says": gzip_chunk(2 ** 20, 2 ** 28), "8 chunks of 64 MB": gzip_chunk(2 ** 26, count=8),
        "fletcher and shuffle": lambda file: file.create_dataset("w", data=numpy.arange(1000), chunks=(100,), shuffle=True, fletcher32=True, compression="lzf"), "texts of 1 MB": lambda file: file.create_dataset("w", data=["x" * 1000000], dtype=h5py.string_dtype()),
        "spec: empty": h5_spec(""), "spec: not JSON": h5_spec("{"), "spec: a list": h5_spec("[]"), "spec: deep": h5_spec("[" * 20000), "spec: 60 KB of {}": h5_spec("[" + "{}," * 20000 + "{}]"), "spec: unknown keys": h5_spec(json.dumps({"a": "*", "none": "*"})),
        "spec: object of a call": h5_spec(json.dumps({"a": "*"}), object=json.dumps({"__py/reduce__": ["posix.system", ["touch pwned"]]})), "spec: object deep": h5_spec(json.dumps({"a": "*"}), object="[" * 10000), "spec: version": h5_spec("{}", version="\x1b[2J" + "9" * 1000),
        "spec: kind": h5_spec(json.dumps({"a": "*"}), kind="os.system"), "spec: 0.4": h5_spec(json.dumps({"a": "*"}), version="0.4"), "spec: numbers": h5_spec("9" * 60000), "spec: tuples": h5_spec(json.dumps(["builtins.dict", ["a", "b"], [["*", None, []]] * 2])),
    }
    for name, fill in fills.items():
        yield f"h5: {name}", h5_file(fill)
    yield "h5: latest", h5_file(types, libver="latest")
    yield "h5: a user block", h5_file(names, userblock_size=512)
    yield "h5: tracked order", h5_file(lambda file: [file.create_dataset(str(i), data=i) for i in range(300)], track_order=True, libver="latest")


# --- GGUF

def gguf_text(value):
    data = value.encode("utf-8", "surrogatepass") if isinstance(value, str) else value
    return struct.pack("<Q", len(data)) + data


def gguf_pair(key, kind, content):
    return gguf_text(key) + struct.pack("<I", kind) + content


def gguf_tensor(name, shape=(4,), kind=0, offset=0):
    return gguf_text(name) + struct.pack("<I", len(shape)) + struct.pack(f"<{len(shape)}Q", *shape) + struct.pack("<IQ", kind, offset)


def gguf_file(pairs=(), tensors=(), data=bytes(64), counts=None, version=3, alignment=32):
    """Counts that are not those of what follows can be given."""
    tensor_count, pair_count = counts or (len(tensors), len(pairs))
    head = b"GGUF" + struct.pack("<IQQ", version, tensor_count, pair_count) + b"".join(pairs) + b"".join(tensors)
    return head + bytes(-len(head) % alignment) + data


def gguf_nested(depth, count=1):
    """An array of arrays of …, as the content of a pair."""
    out = struct.pack("<IQ", 0, 0)
    for _ in range(depth):
        out = struct.pack("<IQ", 9, count) + out * count
    return out


def ggufs():
    one_tensor = gguf_tensor("w")
    files = {
        "good": lambda: gguf_file([gguf_pair("general.name", 8, gguf_text("x"))], [one_tensor]),
        "empty": lambda: gguf_file(),
        "2^60 tensors": lambda: gguf_file((), [one_tensor], counts=(2 ** 60, 0)),
        "2^60 pairs": lambda: gguf_file((), [one_tensor], counts=(1, 2 ** 60)),
        "more tensors than there are": lambda: gguf_file((), [one_tensor], counts=(7, 0), data=bytes(4096)),
        "a name of 2^63": lambda: gguf_file((), [struct.pack("<Q", 2 ** 63) + b"x"], counts=(1, 0)),
        "a name of 60 KB": lambda: gguf_file((), [gguf_tensor("x" * 60000)]),
        "one name twice": lambda: gguf_file((), [one_tensor, one_tensor]),
        "one key twice": lambda: gguf_file([gguf_pair("a", 0, b"\1")] * 2, [one_tensor]),
        "odd names": lambda: gguf_file([gguf_pair(name, 8, gguf_text(name)) for name in ODD_NAMES], [gguf_tensor(name, offset=32 * i) for i, name in enumerate(ODD_NAMES)], bytes(32 * len(ODD_NAMES))),
        "names that are no text": lambda: gguf_file([gguf_pair(b"\xff\xfe", 0, b"\1")], [gguf_tensor(b"\xc3(")]),
        "texts that are no text": lambda: gguf_file([gguf_pair("a", 8, gguf_text(b"\xff\xfe\x9b31m"))], [one_tensor]),
        "an unknown type of a pair": lambda: gguf_file([gguf_pair("a", 13, b"")], [one_tensor]),
        "an unknown type of a tensor": lambda: gguf_file((), [gguf_tensor("w", kind=2 ** 31)]),
        "a type that was removed": lambda: gguf_file((), [gguf_tensor("w", kind=4)]),
        "arrays 100,000 deep": lambda: gguf_file([gguf_pair("a", 9, gguf_nested(100000))], [one_tensor]),
        "arrays of arrays": lambda: gguf_file([gguf_pair("a", 9, gguf_nested(3, 60))], [one_tensor]),
        "an array of 2^62 arrays": lambda: gguf_file([gguf_pair("a", 9, struct.pack("<IQ", 9, 2 ** 62))], [one_tensor]),
        "an array of 2^61 numbers": lambda: gguf_file([gguf_pair("a", 9, struct.pack("<IQ", 10, 2 ** 61))], [one_tensor]),
        "an array of 300,000 empty texts": lambda: gguf_file([gguf_pair("a", 9, struct.pack("<IQ", 8, 300000) + bytes(8 * 300000))], [one_tensor]),
        "many arrays of 256 texts": lambda: gguf_file([gguf_pair(f"a{i}", 9, struct.pack("<IQ", 8, 256) + bytes(8 * 256)) for i in range(1000)], [one_tensor]),
        "100,000 pairs": lambda: gguf_file([gguf_pair(f"a{i}", 0, b"\1") for i in range(100000)], [one_tensor]),
        "100,000 empty arrays": lambda: gguf_file([gguf_pair("a", 9, struct.pack("<IQ", 9, 100000) + struct.pack("<IQ", 0, 0) * 100000)], [one_tensor]),
        "30,000 tensors": lambda: gguf_file((), [gguf_tensor(f"blk.{i}.w", offset=32 * i) for i in range(30000)], bytes(32 * 30000)),
        "30,000 empty tensors at one place": lambda: gguf_file((), [gguf_tensor(f"blk.{i}.w", (0,)) for i in range(30000)]),
        "names one in the other": lambda: gguf_file((), [gguf_tensor("a" + ".b" * i, offset=32 * i) for i in range(300)], bytes(32 * 300)),
        "alignment of 0": lambda: gguf_file([gguf_pair("general.alignment", 4, struct.pack("<I", 0))], [one_tensor]),
        "alignment of 3": lambda: gguf_file([gguf_pair("general.alignment", 4, struct.pack("<I", 3))], [one_tensor]),
        "alignment of 2^31": lambda: gguf_file([gguf_pair("general.alignment", 4, struct.pack("<I", 2 ** 31))], [one_tensor]),
        "alignment of 2^64 - 1": lambda: gguf_file([gguf_pair("general.alignment", 10, struct.pack("<Q", 2 ** 64 - 1))], [one_tensor]),
        "alignment as a text": lambda: gguf_file([gguf_pair("general.alignment", 8, gguf_text("32"))], [one_tensor]),
        "overlapping tensors": lambda: gguf_file((), [gguf_tensor("a", (16,)), gguf_tensor("b", (16,), offset=32)], bytes(128)),
        "a tensor in the header": lambda: gguf_file((), [gguf_tensor("w", offset=2 ** 64 - 32)]),
        "a tensor behind the end": lambda: gguf_file((), [gguf_tensor("w", offset=2 ** 40)]),
        "a shape of 2^62 x 2^62": lambda: gguf_file((), [gguf_tensor("w", (2 ** 62, 2 ** 62))]),
        "a shape of 2^63": lambda: gguf_file((), [gguf_tensor("w", (2 ** 63,))]),
        "a shape of 2^62 x 0": lambda: gguf_file((), [gguf_tensor("w", (2 ** 62, 0))]),
        "a shape of 0 x 2^62 blocks": lambda: gguf_file((), [gguf_tensor("w", (2 ** 62, 0), kind=8)]),
        "2^32 - 1 dims": lambda: gguf_file((), [gguf_text("w") + struct.pack("<I", 2 ** 32 - 1) + bytes(64)], counts=(1, 0)),
        "half a block": lambda: gguf_file((), [gguf_tensor("w", (33,), kind=8)]),
        "blocks of NaN": lambda: gguf_file((), [gguf_tensor("w", (256,), kind=kind) for kind in [12]], b"\xff" * 4096),
        "version 2^31": lambda: gguf_file((), [one_tensor], version=2 ** 31),
        "version of the other order": lambda: b"GGUF" + struct.pack(">IQQ", 3, 1, 0) + bytes(64),
        "nothing behind the mark": lambda: b"GGUF",
        "a bool of 7": lambda: gguf_file([gguf_pair("a", 7, b"\7")], [one_tensor]),
    }
    for name, content in files.items():
        yield f"gguf: {name}", one("x.gguf", content)
    for kind in range(0, 40, 3):
        yield f"gguf: noise as type {kind}", one("x.gguf", lambda kind=kind: gguf_file((), [gguf_tensor("w", (1024,), kind=kind)], random.Random(kind).randbytes(8192)))
    whole = files["good"]()
    for cut in range(4, len(whole), len(whole) // 8):
        yield f"gguf: cut at {cut}", one("x.gguf", whole[:cut])


# --- NumPy's files

def npy(header, data=bytes(16), version=(1, 0), length=None):
    text_of = header.encode() if isinstance(header, str) else header
    size = len(text_of) if length is None else length
    return b"\x93NUMPY" + bytes(version) + struct.pack("<H" if version[0] == 1 else "<I", size) + text_of + data


def npy_header(descr="'<f4'", order="False", shape="(4,)"):
    return f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}\n"


def npz(members, method=zipfile.ZIP_STORED):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as file:
        for name, content in members:
            file.writestr(zipfile.ZipInfo(name), content, method, 9)
    return out.getvalue()


def numpys():
    headers = {
        "good": npy_header(), "a call": npy_header("__import__('os').system('touch pwned')"), "a call as shape": npy_header(shape="(__import__('os').system('touch pwned'),)"), "a sum": npy_header(shape="(2+2,)"), "a power": npy_header(shape="(9**9**9,)"),
        "many brackets": "{" * 60000, "many tuples": npy_header(shape="(" * 30000), "objects": npy_header("'|O'"), "texts": npy_header("'<U4'"), "records": npy_header("[('a', '<f4'), ('b', '|O')]"), "records in records": npy_header("[('a', " * 5000), "a date": npy_header("'<M8[ns]'"), "void": npy_header("'|V999999999'"),
        "f16": npy_header("'<f16'"), "f2^62": npy_header(f"'<f{2 ** 62}'"), "a shape of -1": npy_header(shape="(-1,)"), "a shape of 2^63": npy_header(shape=f"({2 ** 63},)"), "a shape of 2^62 x 2^62": npy_header(shape=f"({2 ** 62}, {2 ** 62})"), "a shape of 2^62 x 0": npy_header(shape=f"({2 ** 62}, 0)"),
        "a shape of 10^5 digits": npy_header(shape="(" + "9" * 60000 + ",)"), "10,000 dims": npy_header(shape="(" + "1, " * 10000 + ")"), "True as extent": npy_header(shape="(True,)"), "a shape of a number": npy_header(shape="4"), "1.0 as extent": npy_header(shape="(4.0,)"), "Fortran": npy_header(order="True", shape="(2, 2)"),
        "Fortran of 2^62 x 0": npy_header(order="True", shape=f"({2 ** 62}, 0)"), "order 1": npy_header(order="1"), "no shape": "{'descr': '<f4', 'fortran_order': False}", "two shapes": "{'shape': (4,), 'shape': (1,), 'descr': '<f4', 'fortran_order': False}", "more": "{'descr': '<f4', 'fortran_order': False, 'shape': (4,), 'x': 1}",
        "escapes in a text": npy_header("'\\x3cf4'"), "an open text": "{'descr': '<f4", "escapes": npy_header("'\x1b[2J\x07'"), "empty": "", "NULs": b"\0" * 100, "not ASCII": npy_header("'<f4\u202e'"), "a comment": npy_header() + "# x", "much behind it": npy_header() + " " * 60000,
    }
    for name, header in headers.items():
        yield f"npy: {name}", one("x.npy", npy(header))
    files = {
        "version 9": npy(npy_header(), version=(9, 0)), "a header of 2^32 - 1": npy(npy_header(), version=(2, 0), length=2 ** 32 - 1), "a header of 0": npy(npy_header(), length=0), "a header behind the end": npy(npy_header(), length=60000), "more data": npy(npy_header(), bytes(17)), "less data": npy(npy_header(), bytes(15)), "the mark": b"\x93NUMPY",
        "a header of 1 MB": npy(npy_header() + " " * (1 << 20), version=(2, 0)),
    }
    for name, content in files.items():
        yield f"npy: {name}", one("x.npy", content)
    array = npy(npy_header())
    archives = {
        "good": npz([("a.npy", array)]), "names that leave": npz([(name, array) for name in ("../../up.npy", "/etc/up.npy", "a/../../up.npy", "C:\\up.npy", "..\\up.npy")]), "odd names": npz([(name + ".npy", array) for name in ODD_NAMES if name and "\0" not in name and "\ud7ff" not in name]),
        "no array": npz([("a.npy", b"x")]), "a pickle": npz([("a.npy", npy(npy_header("'|O'"), pickled(call("posix", "system", text("touch pwned")))))]), "another file": npz([("a.npy", array), ("run.sh", b"touch pwned")]), "an empty name": npz([(".npy", array)]), "30,000 arrays": npz([(f"a{i}.npy", array) for i in range(30000)]),
        "a bomb": deflated_entry(bomb_of_zeros(), 80 + 2 ** 28, "a.npy"), "names of one array": npz([("a.npy", array), ("a", array)]), "deflated": npz([("a.npy", npy(npy_header(shape=f"({2 ** 24},)"), bytes(2 ** 26)))], zipfile.ZIP_DEFLATED),
    }
    for name, content in archives.items():
        yield f"npz: {name}", one("x.npz", content)
    yield "npz: one place, many names", one("x.npz", same_place(2000))


def bomb_of_zeros():
    press = zlib.compressobj(9, zlib.DEFLATED, -15)
    header = npy(npy_header(shape=f"({2 ** 26},)").ljust(70), b"")
    return b"".join([press.compress(header)] + [press.compress(bytes(2 ** 20)) for _ in range(256)] + [press.flush()])


def same_place(count):
    """A directory with many names for one member."""
    whole = npz([("a.npy", npy(npy_header(shape=f"({2 ** 20},)"), bytes(2 ** 22)))], zipfile.ZIP_DEFLATED)
    start = whole.index(b"PK\x01\x02")
    record = whole[start:whole.index(b"PK\x05\x06")]
    names = [f"{i:05}" for i in range(count)]
    directory = b"".join(record[:28] + struct.pack("<H", len(name) + 4) + record[30:46] + name.encode() + b".npy" for name in names)
    return whole[:start] + directory + b"PK\x05\x06" + struct.pack("<HHHHIIH", 0, 0, count, count, len(directory), start, 0)


# --- configs

def configs():
    texts = {
        "empty folded blocks.yaml": "\n.: >\n?" * 50000, "a long text many times.yaml": "a: &x " + "x" * 1000000 + "\n" + "".join(f"b{i}: *x\n" for i in range(1000)), "items in brackets.yaml": "[" + "1," * 600000 + "1]", "maps in brackets.yaml": "[" + "{}," * 600000 + "{}]", "open brackets.yaml": "[" * 1000000,
        "lines of documents in brackets.yaml": "[\n" + "---\n" * 600000, "lines of items.yaml": "- 1\n" * 700000, "lines of maps.yaml": "- {}\n" * 600000, "levels.yaml": "- " * 100000, "anchors.yaml": "".join(f"- &a{i} 1\n" for i in range(300000)),
        "copies of copies.yaml": "a0: &a0 [1,1]\n" + "".join(f"a{i + 1}: &a{i + 1} [*a{i}, *a{i}]\n" for i in range(40)), "a map merged many times.yaml": "a: &a {" + ",".join(f"k{i}: 1" for i in range(1000)) + "}\nb:\n" + " - {<<: *a}\n" * 2000, "pairs.yaml": "!!omap [" + ",".join(["{a: 1}"] * 50000) + "]",
        "one text.yaml": "a: " + "x" * 8000000, "one text.json": '{"a": "' + "x" * 8000000 + '"}', "one key.yaml": "? " + "x" * 8000000 + "\n: 1\n", "keys.json": "{" + ",".join(f'"k{i}": {i}' for i in range(300000)) + "}", "numbers.json": '{"a": [' + "1.5," * 1000000 + "1]}", "levels.json": '{"a":' * 100000,
        "keys.yaml": "".join(f"k{i}: 0x1F\n" for i in range(100000)), "odd names.json": json.dumps({name: name for name in ODD_NAMES}), "a tag.yaml": "!!python/object/apply:os.system [touch pwned]", "a number of digits.json": '{"hidden_size": ' + "9" * 1000000 + "}", "huge.json": '{"hidden_size": 1e308, "num_hidden_layers": 9223372036854775807, "num_attention_heads": -1}',
        "a model of 2^40 layers.json": '{"model_type": "llama", "hidden_size": 4, "num_attention_heads": 2, "num_hidden_layers": 1099511627776}', "numbers as texts.yaml": "model: {hidden_size: four, num_heads: [], num_hidden_layers: {}}", "none.yaml": "", "a list.json": "[]",
    }
    for name, content in texts.items():
        yield f"config: {name}", one("x." + name.rsplit(".", 1)[1], content.encode("utf-8", "surrogatepass"))


# --- converters

CONVERTER = """local cbk = require "cbk"
local rules = require "converters.engine.rules"
local fields = require "converters.engine.fields"
local actions = require "converters.vocabulary.actions"
local class = require "converters.engine.class"
local more
local function attempt(place, value, at) %s end
local function both(f) return { forward = f, backward = f } end
local look = actions.pair("look", function(t, at) attempt("action", t, at) return t end, function(t) return t end)
attempt "file"
return { { model = "tiny", { "hf", "cs-2.1 .. cs-2.9",
  keys = rules.keys(more or { { "a", "b", look, when = function(at) attempt("when", nil, at) return true end } }),
  config = fields.config { { "hidden_size", "hidden_size", both(function(v, at) attempt("field", v, at) return v end) }, { "*" } },
  prepare = { left = function(from) attempt("prepare", from) end }, finish = { right = function(to) attempt("finish", to) end },
} } }
"""

# What may take all time or memory, for ever or at once; Lua.
GREEDY = {
    "loop": "while true do end", "loop in pcall": "while true do pcall(function() while true do end end) end",
    "endless recursion": "local function f() f() end while true do pcall(f) end",
    "recursion by gsub": 'local function f() return (("x"):gsub("x", f)) end while true do pcall(f) end',
    "recursion by gsub, once": 'local function f() return (("x"):gsub("x", f)) end f()',
    "recursion by sort": "local function f() table.sort({ 1, 2 }, f) end while true do pcall(f) end",
    "recursion by pcall": "local function f() return pcall(f) end while true do f() end",
    "large text": 'return ("x"):rep(2^30)', "doubled text": 'local s = "x" while true do s = s .. s end',
    "texts": 'local t = {} for i = 1, 1e9 do t[i] = ("x"):rep(1000) .. i end', "numbers": "local t = {} for i = 1, 1e9 do t[i] = i end",
    "nested tables": "local t = {} while true do t = { t } end", "records": 'local t = {} for i = 1, 1e9 do t["k" .. i] = { i } end',
    "gsub": 'local s = ("x"):rep(1e5) while true do s = s:gsub("x", ("y"):rep(1000)) end',
    "concat": 'local t = {} for i = 1, 1e4 do t[i] = ("y"):rep(1e4) end return table.concat(t, ("z"):rep(1e6))',
    "backtracking": 'return ("a"):rep(100000):find((".-"):rep(8) .. "b")', "backtracking by stars": 'return ("a"):rep(60):find(("a*"):rep(30) .. "b")',
    "sort": "local t = {} for i = 1, 1e5 do t[i] = i % 7 end while true do table.sort(t, function(a, b) return a < b end) end",
    "unpack": "local t = {} while true do pcall(unpack, t, 1, 1e6) end", "format": 'return ("%99s"):rep(1e6):format(unpack({}, 1, 8000))',
    "dict": 'local d = cbk.dict() for i = 1, 1e9 do d["key" .. i] = i end',
    "doubled dict": "local d = cbk.dict { a = 1 } while true do d = cbk.dict { a = cbk.deep_copy(d), b = cbk.deep_copy(d) } end",
    "nested dicts": "local d = cbk.dict { a = 1 } while true do d = cbk.dict { a = d } end",
    "nested lists": "local d = cbk.list() while true do d = cbk.list { d } end", "nested tensors": "local t = cbk.full({ 2 }, 1) while true do t = t + 1 end",
    "nested sums": "local t = cbk.full({ 2 }, 1) for i = 1, 3e4 do t = t:add(t) end while true do t:sha256() end",
    "list": 'local d = cbk.list() while true do cbk.insert(d, ("x"):rep(1000)) end', "bytes": 'local t = {} while true do t[#t + 1] = cbk.bytes(("x"):rep(1e6)) end',
    "json": "local d = cbk.dict { a = 1 } for i = 1, 150 do d = cbk.dict { a = d } end while true do cbk.json(d) end",
    "glob": 'while true do cbk.glob(("*a?"):rep(5000) .. "b", ("a"):rep(1e6)) end',
    "nearest": 'local n = {} for i = 1, 2e4 do n[i] = ("x"):rep(1000) .. i end while true do cbk.nearest(("x"):rep(1000), n) end',
    "matmul": 'local a = cbk.randn({ 2048, 2048 }) while true do a:matmul(a):sha256() end',
    "digest": "return cbk.full({ 1000000, 1000000 }, 1):sha256()", "statistics": "return cbk.randn({ 1000000, 1000000 }):stats()",
    "compare": "return cbk.randn({ 300000, 300000 }):compare(cbk.randn({ 300000, 300000 }, { seed = 2 }))",
    "doubled tensor": "local t = cbk.full({ 2, 2 }, 1) for i = 1, 60 do t = t + t end return t:sha256()",
    "joined tensor": "local t = cbk.full({ 1, 1 }, 1) for i = 1, 50 do t = cbk.cat({ t, t }, 0) end return t:sha256()",
    "tensors": "local k, t = {}, {} for i = 1, 1e4 do t[i] = i end while true do k[#k + 1] = cbk.tensor(t) end",
    "large error": 'error(("x"):rep(3e7))', "rules": 'local t = {} for i = 1, 1e5 do t[i] = { "a" .. i, "b" .. i } end while true do rules.keys(t) end',
    "kept rules": 'local k = {} while true do k[#k + 1] = rules.keys { { "a.{b,c}", "d.{e,f}" } } end',
    "choices": 'return rules.keys { { ("{a,b,c,d}."):rep(12) .. "x", ("{a,b,c,d}."):rep(12) .. "y" } }',
    "layers": 'class.new "C" { fields = {}, tensors = function() while true do end end } while true do end',
}

# What tries to get out, or to end without an error.
SLY = {
    "error without text": "error { message = {} }", "error of nil": "error(nil)", "error as success": "error { message = 'x', exit_code = 0 }",
    "view as error": "error(actions.transpose)", "module as value": "return rules.keys { actions, rules }", "long error": 'error(("\\27[2J"):rep(1000))',
    "stars": 'more = {} for i = 1, 30 do more[i] = { ("*."):rep(i) .. "x", ("*."):rep(i) .. "y" .. i } end',
    "cycle": "local t = {} t[1] = t return rules.keys(t)", "keys of tables": "return rules.keys { [{}] = {} }", "cdata": "return 1LL + {}",
    "changed actions": "actions.transpose.forward = function() end", "changed class": "class.Class = nil", "fill": "return fields.fill(actions, { split = 1 })",
}


def converters():
    """Converter files that nobody should trust."""
    def file(body):
        return one("own.lua", (CONVERTER % body).encode())
    for kind, pieces in (("greedy", GREEDY), ("sly", SLY)):
        for i, (name, piece) in enumerate(pieces.items()):
            place = ("file", "file", "action", "when", "field", "prepare", "finish")[i % 7]
            yield f"converter: {kind}, {name}", file(f'if place == "{place}" then {piece} end')
            if place != "file":
                yield f"converter: {kind}, {name}, at once", file(f'if place == "file" then {piece} end')
    chance, pieces = random.Random(31), [*GREEDY.values(), *SLY.values()]
    for i in range(12):
        places = ["file", "action", "when", "field", "prepare", "finish"]
        body = " ".join(f'if place == "{chance.choice(places)}" then pcall(function() {chance.choice(pieces)} end) end' for _ in range(4))
        yield f"converter: mixed, {i}", file(body)


# --- what was right before some of its bytes were changed

def damage(cbk, folder):
    """Files that cbk wrote, changed here and there."""
    seed = os.path.join(folder, "seed.safetensors")
    with open(seed, "wb") as file:
        file.write(safe({"a.w": entry(shape=(2, 3), end=24), "a.b": entry("I64", (3,), 24, 48), "layers.0.x": entry("BF16", (4,), 48, 56), "layers.1.x": entry("BF16", (4,), 56, 64)}, bytes(range(64))))
    targets = {"pt": [], "safetensors": [], "mdl": [], "h5": ["--h5-version", "0.4"], "hdf5": ["--h5-version", "flat"], "index": ["--format", "tensorflow"]}
    for suffix, options in targets.items():
        inner = os.path.join(folder, suffix)
        os.mkdir(inner)
        target = os.path.join(inner, "m" if suffix == "index" else "m." + suffix)
        subprocess.run([cbk, "copy", "-q", seed, target, *options], check=True)
        files = {}
        for name in os.listdir(inner):
            with open(os.path.join(inner, name), "rb") as file:
                files[name] = file.read()
        yield from damaged("m." + suffix, files)


def damaged(opened, files):
    yield f"good: {opened}", several(files, opened)
    whole, chance = files[opened], random.Random(opened)
    for i in range(9):
        changed = bytearray(whole)
        for _ in range(1 + i % 3):
            changed[chance.randrange(len(changed))] = chance.choice([0, 1, 0x7f, 0x80, 0xff])
        yield f"damaged: {opened}, {i}", several(files | {opened: bytes(changed)}, opened)
    for i in range(2):
        at, value = chance.randrange(len(whole) - 8), chance.choice([2 ** 31 - 1, 2 ** 62, 2 ** 64 - 1])
        yield f"damaged: {opened}, a number, {i}", several(files | {opened: whole[:at] + struct.pack("<Q", value) + whole[at + 8:]}, opened)
    for i in range(2):
        yield f"damaged: {opened}, cut, {i}", several(files | {opened: whole[:chance.randrange(len(whole))]}, opened)
    if opened == "m.index":
        data = "m.data-00000-of-00001"
        yield "damaged: TensorFlow, no data", several({opened: whole}, opened)
        yield "damaged: TensorFlow, cut data", several(files | {data: files[data][:10]}, opened)
        for name, state in {"above": b'model_checkpoint_path: "../../x"\n', "absolute": b'model_checkpoint_path: "/etc/passwd"\n', "odd": 'model_checkpoint_path: "\x1b[2J\u202e"\n'.encode(), "long": b'model_checkpoint_path: "' + b"x" * 1000000 + b'"\n'}.items():
            yield f"damaged: TensorFlow, state {name}", several({"inner/" + key: value for key, value in files.items()} | {"inner/checkpoint": state}, "inner")


def make_all(cbk, folder, wanted):
    seeds = os.path.join(folder, "seeds")
    os.mkdir(seeds)
    cases = []
    for generate in (pickles, zips, safetensors, indexes, h5, ggufs, numpys, configs, converters, lambda: damage(cbk, seeds)):
        for name, make in generate():
            if wanted in name:
                place = os.path.join(folder, f"case {len(cases)}")
                os.mkdir(place)
                cases.append((name, place, make(place)))
    with open(os.path.join(folder, "cases.json"), "w", encoding="utf-8") as file:
        json.dump(cases, file)


if __name__ == "__main__":
    make_all(sys.argv[1], sys.argv[2], "".join(sys.argv[3:]))
