-- Buffers of given shapes: masks, positions, frequencies. Those of the Model Zoo's models, made from its configs, are `actions.buffer`.

local cbk = require "cbk"
local actions = require "converters.vocabulary.actions"
local rules = require "converters.engine.rules"

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
  return cbk.tensor(out, { dtype = dtype, shape = shape })
end

return rules.strict(buffers, "buffer")
