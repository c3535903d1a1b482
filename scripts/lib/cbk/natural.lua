-- Natural order: "layer.2" before "layer.10".

local natural = {}

---A text whose plain order is the natural order of the original.
---@param text string
function natural.key(text)
  return (text:gsub("%d+", function(digits)
    local significant = digits:gsub("^0+", "")
    return ("%06d%s"):format(#significant, significant)
  end))
end

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
  local keys, order = {}, {}
  for i, item in ipairs(list) do
    local text = text_of and text_of(item) or item
    keys[i], order[i] = natural.key(text), i
  end
  table.sort(order, function(a, b)
    if keys[a] ~= keys[b] then return keys[a] < keys[b] end
    return a < b
  end)
  local out = {}
  for i, from in ipairs(order) do out[i] = list[from] end
  return out
end

return natural
