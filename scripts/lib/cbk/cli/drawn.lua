-- The tensors to draw that a key, a glob or either with [PART] means.

local cbk = require "cbk"
local key_part = require "cbk.cli.key_part"

local drawn = {}

---@class DrawnTensor
---@field key string       "w[5, 9]"
---@field row LeafRow      of the whole value, which may be no tensor
---@field tensor any
---@field is_part? boolean

---Whether numbers of a row can be drawn.
---@param row LeafRow
function drawn.is_fit(row) return row.shape ~= nil and not row.problem and not row.type:find "^complex" end

---@param rows LeafRows
---@param text string
---@return DrawnTensor[]
function drawn.find(rows, text)
  local exact, out = rows:find(text), {}
  for n, part in ipairs(exact and {} or key_part.find(rows, text)) do
    out[n] = { key = part.key, row = rows[part.row], tensor = part.tensor, is_part = true }
  end
  if #out > 0 then return out end
  local matches = not exact and cbk.glob(text)
  for i = exact or 1, exact or #rows do
    local path = rows:path(i)
    if exact or matches(path) then out[#out + 1] = { key = path, row = rows[i], tensor = rows:value(i) } end
  end
  return out
end

---The only tensor that a text names, or nil. Fails for several, and for what cannot be drawn.
---@param rows LeafRows
---@param text string
---@param advice fun(key: string): string   what to do about several, such as the first
---@return DrawnTensor|nil
function drawn.one(rows, text, advice)
  local list = drawn.find(rows, text)
  if #list > 1 then cbk.fail("ambiguous", ("several keys match %s; %s"):format(cbk.quote(text), advice(list[1].key))) end
  local one = list[1]
  if not one or drawn.is_fit(one.row) then return one end
  local row = one.row
  if row.problem then cbk.fail("value", ("cannot read %s: %s"):format(cbk.quote(row.path), row.problem)) end
  if not row.shape then cbk.fail("dtype", ("%s is not a tensor (%s)"):format(cbk.quote(row.path), row.type)) end
  cbk.fail("dtype", ("cannot draw %s: %s numbers have no order"):format(cbk.quote(row.path), row.type))
end

return drawn
