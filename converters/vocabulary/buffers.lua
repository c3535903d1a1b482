-- Buffers of given shapes: masks, positions, frequencies. Those of the Model Zoo's models, made from its configs, are `actions.buffer`.

local cbk = require "cbk"
local actions = require "converters.vocabulary.actions"
local rules = require "converters.engine.rules"
local shapes = require "converters.notation.shapes"

local buffers = {}

---Square matrices with one number on the diagonal and below it, and another one above; with `is_upper`, on the diagonal and above it, and
---another one below.
---@param shape integer[]
---@param inside number
---@param outside number
---@param dtype string
---@param is_upper? boolean
---@return Tensor
function buffers.triangle(shape, inside, outside, dtype, is_upper)
  local ones = cbk.tril(shape, { dtype = "float64" })
  if is_upper then ones = ones:transpose(#shape - 2, #shape - 1) end
  local out = ones:affine(inside - outside, outside)
  if math.abs(outside) == 1 / 0 then out = ((ones - 1) * -outside):replace_nan(inside) end -- 0 times infinity is NaN
  if math.abs(inside) == 1 / 0 then out = (ones * inside):replace_nan(outside) end
  return out:to(dtype)
end

---Ones on the diagonal, zeros elsewhere.
---@param shape integer[]
---@param dtype string
---@return Tensor
function buffers.identity(shape, dtype)
  local ones = cbk.tril(shape, { dtype = "float64" })
  return (ones + ones:transpose(#shape - 2, #shape - 1) - 1):to(dtype)
end

---1 / base^(2i / dim) as PyTorch computes it: each step is rounded to float32. `scaling`: rope_scaling of a config, whose types "linear"
---and "llama3" change the frequencies themselves.
---@param base number
---@param dim integer      rotated rows of a head
---@param scaling? Dict
---@return Tensor
function buffers.rotary_frequencies(base, dim, scaling)
  if dim > 2 ^ 16 then cbk.fail("shape", ("expected at most %d rotated rows, found %.0f"):format(2 ^ 16, dim)) end
  local function rounded(number_at)
    local out = {}
    for i = 1, dim / 2 do out[i] = number_at(i) end
    return cbk.tensor(out, { dtype = "float32" }):tolist()
  end
  local exponents = rounded(function(i) return 2 * (i - 1) / dim end)
  local powers = rounded(function(i) return base ^ exponents[i] end)
  local out = rounded(function(i) return 1 / powers[i] end)
  local kind = scaling and scaling ~= cbk.null and (scaling.rope_type or scaling.type)
  if kind == "linear" or kind == "llama3" then
    local plain = out
    local slow = rounded(function(i) return plain[i] / scaling.factor end)
    out = slow
    if kind == "llama3" then
      local least, most = scaling.low_freq_factor, scaling.high_freq_factor
      local length = scaling.original_max_position_embeddings
      local waves = rounded(function(i) return 2 * math.pi / plain[i] end)
      local turns = rounded(function(i) return length / waves[i] end)
      local above = rounded(function(i) return turns[i] - least end)
      local smooth = rounded(function(i) return above[i] / (most - least) end)
      local rest = rounded(function(i) return 1 - smooth[i] end)
      local low = rounded(function(i) return rest[i] * slow[i] end)
      local high = rounded(function(i) return smooth[i] * plain[i] end)
      out = rounded(function(i)
        if waves[i] > length / least then return slow[i] end
        return waves[i] < length / most and plain[i] or low[i] + high[i]
      end)
    end
  elseif kind and kind ~= "default" and kind ~= "dynamic" then
    cbk.fail("config", ("rotary frequencies of type '%s' are unknown"):format(tostring(kind)))
  end
  return cbk.tensor(out, { dtype = "float32" })
end

---The slopes of ALiBi positions for n heads.
---@param n integer
---@param shape integer[]
---@param dtype string
---@return Tensor
function buffers.slopes_of(n, shape, dtype)
  local at = { right = { position_embedding_type = "alibi", num_heads = n } }
  return actions.buffer.alibi_slopes(at):reshape(shape):to(dtype)
end

---0, 1, 2, …
---@param shape integer[]
---@param dtype string
---@return Tensor
function buffers.numbered(shape, dtype)
  local out, count = {}, 1
  for _, extent in ipairs(shape) do count = count * extent end
  if count > 2 ^ 20 then cbk.fail("shape", ("expected at most %d positions, found %.0f"):format(2 ^ 20, count)) end
  for i = 1, count do out[i] = i - 1 end
  local made = cbk.tensor(out, { dtype = dtype, shape = shape })
  local wanted = cbk.tensor(out, { dtype = "float64", shape = shape })
  if count > 0 and made:to("float64"):compare(wanted).different > 0 then
    cbk.fail("dtype", ("%s does not have every number up to %d"):format(dtype, count - 1))
  end
  return made
end

-- --- what the functions take

local shape = { says = "a list of extents", mistake = function(value, name)
  if type(value) ~= "table" then return name .. " must be a list of extents" end
  for _, extent in ipairs(value) do
    local mistake = shapes.index.mistake(extent, "an extent")
    if mistake then return mistake end
  end
end }
local square = { says = "a shape with square matrices", mistake = function(value, name)
  local mistake = shape.mistake(value, name)
  if not mistake and (#value < 2 or value[#value] ~= value[#value - 1]) then mistake = name .. " must end with two equal extents" end
  return mistake
end }
local even = shapes.of("an even number of at least 2", function(value) return not shapes.size.mistake(value, "") and value % 2 == 0 end)
local number, size, dtype, maybe = shapes.number, shapes.size, shapes.named("a dtype", shapes.dtype), shapes.maybe
local scaling = shapes.of("a map of rope_scaling, or null", function(value) return type(value) == "userdata" or type(value) == "table" end)

shapes.guard(buffers, "buffers", {
  triangle = { square, number, number, dtype, maybe(shapes.flag) }, identity = { square, dtype },
  rotary_frequencies = { shapes.finite, even, maybe(scaling) }, slopes_of = { size, shape, dtype }, numbered = { shape, dtype },
})

return rules.strict(buffers, "buffer")
