"""A safetensors file written and read by hand, also with dtypes that PyTorch here does not have."""
import json
import struct

import torch

DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64,
          "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool}
NAMES = {dtype: name for name, dtype in DTYPES.items()}


def raw(tensor):
    tensor = tensor.detach().contiguous()
    return (tensor.view(torch.int16) if tensor.dtype == torch.bfloat16 else tensor).numpy().tobytes()


def save(path, tensors, metadata=None):
    """`tensors`: name -> a tensor, or (name of the dtype, shape, bytes)."""
    header, data = {"__metadata__": {"format": "pt", **(metadata or {})}}, []
    end = 0
    for key, value in tensors.items():
        dtype, shape, content = value if isinstance(value, tuple) else (NAMES[value.dtype], list(value.shape), raw(value))
        header[key] = {"dtype": dtype, "shape": list(shape), "data_offsets": [end, end + len(content)]}
        end += len(content)
        data.append(content)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + b"".join(data))


def load(path):
    """Tensors by name, those of other dtypes as (dtype, shape, bytes), and the metadata."""
    with open(path, "rb") as file:
        size, = struct.unpack("<Q", file.read(8))
        header, data = json.loads(file.read(size)), file.read()
    metadata = header.pop("__metadata__", None) or {}
    out = {}
    for key, entry in header.items():
        dtype, content = DTYPES.get(entry["dtype"]), data[slice(*entry["data_offsets"])]
        out[key] = (entry["dtype"], entry["shape"], content)
        if dtype:
            out[key] = torch.frombuffer(bytearray(content), dtype=dtype).reshape(entry["shape"]) if content else torch.zeros(entry["shape"], dtype=dtype)
    return out, metadata


def with_aliases(tensors, metadata):
    """What safetensors' load_model sees: metadata that names a stored tensor is another name of it."""
    return {**tensors, **{key: tensors[value] for key, value in metadata.items() if value in tensors and key not in tensors}}
