-- Tensors that one side has and the other lacks, and that follow from its config or its shapes: what makes them again, and the check that
-- nothing else is dropped.

local assumptions = require "cbk.infer.assumptions"
local heads = require "cbk.infer.heads"
local makers = require "cbk.infer.makers"
local names = require "cbk.infer.names"
local naming = require "converters.engine.naming"
local source = require "cbk.infer.source"

local buffers = {}

local other_side = { left = "right", right = "left" }

---The rule whose layers a template's items count like, and their pattern with its letter.
---@param items Item[]
---@param rules InferredRule[]
---@param side Side
---@return InferredRule|nil, string|nil
local function host_of(items, rules, side)
  for _, rule in ipairs(rules) do
    local own = rule.templates[side] and rule.templates[side][1]
    if own and #rule[side] == 1 and not rule.each and #rule.pairs == #items then
      local prefix = own:match "^.-\1." or nil
      local pattern = prefix and items[1].template:sub(1, #prefix) == prefix and #items[1].numbers == 1
      local letter = rule.places[1][side][1]
      if pattern and type(letter) == "string" then return rule, names.pattern(items[1].template, { letter }) end
    end
  end
end

---The rule of a tensor that has as many rows as an item has elements, such as position embeddings.
---@param item Item
---@param is_near fun(key: string): boolean   whether a key is of the same part
local function host_of_rows(item, rules, side, is_near)
  local best
  for _, rule in ipairs(rules) do
    local own = #rule[side] == 1 and #rule.pairs == 1 and rule.pairs[1][side][1]
    if own and #own.shape == 2 and own.shape[1] >= item.numel and is_near(own.key) then
      local is_position = item.dtype == "int64" and own.key:find "position"
      if not best and own.shape[1] == item.numel or is_position then best = rule end
    end
  end
  return best
end

---What makers may ask for of the side that is read. The keys of parts are none that a converter knows.
---@param inventory Inventory
---@param has_parts boolean
---@return Others
local function others_of(inventory, has_parts)
  return {
    read = function(key) return inventory.by_key[key] and inventory.by_key[key].tensor end,
    positions = function(n)
      for _, item in ipairs(has_parts and {} or inventory.items) do
        local is_table = item.rule and #item.shape == 2 and item.shape[1] == n
        if is_table and heads.has_word(item, "position", "positions", "positional", "pos", "wpe") then return item.key end
      end
    end,
  }
end

---How all items of a template are made, if in one way.
---@param items Item[]
---@param configs { left: Dict|nil, right: Dict|nil }
---@param rows Tensor|nil
---@param others Others
---@return Maker|nil
local function maker_of(items, configs, rows, others)
  local maker = makers.find { item = items[1], configs = configs, rows = rows, others = others }
  for i = 2, maker and #items or 0 do
    local other = makers.find { item = items[i], configs = configs, others = others }
    if not other or other.text ~= maker.text then return nil end
  end
  return maker
end

---Keys of the side that is read, and the shapes that they have in the pair: if these are others, so may the numbers of the pair be. Those
---that have the number themselves, such as position embeddings, or any.
---@param inventory Inventory   of that side
---@param extent integer|nil
---@return string   a table
local function witnesses(inventory, extent)
  local with_extent, others = {}, {}
  for _, item in ipairs(inventory.items) do
    if item.rule and #item.shape > 0 then
      local has = false
      for _, n in ipairs(item.shape) do has = has or n == extent end
      table.insert(has and with_extent or others, ("[%s] = %s"):format(source.text(item.key),
        source.text(assumptions.shapes { item })))
    end
  end
  local list = #with_extent > 0 and with_extent or others
  return "{ " .. table.concat(list, ", ", 1, math.min(#list, 3)) .. " }"
end

---@param maker Maker
---@param side Side   that is written
---@param needs string[]   gets the definitions
---@return string   an expression
local function guarded(maker, inventories, side, needs)
  for _, need in ipairs(maker.needs or {}) do needs[#needs + 1] = need end
  if not maker.assumes then return maker.text end
  needs[#needs + 1] = "made_in_pair"
  return ("made_in_pair(%s, %s, %s)"):format(source.text(maker.assumes), witnesses(inventories[other_side[side]], maker.extent), maker.text)
end

local function add_made_options(rows)
  for _, row in pairs(rows) do
    for side, list in pairs(row.made or {}) do
      local option = ("also_%s = { %s }"):format(side, table.concat(list, ", "))
      for i, known in ipairs(row.options) do -- beside copies
        local copies = known:match("^also_" .. side .. " = {? ?(.-) ?}?$")
        if copies then
          option = ("also_%s = { %s, %s }"):format(side, copies, table.concat(list, ", "))
          table.remove(row.options, i)
          break
        end
      end
      table.insert(row.options, option)
    end
    row.made = nil
  end
end

---@class Buffering
---@field part_for fun(key: string): table
---@field without_part fun(part: table, text: string): string
---@field has_parts boolean   keys of the left begin with that of a part
---@field needs string[]   gets the definitions

---Adds makers for what only one side has: to a rule of the same layers, or to `fill`.
---@param inventories { left: Inventory, right: Inventory }
---@param side Side
---@param rules InferredRule[]
---@param rows table<InferredRule, Row>
---@param options Buffering
function buffers.explain(inventories, side, rules, rows, options)
  local inventory, part_for = inventories[side], options.part_for
  local others = others_of(inventories[other_side[side]], options.has_parts)
  for _, template in ipairs(naming.sorted(inventory.by_template)) do
    local items = inventory.by_template[template]
    local first = items[1]
    if not first.rule then
      local part = part_for(first.key)
      local configs = part.configs
      local host, pattern = nil, names.quoted(first.key)
      local is_int = first.dtype == "int64" and #first.shape == 2
      local is_vector = not configs.right and #first.shape == 1 and first.numel > 1
      if #items == 1 and (is_int or is_vector) then
        host = host_of_rows(first, rules, side, function(key) return side == "right" or part_for(key) == part end)
      end
      local maker = maker_of(items, configs, host and host.pairs[1][side][1].tensor, others)
      if maker and #first.numbers > 0 then
        local own_host, own_pattern = host_of(items, rules, side)
        host, pattern = own_host or host, own_pattern or pattern
      end
      if maker and (host or #items == 1) then
        local entry = guarded(maker, inventories, side, options.needs)
        for _, item in ipairs(items) do item.rule = part end
        if side == "left" then pattern = options.without_part(part, pattern) end
        part.checks[#part.checks + 1] = ('rules.refuse.%s(%s, "its values cannot be made again on the way back", unlike(%s)),'):format(
          side, source.text(pattern), maker.expected)
        options.needs[#options.needs + 1] = "unlike"
        if host then
          local list = rows[host].made or {}
          rows[host].made, list[side] = list, list[side] or {}
          table.insert(list[side], ("{ %s, %s }"):format(source.text(pattern), entry))
        else
          table.insert(part.made[side], ("{ %s, %s }"):format(source.text(pattern), entry))
          part.one_sided[#part.one_sided + 1] = ('rules.only.%s(%s, "it is made again on the way back"),'):format(side,
            source.text(pattern))
        end
      end
    end
  end
  add_made_options(rows)
end

return buffers
