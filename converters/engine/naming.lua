-- Names in messages.

local naming = {}

---The keys of a map, sorted.
---@param map table<string, any>
---@return string[]
function naming.sorted(map)
  local out = {}
  for name in pairs(map) do out[#out + 1] = name end
  table.sort(out)
  return out
end

---@param list { count: integer? }   the first of them will do, where it says how many there are
---@param most? integer   that are named, default 20
---@return string
function naming.first(list, most)
  local shown = {}
  for i = 1, math.min(#list, most or 20) do shown[i] = tostring(list[i]) end
  local rest = (list.count or #list) - #shown
  return table.concat(shown, ", ") .. (rest > 0 and (", … and %d more"):format(rest) or "")
end

return naming
