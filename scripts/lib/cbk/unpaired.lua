-- Elements that have no distance: NaN in one of two tensors, or an infinity beside another number.

local numbers = require "cbk.numbers"

---"NaN in B only: 64, infinite: 1"; empty if there are none.
---@param counts { nan_a: integer|nil, nan_b: integer|nil, infinite: integer|nil }   of `Tensor:compare`
---@return string
local function unpaired(counts)
  local out = {}
  local function add(words, count)
    if count and count > 0 then out[#out + 1] = words .. ": " .. numbers.grouped(count) end
  end
  add("NaN in A only", counts.nan_a)
  add("NaN in B only", counts.nan_b)
  add("infinite", counts.infinite)
  return table.concat(out, ", ")
end

return unpaired
