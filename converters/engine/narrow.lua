-- Sums and products of weights in dtypes of 16 bits, which round them: to 8 bits in bfloat16, to 11 in float16.

local cbk = require "cbk"

local narrow = {}

---Whether a dtype is a float of less than 32 bits.
---@param dtype string
function narrow.is(dtype)
  local facts = cbk.dtype(dtype)
  return facts.floating and facts.size < 4
end

---Whether products with a factor are rounded in a dtype: all but those with powers of two.
---@param dtype string
---@param factor number
function narrow.rounds(dtype, factor) return narrow.is(dtype) and math.frexp(math.abs(factor)) ~= 0.5 end

---A warning about results that are rounded.
---@param what string   "muP multiplies weights such as 'a.weight'"
---@param dtype string
function narrow.text(what, dtype)
  return ("%s (%s): each result is rounded to %s, by up to %s; `cbk copy --to-dtype float32` first keeps them as they are"):format(what,
    dtype, dtype, dtype == "bfloat16" and "0.4 %" or "0.05 %")
end

return narrow
