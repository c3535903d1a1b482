-- Shapes of tensors: as text, and compared.

local shapes = {}

---"[2, 3]".
---@param tensor any
---@return string
function shapes.text(tensor) return "[" .. table.concat(tensor:shape(), ", ") .. "]" end

---@param a any
---@param b any
---@return boolean
function shapes.same(a, b)
  local x, y = a:shape(), b:shape()
  if #x ~= #y then return false end
  for i = 1, #x do
    if x[i] ~= y[i] then return false end
  end
  return true
end

return shapes
