-- Shapes and strides as text.

local extents = {}

---Whole numbers with `separator` between them. Numbers beyond 2^53 are int64, which `table.concat` does not accept.
---@param list integer[]
---@param separator string
---@return string
function extents.joined(list, separator)
  local texts = {}
  for i, extent in ipairs(list) do texts[i] = type(extent) == "string" and extent or ("%d"):format(extent) end
  return table.concat(texts, separator)
end

---"[2, 3]"
---@param shape integer[]
---@return string
function extents.shape(shape) return "[" .. extents.joined(shape, ", ") .. "]" end

return extents
