"""Checkpoints of deep-learning models as NumPy arrays. The program cbk reads them: $CBK, or the one in the PATH.

    with cbk.open("model.mdl") as c:
        w = c["model.lm_head.weight"]        # a Tensor, of which nothing is read yet; in a tree also c["model"]["lm_head.weight"]
        some = w[0:3, :]                     # reads these rows alone
        whole = np.asarray(w)

NumPy has neither bfloat16 nor 8-bit floats: such tensors are arrays of float32, which holds all their values. So are quantised weights
(GGUF, GPTQ, FP8 with scales, …). `Tensor.stored()` has what is in the file: their bits as unsigned integers, or their blocks.
"""
from __future__ import annotations

import contextlib
import fcntl
import json
import operator
import os
import shutil
import subprocess
import threading
import weakref
from builtins import open as open_file
from collections.abc import ItemsView, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Optional, Union
from warnings import warn

import numpy as np
import numpy.typing as npt

__all__ = ["Checkpoint", "Error", "MissingKey", "Node", "Object", "Tensor", "check", "convert", "diff", "open"]

Path = Union[str, "os.PathLike[str]"]
Array = npt.NDArray[Any]
_F_SETPIPE_SZ, _PIPE_SIZE = 1031, 1 << 20


class Error(Exception):
    """What cbk reports. Its text is that of the command; `parts` has more, such as `file` and `key` ('cbk help json')."""

    def __init__(self, parts: Mapping[str, Any]) -> None:
        super().__init__(parts)
        self.parts, self.code, self.advice = dict(parts), str(parts["code"]), parts.get("advice")

    def __str__(self) -> str:
        return str(self.parts["message"])


class MissingKey(Error, KeyError):
    """A checkpoint lacks a key."""


def _error(code: str, message: str, **parts: Any) -> Error:
    return (MissingKey if code == "key" else Error)({"code": code, "message": message, **parts})


# An instance of a class, as the file describes it. Nothing of the class is run.
Object = NamedTuple("Object", [("type", str), ("repr", str), ("state", Any)])


def _program() -> str:
    found = os.environ.get("CBK") or shutil.which("cbk")
    if not found:
        raise _error("missing", "cannot find the program cbk; install it, or set CBK to its path")
    return found


def _end(process: Any, owner: int) -> Optional[int]:
    for pipe in process.stdin, process.stdout:
        with contextlib.suppress(OSError):
            pipe.close()
    if owner != os.getpid():
        return None  # it is the parent's
    with contextlib.suppress(subprocess.TimeoutExpired):  # busy
        return int(process.wait(1))
    process.kill()
    return int(process.wait())


