-- Tensors that compute: what makes them, and the scopes in which they are computed. Their methods are native
-- (cbk.compute), and described in meta.lua.

local cbk = require "cbk"
local errors = require "cstorch.errors"
local nested = require "cstorch.nested"
local session = require "cstorch.session"

local native = cbk.compute

---@alias cstorch.Input cstorch.Tensor|number

local tensors = {}

---A tensor of a number, of (nested) lists, or of a flat list and a shape; of a tensor of cbk without a copy through Lua. float32 unless
---said otherwise: Lua cannot tell 1 from 1.0.
---@param values number|table|Tensor|cstorch.Tensor
---@param options? { dtype: string, shape: integer[], requires_grad: boolean }
---@return cstorch.Tensor
function tensors.tensor(values, options) return native.tensor(values, options) end

---A tensor of zeros.
---@param shape integer[]
---@param options? { dtype: string }
---@return cstorch.Tensor
function tensors.zeros(shape, options) return native.zeros(shape, options) end

---A tensor of ones.
---@param shape integer[]
---@param options? { dtype: string }
---@return cstorch.Tensor
function tensors.ones(shape, options) return native.ones(shape, options) end

---A tensor of one value.
---@param shape integer[]
---@param value number
---@param options? { dtype: string }
---@return cstorch.Tensor
function tensors.full(shape, value, options) return native.full(shape, value, options) end

---Zeros with the shape, dtype and device of `like`.
---@param like cstorch.Tensor
---@param options? { dtype: string }
---@return cstorch.Tensor
function tensors.zeros_like(like, options) return native.zeros_like(like, options) end

---Ones in the shape and dtype of another tensor.
---@param like cstorch.Tensor
---@param options? { dtype: string }
---@return cstorch.Tensor
function tensors.ones_like(like, options) return native.ones_like(like, options) end

---A tensor of one value, in the shape and dtype of another.
---@param like cstorch.Tensor
---@param value number
---@param options? { dtype: string }
---@return cstorch.Tensor
function tensors.full_like(like, value, options) return native.full_like(like, value, options) end

---start, start + step, … before stop; `arange(n)` is 0 to n - 1.
---@param start number
---@param stop? number
---@param step? number
---@param options? { dtype: string }
---@return cstorch.Tensor
function tensors.arange(start, stop, step, options) return native.arange(start, stop, step, options) end

---Uniform numbers from [0, 1).
---@param shape integer[]
---@param options? { dtype: string }
---@return cstorch.Tensor
function tensors.rand(shape, options) return native.rand(shape, options) end

---Normal numbers: mean 0, standard deviation 1.
---@param shape integer[]
---@param options? { dtype: string }
---@return cstorch.Tensor
function tensors.randn(shape, options) return native.randn(shape, options) end

---Whole numbers from [low, high), int64.
---@param low integer
---@param high integer
---@param shape integer[]
---@param options? { dtype: string }
---@return cstorch.Tensor
function tensors.randint(low, high, shape, options) return native.randint(low, high, shape, options) end

---Begins the random numbers anew.
---@param seed integer
function tensors.manual_seed(seed) native.manual_seed(seed) end

---`a` where the condition is not zero, else `b`.
---@param condition cstorch.Tensor
---@param a cstorch.Input
---@param b cstorch.Input
---@return cstorch.Tensor
function tensors.where(condition, a, b, ...) return native.where(condition, a, b, ...) end

---Tensors side by side along a dim.
---@param list cstorch.Tensor[]
---@param dim? integer   default 0
---@return cstorch.Tensor
function tensors.cat(list, dim, ...) return native.cat(list, dim, ...) end

---Tensors of one shape along a new dim.
---@param list cstorch.Tensor[]
---@param dim? integer   default 0
---@return cstorch.Tensor
function tensors.stack(list, dim, ...) return native.stack(list, dim, ...) end

---Whether a value is a tensor of cstorch.
---@param value any
---@return boolean
function tensors.is_tensor(value) return native.is_tensor(value) end

---The values as a tensor of cbk, over the same memory: for checkpoints.
---@param tensor cstorch.Tensor
---@return Tensor
function tensors.to_lazy(tensor) return native.to_lazy(tensor) end

local function check_function(what, fn)
  errors.check(type(fn) == "function", "type", "%s: expected a function, found %s", what, errors.show(fn))
end

--- Calls `leave` with or without an error, then returns the results or raises the error again.
local function finish(leave, is_fine, ...)
  leave(is_fine)
  if not is_fine then error((...), 0) end
  return ...
end

--- The results of a coroutine, or an error when it yielded.
local function of_coroutine(inner, what, fine, ...)
  if coroutine.status(inner) ~= "suspended" then return fine, ... end
  return pcall(errors.raise, "runtime", "%s: a coroutine cannot yield inside of it, as its mode would stay set; yield after it", what)
end

--- pcall, but a yield out of `fn` is an error. Only a coroutine can yield, and the main program is not one.
local function protected(what, fn, ...)
  if not coroutine.running() then return pcall(fn, ...) end
  local inner = coroutine.create(fn)
  return of_coroutine(inner, what, coroutine.resume(inner, ...))
end

---Calls `fn` without recording gradients and returns its results.
---@generic T
---@param fn fun(...): T
---@return T
function tensors.no_grad(fn, ...)
  check_function("no_grad", fn)
  local before = native.records_gradients(false)
  return finish(function() native.records_gradients(before) end, protected("no_grad", fn, ...))
end

---Whether operations are recorded for gradients.
---@return boolean
function tensors.is_grad_enabled() return native.records_gradients() end

