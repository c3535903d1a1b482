-- Which kinds of values (`cbk.kind`) are tensors.

local cbk = require "cbk"

local tensor_kinds = {}

---Those that have a shape and are stored as such: PyTorch's tensors and parameters, NumPy's arrays.
tensor_kinds.ARRAYS = { tensor = true, parameter = true, ndarray = true }

---Also NumPy's scalars, which are read as tensors.
tensor_kinds.ALL = { tensor = true, parameter = true, ndarray = true, np_scalar = true }

---Whether a value is one of `ALL`.
---@param value any
function tensor_kinds.is_tensor(value) return type(value) == "userdata" and tensor_kinds.ALL[cbk.kind(value)] == true end

---Whether a value is one of `ARRAYS`.
---@param value any
function tensor_kinds.is_array(value) return type(value) == "userdata" and tensor_kinds.ARRAYS[cbk.kind(value)] == true end

return tensor_kinds
