-- Natural order: "layer.2" before "layer.10".

local natural = {}

local ZERO = ("0"):byte()

--- The number of digits as six digits.
local lengths = setmetatable({}, { __index = function(known, count)
  known[count] = ("%06d"):format(count)
  return known[count]
end })

---A text whose plain order is the natural order of the original.
---@param text string
function natural.key(text)
  local out, from = "", 1
  while true do
    local first, last = text:find("%d+", from)
    if not first then return from == 1 and text or out .. text:sub(from) end
    local significant = first
    while significant <= last and text:byte(significant) == ZERO do significant = significant + 1 end
    out = out .. text:sub(from, first - 1) .. lengths[last - significant + 1] .. text:sub(significant, last)
    from = last + 1
  end
end

---Whether one text comes before another in natural order.
---@param a string
---@param b string
function natural.less(a, b)
  local x, y = natural.key(a), natural.key(b)
  if x ~= y then return x < y end
  return a < b
end

---A new list in natural order.
---@param list any[]
---@param text_of? fun(item: any): string
---@return any[]
function natural.sort(list, text_of)
  local keys, order, is_sorted = {}, {}, true
  for i, item in ipairs(list) do
    local text = text_of and text_of(item) or item
    keys[i], order[i] = natural.key(text), i
    is_sorted = is_sorted and (i == 1 or keys[i - 1] <= keys[i])
  end
  if not is_sorted then
    table.sort(order, function(a, b)
      if keys[a] ~= keys[b] then return keys[a] < keys[b] end
      return a < b
    end)
  end
  local out = {}
  for i, from in ipairs(order) do out[i] = list[from] end
  return out
end

return natural
