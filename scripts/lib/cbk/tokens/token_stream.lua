-- Ids in a temporary file, which becomes one lazy tensor.

local cbk = require "cbk"
local ffi = require "ffi"

local token_stream = {}

---@class TokenStream
---@field path string
---@field count integer   ids so far
local Stream = {}
Stream.__index = Stream

local HEADER, BUFFERED = 128, 16384 -- bytes of an .npy header; ids

--- The header of an .npy file of int32.
local function header(count)
  local text = ("{'descr': '<i4', 'fortran_order': False, 'shape': (%.0f,), }"):format(count)
  return "\147NUMPY\1\0" .. "\118\0" .. text .. (" "):rep(HEADER - 11 - #text) .. "\n"
end

function Stream:_write(text)
  local fine, problem = self.file:write(text)
  if not fine then cbk.fail("no_space", ("cannot write %s: %s"):format(cbk.quote(self.path), problem), { file = self.path }) end
end

local function flush(self)
  self:_write(ffi.string(self.buffer, 4 * self.filled))
  self.filled = 0
end

---@param target string   the file is beside it, and is removed when the program ends
---@return TokenStream
function token_stream.create(target)
  local path = cbk.fs.temporary(target)
  local file, problem = io.open(path, "wb")
  if not file then cbk.fail("io", ("cannot write %s"):format(problem), { file = path }) end
  local self = setmetatable({ path = path, file = file, count = 0, buffer = ffi.new("int32_t[?]", BUFFERED), filled = 0 }, Stream)
  self:_write(header(0))
  return self
end

---@param ids integer[]
function Stream:add(ids)
  for i = 1, #ids do
    self.buffer[self.filled] = ids[i]
    self.filled = self.filled + 1
    if self.filled == BUFFERED then flush(self) end
  end
  self.count = self.count + #ids
end

---Ends the file. Its ids are read when they are asked for, so it must stay until then.
---@return Tensor   int32 [count]
function Stream:finish()
  flush(self)
  self.file:seek("set", 0)
  self:_write(header(self.count))
  self.file:close()
  return select(2, cbk.open(self.path):tensors()())
end

---Removes the file.
function Stream:remove()
  if io.type(self.file) == "file" then self.file:close() end
  cbk.fs.remove(self.path)
end

return token_stream
