-- Choices for rows of heads: sizes of heads, rotary rows, and the keys that have them.

local sizes = require "cbk.infer.sizes"

local heads = {}

---The divisors of a number except 1, the largest first.
---@param n integer
---@return integer[]
function heads.divisors(n)
  local out = {}
  for i = n, 2, -1 do
    if n % i == 0 then out[#out + 1] = i end
  end
  return out
end

local LARGEST_ODD_SHARE = 256 -- rows of a head for which every even rotary size is tried

---Calls `add` with sizes of heads and of their rotated parts, the usual ones first.
---@param rows integer
---@param add fun(size: integer, dim: integer)
function heads.each_rotation(rows, add)
  local list = {}
  for _, size in ipairs(heads.divisors(rows)) do list[#list + 1] = size % 2 == 0 and size <= 1024 and size or nil end
  for _, size in ipairs(list) do
    for _, dim in ipairs { size, size / 2, size / 4 } do
      if dim % 2 == 0 and dim > 2 then add(size, dim) end
    end
  end
  for _, size in ipairs(list) do
    for dim = 4, size <= LARGEST_ODD_SHARE and size - 2 or 0, 2 do
      if dim * 2 ~= size and dim * 4 ~= size then add(size, dim) end
    end
  end
end

---Whether a key contains one of some words.
---@param item Item
---@param ... string
---@return boolean
function heads.has_word(item, ...)
  for word in item.key:gmatch "%a+" do
    for _, one in ipairs { ... } do
      if word == one then return true end
    end
  end
  return false
end

---Whether some keys belong to queries, keys or values.
---@param items Item[]
---@return boolean
function heads.in_keys(items)
  for _, item in ipairs(items) do
    if heads.has_word(item, "q", "k", "v", "query", "key", "value", "queries", "keys", "values", "kv", "qk", "qkv") then return true end
  end
  return false
end

---The assumption of a rotation, for messages.
function heads.said(size, dim)
  return ("heads of %d rows%s"):format(size, dim < size and (", %d of them rotated"):format(dim) or "")
end

---Rotary rows of heads. The size is read from the configs if both have it.
---@param trial Trial
---@param size integer
---@param dim integer
---@return Choice
function heads.rotation(trial, size, dim)
  local of_size, of_dim = sizes.heads(trial.configs, size, dim, trial.left[1].key)
  if of_size and dim ~= 4 then -- with 4 rows, both directions are the same
    return { text = ("layouts.rotary_rows(%s%s)"):format(of_size, of_dim ~= of_size and ", " .. of_dim or "") }
  end
  return { text = ("layouts.rotary_rows(%d, %d)"):format(size, dim), assumes = heads.said(size, dim) }
end

return heads
