-- Functions that make a tensor that the other side lacks.

local cbk = require "cbk"
local definitions = require "cbk.infer.definitions"
local trials = require "cbk.infer.trials"

local makers = {}

---Whether a field of a config has a value; its name.
local function field_with(config, value)
  for name, own in cbk.items(config or cbk.dict()) do
    if type(name) == "string" and own == value then return name end
  end
end

local function number(x) return ("%.17g"):format(x) end

---A function that makes a tensor that the other side lacks: a buffer, or one number everywhere.
---@param item Item
---@param configs { left: Dict|nil, right: Dict|nil }
---@param rows? Tensor   of the rule that will write it
---@return string|nil text   an expression
function makers.find(item, configs, rows)
  local shape, list = item.shape, {}
  local n = shape[#shape]
  local function add(text) list[#list + 1] = text end
  if #shape == 0 and item.dtype == "float32" then add(("actions.buffer.scalar(%s)"):format(number(item.tensor:item()))) end
  if #shape == 4 and shape[1] == 1 and shape[2] == 1 and shape[3] == n then
    local field = field_with(configs.right, n)
    if field then add(("actions.buffer.causal_mask %q"):format(field)) end
    add(('function() return cbk.tril({ 1, 1, %d, %d }, { dtype = "%s" }) end'):format(n, n, item.dtype))
  end
  if #shape == 2 and shape[1] == 1 and item.dtype == "int64" and rows and rows:shape()[1] >= n then
    add(("actions.buffer.positions %q"):format(field_with(configs.left, n) or "max_position_embeddings")) -- else as many as rows
  end
  if #shape == 1 and item.dtype == "float32" then
    for _, base in ipairs { 10000, configs.left and configs.left.rope_theta or nil } do
      local text = type(base) == "number" and ("actions.rotary.frequencies(%s)"):format(number(base))
      if text then add(text) end
      if text and not configs.right then
        add(("function() return %s { right = { rotary_dim = %d } } end"):format(text, 2 * n))
      end
    end
  end
  if #shape == 2 and n == 1 then add "actions.buffer.alibi_slopes" end
  if item.numel > 1 and item.numel < 2 ^ 24 or #shape > 0 then
    local stats = item.tensor:stats()
    local is_one = stats.min and stats.min == stats.max and stats.nan + stats.inf == 0
    local extents = {}
    for i, extent_of in ipairs(shape) do
      local field = extent_of > 1 and configs.right and field_with(configs.right, extent_of)
      local is_row = not field and extent_of > 1 and rows and rows:shape()[1] == extent_of
      extents[i] = field and "at.right." .. field or is_row and "t:shape()[1]" or tostring(extent_of)
    end
    local text = table.concat(extents, ", ")
    local arguments = text:find "t:" and "_, t" or text:find "at%." and "at" or ""
    if is_one then
      add(('function(%s) return cbk.full({ %s }, %s, { dtype = "%s" }) end'):format(arguments, text, number(tonumber(stats.min)),
        item.dtype))
    end
  end
  for _, text in ipairs(list) do
    local fine, made = pcall(function()
      local make = definitions.evaluate { text = text }
      return make({ left = configs.left or {}, right = configs.right or {}, side = "left", key = item.key }, rows)
    end)
    if not fine and type(made) == "table" and made.code == "interrupted" then error(made, 0) end
    if fine and made and trials.same_values(made, item.tensor) then return text end
  end
end

return makers