--- The program that operators are recorded into, if any.
local recorded

---Calls `fn` while operators are recorded into `program` instead of run.
---@param program table
---@param fn function
function tensors.record(program, fn, ...)
  local before = recorded
  recorded = program
  native.recording(program)
  return finish(function()
    recorded = before
    native.recording(before)
  end, protected("a recorded step or formula", fn, ...))
end

---Calls `fn` with its element-wise operators joined: each chain of them passes over memory once. What lasts must be written in place into
---tensors that exist before; other tensors made inside have no values afterwards. Reading a value inside runs what is recorded so far.
---@param fn function
function tensors.formula(fn, ...)
  check_function("formula", fn)
  if recorded then return fn(...) end
  local program = native.program "runs early"
  return finish(function(is_fine)
    if is_fine then
      program:finish()
      program:run()
    end
    program:close() -- values made inside are gone at once, not when garbage is collected
  end, pcall(tensors.record, program, fn, ...))
end

---Calls `fn`, in which tensors of checkpoints are not read: formulas over `cstorch.tensor(t)` are recorded, and what
---`fn` returns comes back as nested tables of tensors of cbk, which are computed block by block when they are written. For element-wise
---formulas, as those of most optimizers are; others are an error.
---@param fn fun(): table
---@return table
function tensors.lazily(fn, ...)
  check_function("lazily", fn)
  local program = native.program "in place"
  local result = tensors.no_grad(tensors.record, program, fn, ...)
  nested.each(result, function(tensor) program:keep(tensor) end)
  program:finish_lazily()
  return nested.map(result, function(tensor) return program:lazy_value(tensor) end)
end

---Calls `fn` if the one element of `flag` is not zero: at once, or in a recorded step in each replay. What it writes must exist before.
---@param flag cstorch.Tensor
---@param fn fun()
function tensors.when(flag, fn)
  if not recorded then
    local value = tensors.readable(true, flag.item, flag)
    if value ~= 0 and value ~= false then fn() end
    return
  end
  local program = recorded
  program:when(flag)
  finish(function() program:end_when() end, protected("a condition", fn))
end

---The device of the current backend.
---@return "cpu"|"csx"
function tensors.device() return session.backend and session.backend.kind == "CSX" and "csx" or "cpu" end

---Puts a tensor on the device of the current backend, in place; without a backend as soon as there is one.
---@param tensor cstorch.Tensor
---@return cstorch.Tensor
function tensors.to_device(tensor)
  if not session.backend then
    session.unplaced_count = session.unplaced_count + 1
    session.unplaced[session.unplaced_count] = tensor
  end
  return native.place(tensor, tensors.device())
end

---A value for a tensor, on the device of `like`. A tensor of a checkpoint is read.
---@param value Tensor|cstorch.Tensor
---@param like cstorch.Tensor
---@return cstorch.Tensor
function tensors.placed_like(value, like)
  return native.place(native.is_tensor(value) and value:detach() or native.tensor(value), like.device)
end

---Marks a weight, or a tensor of an optimizer's state: it leaves the device in checkpoints only.
---@param tensor cstorch.Tensor
function tensors.mark_weight(tensor) native.mark_weight(tensor) end

---Whether it is a weight or a tensor of an optimizer's state, or a view of one.
---@param tensor cstorch.Tensor
---@return boolean
function tensors.is_weight(tensor) return native.is_weight(tensor) end

---How often a tensor was written in place; a recorded write counts once.
---@param tensor cstorch.Tensor
---@return integer
function tensors.write_count(tensor) return tonumber(native.write_count(tensor)) end

---How many gradients `backward` gave to a tensor, whatever became of them.
---@param tensor cstorch.Tensor
---@return integer
function tensors.gradient_count(tensor) return tonumber(native.gradient_count(tensor)) end

---Whether a tensor was written in place after `backward` gave it the first gradient.
---@param tensor cstorch.Tensor
---@return boolean
function tensors.is_written_since_gradient(tensor) return native.is_written_since_gradient(tensor) end

---How often a tensor with a gradient had another one added or subtracted, as in p - lr * p.grad.
---@param tensor cstorch.Tensor
---@return integer
function tensors.rebound_count(tensor) return tonumber(native.rebound_count(tensor)) end

---Makes `backward` give a parameter gradients that are 0 where `mask` is, whatever they are elsewhere, NaN included.
---@param p cstorch.Tensor
---@param mask cstorch.Tensor   of its shape and device
function tensors.mask_gradients(p, mask) native.set_gradient_mask(p, mask) end

---The same values as a leaf that gets a gradient, which several ranks do not add up.
---@param x cstorch.Tensor
---@return cstorch.Tensor
function tensors.own_leaf(x)
  local out = x:detach():requires_grad_(true)
  native.set_own(out)
  return out
end

---A copy on the host, which can be read at any time.
---@param tensor cstorch.Tensor
---@return cstorch.Tensor
function tensors.to_host(tensor) return native.host_copy(tensor) end

---Calls `fn` while values of tensors on the device may be read, or may not.
---@param may_read boolean
---@param fn function
function tensors.readable(may_read, fn, ...)
  local before = native.may_read_device(may_read)
  return finish(function() native.may_read_device(before) end, protected("a step closure", fn, ...))
end

---Calls `fn` with new tensors on the device of the current backend.
---@param fn function
function tensors.on_device(fn, ...)
  local before = native.device(tensors.device())
  return finish(function() native.device(before) end, protected("compile_step", fn, ...))
end

return tensors