class _Server:
    """A `cbk serve` with one checkpoint. It is started again after a fork, and after a reply that was not read to its end."""

    def __init__(self, request: Mapping[str, Any]) -> None:
        self._request, self._lock, self._is_closed = request, threading.Lock(), False
        self._start()

    def __reduce__(self) -> Any:
        return _Server, (self._request,)

    def _start(self) -> None:
        # A session of its own: Ctrl-C is for Python alone.
        process: Any = subprocess.Popen([_program(), "serve", "--stdio"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        start_new_session=True)
        self._in, self._out, self._owner = process.stdin, process.stdout, os.getpid()
        self._stop = weakref.finalize(self, _end, process, self._owner)
        self.has_files = os.access(f"/proc/{process.pid}/fd/0", os.R_OK)  # so that elements need not come through the pipe
        with contextlib.suppress(OSError):
            fcntl.fcntl(self._out, _F_SETPIPE_SZ, _PIPE_SIZE)
        self.facts: dict[str, Any] = self._exchange({"method": "open", **self._request})

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            self._stop()

    def _reply(self) -> dict[str, Any]:
        line = self._out.readline()
        if not line.endswith(b"\n"):
            raise _error("io", f"'cbk serve' ended with the status {self._stop()}")
        reply: dict[str, Any] = json.loads(line)
        if "error" in reply:
            raise _error(**reply["error"])
        return reply

    def _fill(self, target: memoryview, block: Mapping[str, Any]) -> None:
        with contextlib.ExitStack() as stack:
            source = self._out
            if "file" in block:
                source = stack.enter_context(open_file(block["file"], "rb", buffering=0))
                source.seek(block["offset"])
            while target:
                count = source.readinto(target)
                if not count:
                    self._stop()
                    raise _error("io", "a tensor ended early: its file became shorter, or 'cbk serve' ended")
                target = target[count:]

    def _array(self, dtype: str, shape: list[int]) -> Array:
        array: Array = np.empty(shape, dtype)
        target, block = array.reshape(-1).view(np.uint8).data, self._reply()
        while "bytes" in block:
            self._fill(target[:block["bytes"]], block)
            target, block = target[block["bytes"]:], self._reply()
        return array

    def _exchange(self, request: Mapping[str, Any]) -> Any:
        try:
            with contextlib.suppress(BrokenPipeError):  # then there is no reply, either
                self._in.write(json.dumps(request).encode() + b"\n")
                self._in.flush()
            reply = self._reply()
            return self._array(reply["array"]["dtype"], reply["array"]["shape"]) if "array" in reply else reply["result"]
        except BaseException as error:
            if not isinstance(error, Error) or request["method"] == "open":  # such as Ctrl-C: the rest of a reply is of no use
                self._stop()
            raise

    def call(self, method: str, **parameters: Any) -> Any:
        """The result of a request; of `read`, an array."""
        with self._lock:
            if self._is_closed:
                raise ValueError(f"the checkpoint '{self._request['path']}' is closed")
            if self._owner != os.getpid() or not self._stop.alive:
                self._stop()
                self._start()
            return self._exchange({"method": method, "checkpoint": 1, **parameters})

    def pages(self, method: str, **parameters: Any) -> Iterator[Any]:
        """All entries, which come by the thousand."""
        first: Optional[int] = 0
        while first is not None:
            page = self.call(method, first=first, **parameters)
            yield from page["entries"]
            first = page["next"]


def _part(index: Any, extent: int) -> tuple[list[int], Any]:
    """[start, stop, step] to read of a dim, and the index that makes the result of what was read."""
    if isinstance(index, slice):
        picked = range(*index.indices(extent))
        forward = picked if picked.step > 0 else picked[::-1]
        return [forward.start, forward.stop, forward.step] if forward else [0, 0, 1], slice(None, None, 1 if picked.step > 0 else -1)
    if isinstance(index, bool) or not hasattr(index, "__index__") or getattr(index, "ndim", False):
        raise TypeError("a Tensor takes integers, slices and '...'; for other indices, read it first: np.asarray(tensor)[index]")
    at = operator.index(index)
    if not -extent <= at < extent:
        raise IndexError(f"index {at} is out of bounds for a dim of {extent}")
    return [at % extent, at % extent + 1, 1], 0


class Tensor:
    """A tensor of a checkpoint. `np.asarray(t)` reads all of it, `t[0:3, :]` a part.

    `dtype` and `nbytes` are those of the array; `stored_dtype` is that of the file, such as "bfloat16" or "Q4_K"."""

    def __init__(self, server: _Server, at: list[Any], value: Mapping[str, Any]) -> None:
        self._server, self._at = server, at
        self.shape: tuple[int, ...] = tuple(value["shape"])
        self.ndim, self.size = len(self.shape), int(np.prod(self.shape, dtype=object))
        self.dtype: np.dtype[Any] = np.dtype(value["array"])
        self.nbytes = self.size * self.dtype.itemsize
        self.stored_dtype: str = value.get("encoding") or value["dtype"]

    def _read(self, **parameters: Any) -> Array:
        array: Array = self._server.call("read", at=self._at, files=self._server.has_files, **parameters)
        return array

    def __array__(self, dtype: Any = None, copy: Optional[bool] = None) -> Array:
        return self._read().astype(dtype or self.dtype, copy=False)

    def __getitem__(self, index: Any) -> Any:
        given = index if isinstance(index, tuple) else (index,)
        gap = next((i for i, one in enumerate(given) if one is Ellipsis), len(given))
        before, after = given[:gap], given[gap + 1:]
        if len(before) + len(after) > self.ndim:
            raise IndexError(f"too many indices: the tensor has {self.ndim} dims, and {len(before) + len(after)} were indexed")
        whole = [slice(None)] * (self.ndim - len(before) - len(after))
        parts = [_part(one, extent) for one, extent in zip((*before, *whole, *after), self.shape)]
        return self._read(index=[part for part, _ in parts])[tuple(rest for _, rest in parts)]

    def stored(self) -> Array:
        """What is in the file: bits of bfloat16 and 8-bit floats as unsigned integers, blocks of quantised elements as bytes."""
        return self._read(stored=True)

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("a tensor without dims has no len()")
        return self.shape[0]

    def __repr__(self) -> str:
        return f"<cbk.Tensor {self.stored_dtype} {list(self.shape)}>"


_SEQUENCES: dict[str, Any] = {"tuple": tuple, "torch_size": tuple, "set": set, "frozenset": frozenset}


def _value(server: _Server, at: list[Any], value: Any) -> Any:
    """What a description by 'cbk serve' means; a plain key means itself."""
    if not isinstance(value, dict):
        return value
    kind = value["kind"]
    if "array" in value:
        tensor = Tensor(server, at, value)
        return tensor[()] if kind == "np_scalar" else tensor
    if kind == "dict":
        return Node(server, at, value["count"])
    if "items" in value:
        return tuple(_value(server, [], one) for one in value["items"])
    if "count" in value:
        items = server.pages("entries", at=at, values=True)
        return _SEQUENCES.get(kind, list)(_value(server, [*at, key], item) for key, item in items)
    if kind == "object":
        inner = [*at, {"state": True}]
        return Object(value["type"], value["repr"], _value(server, inner, server.call("value", at=inner)) if value["state"] else None)
    return bytes.fromhex(value["hex"]) if kind == "bytes" else complex(*value["value"]) if kind == "complex" else value["value"]


class _Items(ItemsView[Any, Any]):
    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        node: Any = self._mapping  # type: ignore[attr-defined]
        for i, (key, value) in enumerate(node._server.pages("entries", at=node._at, values=True)):
            step = {"entry": i} if isinstance(key, dict) else key
            yield _value(node._server, [], key), _value(node._server, [*node._at, step], value)


class Node(Mapping[Any, Any]):
    """A dict of a checkpoint. Its keys are read when they are asked for. A key may also be several with dots between them."""

    def __init__(self, server: _Server, at: list[Any], count: int) -> None:
        self._server, self._at, self._count = server, at, count

    def __getitem__(self, key: Any) -> Any:
        step = key
        if not isinstance(key, str) and type(key) is not int:  # others are found by their place
            alike = (i for i, known in enumerate(self) if type(known) is type(key) and known == key)
            step = {"entry": next(alike, -1)}
            if step["entry"] < 0:
                raise _error("key", f"there is no key {key!r}")
        at = [*self._at, step]
        return _value(self._server, at, self._server.call("value", at=at))

    def __iter__(self) -> Iterator[Any]:
        return (_value(self._server, [], key) for key, in self._server.pages("entries", at=self._at))

    def __len__(self) -> int:
        return self._count

    def items(self) -> ItemsView[Any, Any]:
        return _Items(self)

    def __repr__(self) -> str:
        return f"<cbk.{type(self).__name__} with {self._count} keys>"


class Checkpoint(Node):
    """An open checkpoint: the dict at its root, and what the format has beside it."""

    def __init__(self, server: _Server) -> None:
        facts = server.facts
        super().__init__(server, [], facts["root"].get("count", 0))
        self.path, self.format, self.version = str(facts["path"]), str(facts["format"]), str(facts["version"])
        self.files: list[str] = facts["files"]
        self.root = _value(server, [], facts["root"])  # not always a dict: the array of a .npy file
        self.metadata = _value(server, [{"metadata": True}], facts["metadata"])

    def tensors(self, glob: str = "*") -> Iterator[tuple[str, Tensor]]:
        """All tensors, with whole dotted keys that match: * ? [a-z] {a,b}."""
        return ((key, Tensor(self._server, [key], value)) for key, value in self._server.pages("tensors", glob=glob))

    def close(self) -> None:
        """Ends the process that reads it. Arrays stay."""
        self._server.close()

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.close()


def open(path: Path, *, stored: bool = False, allow_external: Sequence[Path] = (), **options: Any) -> Checkpoint:
    """Opens a checkpoint of any format; only its headers are read. `stored`: the codes and scales of quantised weights, not their
    numbers. Options: `allow_records`, `max_expansion`, `salvage`, as those of the commands ('cbk ls --help')."""
    folders = [os.path.abspath(folder) for folder in allow_external]
    server = _Server({"path": os.path.abspath(path), "stored": stored, "allow_external": folders, **options})
    for text in server.facts["warnings"]:
        warn(text, stacklevel=2)
    return Checkpoint(server)


def _run(command: str, paths: Sequence[Path], options: Mapping[str, Any]) -> Any:
    words = [_program(), command, "--json"]
    for name, option in options.items():
        wanted = [one for one in (option if isinstance(option, (list, tuple)) else [option]) if one is not None and one is not False]
        words += [f"--{name.replace('_', '-')}" + ("" if one is True else f"={one}") for one in wanted]
    done = subprocess.run([*words, "--", *[os.fspath(path) for path in paths]], stdin=subprocess.DEVNULL, capture_output=True, check=False)
    for note in (json.loads(line) for line in done.stderr.splitlines() if line.startswith(b"{")):
        if "error" in note:
            raise _error(**note["error"])
        warn(note["warning"]["message"], stacklevel=3)
    if done.returncode not in (0, 1):
        raise _error("internal", f"'cbk {command}' ended with the status {done.returncode}")
    return json.loads(done.stdout)


def convert(source: Path, folder: Optional[Path] = None, *, to: str, **options: Any) -> Any:
    """The result of `cbk convert SOURCE --to FORMAT --output-dir FOLDER --json`; `single_file=True` is --single-file, and so on."""
    return _run("convert", [source], {"to": to, "output_dir": folder, **options})


def diff(a: Path, b: Path, **options: Any) -> Any:
    """The result of `cbk diff A B --json`: `diff(a, b, rtol=1e-3)["equal"]`."""
    return _run("diff", [a, b], options)


def check(path: Path, **options: Any) -> Any:
    """The result of `cbk check PATH --json`: `check(path)["findings"]`."""
    return _run("check", [path], options)
