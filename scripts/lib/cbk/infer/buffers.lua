-- Tensors that only one side has and that follow from its config or its shapes: functions that make them again, and the check that
-- nothing else is dropped.

local assumptions = require "cbk.infer.assumptions"
local heads = require "cbk.infer.heads"
local makers = require "cbk.infer.makers"
local names = require "cbk.infer.names"
local naming = require "cbk.naming"
local source = require "cbk.infer.source"

local buffers = {}

local other_side = { left = "right", right = "left" }

---Rules of a side, indexed for `host_of` and `host_of_rows`.
---@class HostIndex
---@field by_layers table<string, { rule: InferredRule, letter: string }[]>   by the number of layers and their prefix, also the prefixes
---of further names
---@field by_rows table<integer, InferredRule[]>    matrices by their rows
---@field of_positions InferredRule[]               matrices with "position" in their names, the last one first

---@param rules InferredRule[]
---@param side Side
---@return HostIndex
local function index_of(rules, side)
  local out = { by_layers = {}, by_rows = {}, of_positions = {} }
  local function note(map, id, rule)
    map[id] = map[id] or {}
    table.insert(map[id], rule)
  end
  local function note_layers(rule, template, letter)
    local prefix = template:match "^.-\1."
    if prefix and type(letter) == "string" then note(out.by_layers, #rule.pairs .. " " .. prefix, { rule = rule, letter = letter }) end
  end
  for _, rule in ipairs(rules) do
    if #rule[side] == 1 and not rule.each then note_layers(rule, rule.templates[side][1], rule.places[1][side][1]) end
    for _, copy in ipairs(rule.each and {} or rule.also[side]) do note_layers(rule, copy.template, copy.places[1]) end
    local item = #rule[side] == 1 and #rule.pairs == 1 and rule.pairs[1][side][1]
    if item and #item.shape == 2 then
      note(out.by_rows, item.shape[1], rule)
      if item.key:find "position" then table.insert(out.of_positions, 1, rule) end
    end
  end
  return out
end

---The rule with the same layers as a template's items, and the template's pattern with the rule's letter.
---@param items Item[]
---@param hosts HostIndex
---@return InferredRule|nil, string|nil
local function host_of(items, hosts)
  local prefix = #items[1].numbers == 1 and items[1].template:match "^.-\1."
  local host = prefix and (hosts.by_layers[#items .. " " .. prefix] or {})[1]
  if host then return host.rule, names.pattern(items[1].template, { host.letter }) end
end

---The rule of a tensor with as many rows as an item has elements, such as position embeddings.
---@param item Item
---@param hosts HostIndex
---@param is_near fun(key: string): boolean   whether a key is of the same part
local function host_of_rows(item, hosts, side, is_near)
  for _, rule in ipairs(item.dtype == "int64" and hosts.of_positions or {}) do
    local own = rule.pairs[1][side][1]
    if own.shape[1] >= item.numel and is_near(own.key) then return rule end
  end
  for _, rule in ipairs(hosts.by_rows[item.numel] or {}) do
    if is_near(rule.pairs[1][side][1].key) then return rule end
  end
end

---What makers may read from the side that is read. With parts there are no tensors: converters do not know keys with a part's name.
---@param inventory Inventory
---@param has_parts boolean
---@return Others
local function others_of(inventory, has_parts)
  local by_rows = {}
  for _, item in ipairs(has_parts and {} or inventory.items) do
    local is_table = item.rule and #item.shape == 2 and not by_rows[item.shape[1]]
    if is_table and heads.has_word(item, "position", "positions", "positional", "pos", "wpe") then by_rows[item.shape[1]] = item.key end
  end
  return {
    read = function(key) return inventory.by_key[key] and inventory.by_key[key].tensor end,
    positions = function(n) return by_rows[n] end,
  }
end

---The maker that makes all items of a template; nil if no single one does.
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

local MOST_WITNESSES = 3

---A function that returns keys of the side that is read, with their shapes in the pair: if the shapes differ, the numbers of the pair may
---differ too. It returns the keys with a given extent, such as position embeddings, else any keys.
---@param inventory Inventory   of that side
---@return fun(extent: integer|nil): string   a table
local function witnesses_of(inventory)
  local by_extent, any = {}, {}
  local function note(list, item) list[#list + 1] = #list < MOST_WITNESSES and item or nil end
  for _, item in ipairs(inventory.items) do
    if item.rule and #item.shape > 0 then
      note(any, item)
      local has = {}
      for _, n in ipairs(item.shape) do
        by_extent[n] = by_extent[n] or {}
        if not has[n] then note(by_extent[n], item) end
        has[n] = true
      end
    end
  end
  return function(extent)
    local out = {}
    for i, item in ipairs(by_extent[extent or false] or any) do
      out[i] = ("[%s] = %s"):format(source.text(item.key), source.text(assumptions.shapes { item }))
    end
    return "{ " .. table.concat(out, ", ") .. " }"
  end
end

---Values that are made of a number of layers: the number, twice the number, the roots of both. Their inverses count as well.
---@type (fun(n: integer): number)[]
local OF_LAYERS = {
  function(n) return n end, function(n) return 2 * n end, math.sqrt, function(n) return math.sqrt(2 * n) end,
}

---Whether a buffer may be made of the number of layers: it has that extent, or its one value follows from it.
---@param item Item
---@param depths table<integer, true>   numbers of layers
local function may_count_layers(item, depths)
  for _, extent in ipairs(item.shape) do
    if extent > 1 and depths[extent] then return true end
  end
  local stats = item.tensor:stats()
  local value = stats.min == stats.max and math.abs(tonumber(stats.min) or 0) or 0
  local function is_about(number) return math.abs(value - number) <= 0.004 * number end -- bfloat16
  for depth in pairs(value > 0 and depths or {}) do
    for _, of in ipairs(OF_LAYERS) do
      if is_about(of(depth)) or is_about(1 / of(depth)) then return depth > 1 or value ~= 1 end
    end
  end
  return false
end

---@param maker Maker
---@param item Item       that it makes
---@param witnesses fun(extent: integer|nil): string
---@param part WrittenPart
---@return string   an expression
local function guarded(maker, item, witnesses, part)
  if not maker.assumes then return maker.text end
  local more = part.numbers and may_count_layers(item, part.depths[item.side]) and ", true" or ""
  return ("in_pair.made(%s, %s, %s%s)"):format(source.text(maker.assumes), witnesses(maker.extent), maker.text,
    part.numbers and ", " .. part.numbers .. more or "")
end

---@class Buffering
---@field part_for fun(key: string): table
---@field without_part fun(part: table, text: string): string
---@field has_parts boolean   keys of the left begin with a part's name

---Adds makers for tensors that only one side has: to a rule with the same layers, or to `fill`.
---@param inventories { left: Inventory, right: Inventory }
---@param side Side
---@param rules InferredRule[]
---@param rows table<InferredRule, Row>
---@param options Buffering
function buffers.explain(inventories, side, rules, rows, options)
  local inventory, part_for = inventories[side], options.part_for
  local read = inventories[other_side[side]]
  local others, witnesses, hosts = others_of(read, options.has_parts), witnesses_of(read), index_of(rules, side)
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
        host = host_of_rows(first, hosts, side, function(key) return side == "right" or part_for(key) == part end)
      end
      local maker = maker_of(items, configs, host and host.pairs[1][side][1].tensor, others)
      if maker and #first.numbers > 0 then
        local own_host, own_pattern = host_of(items, hosts)
        host, pattern = own_host or host, own_pattern or pattern
      end
      if maker and (host or #items == 1) then
        local entry = guarded(maker, first, witnesses, part)
        for _, item in ipairs(items) do item.rule = part end
        if side == "left" then pattern = options.without_part(part, pattern) end
        local check = 'rules.refuse.%s(%s, "its values cannot be made again on the way back", evidence.%s(%s)),'
        part.checks[#part.checks + 1] = check:format(side, source.text(pattern), maker.is_rounded and "beyond_rounding" or "unlike",
          maker.expected)
        if host then
          table.insert(rows[host].also[side], { pattern = pattern, make = entry })
        else
          local key = side == "left" and options.without_part(part, first.key) or first.key -- `fill` has keys, not patterns
          table.insert(part.made[side], ("{ %s, %s }"):format(source.text(key), entry))
          part.one_sided[#part.one_sided + 1] = ('rules.only.%s(%s, "it is made again on the way back"),'):format(side,
            source.text(pattern))
        end
      end
    end
  end
end

return buffers
