-- Writes a converter for two checkpoints of the same weights in two layouts (`cbk infer`): match.lua finds which tensors belong
-- together, trials.lua what happens to them, fields.lua which config fields do; write.lua makes the file.

local cbk = require "cbk"
local catalogue = require "converters.engine.catalogue"
local content = require "cbk.infer.content"
local makers = require "cbk.infer.makers"
local match = require "cbk.infer.match"
local infer_fields = require "cbk.infer.fields"
local trials = require "cbk.infer.trials"
local own_layout = require "cbk.converters.own_layout"
local naming = require "converters.engine.naming"
local write = require "cbk.infer.write"

local infer = {}

---@class InferSide
---@field tensors Dict      key to tensor
---@field config? Dict
---@field parts? InferPart[]   in place of tensors and config: several checkpoints
---@field format string
---@field source string     the file
---@field file? string      its container (Checkpoint.format)

---@class Inferred
---@field text string         the file
---@field rules InferredRule[]
---@field matched { left: integer, right: integer }   tensors that a rule has
---@field count { left: integer, right: integer }
---@field unexplained { side: Side, key: string, why: string }[]

local other_side = { left = "right", right = "left" }

-- --- rules

---How many tensors an `each` has, as a rule says it: a field of a config, or the number.
---@param configs { left: Dict|nil, right: Dict|nil }
local function count_text(configs, count)
  local found
  local function look(map, path, depth)
    for key, value in cbk.items(map) do
      local is_name = type(key) == "string" and key:find "^[%a_][%w_]*$"
      if is_name and value == count and not found and key:find "expert" then found = path .. "." .. key end
      if is_name and depth < 2 and cbk.kind(map, key) == "dict" then look(value, path .. "." .. key, depth + 1) end
    end
  end
  if configs.right then look(configs.right, "at.right", 1) end
  return ("function(%s) return %s end"):format(found and "at" or "", found or count)
end

local function release_items(rule)
  for _, pair in ipairs(rule.pairs) do
    for _, side in ipairs { "left", "right" } do
      for _, item in ipairs(pair[side]) do item.rule = nil end
    end
  end
end

---Whether a config counts heads as the Model Zoo's do.
local function has_head_counts(config)
  return config ~= nil and type(config.num_heads) == "number" and type(config.hidden_size) == "number"
end

---Finds the action of each rule; rules without one are taken back.
---@param rules InferredRule[]
---@param configs_of fun(rule: InferredRule): { left: Dict|nil, right: Dict|nil }
---@return InferredRule[] rules, InferredRule[] unknown
local function with_actions(rules, configs_of)
  local out, unknown, rotary = {}, {}, {}
  for _, rule in ipairs(rules) do
    local configs = configs_of(rule)
    if rule.each then rule.each.text = count_text(configs, rule.each.count) end
    local like = rule.like and rule.like.choice and rule.like or nil
    rule.like = like
    rule.choice, rule.order = trials.find(rule, configs, has_head_counts(configs.right), rotary)
    if rule.choice then
      if rule.choice.text:find "rotary" and #rule.right == 1 then rotary[trials.module(rule.pairs[1].right[1])] = rule.choice end
      out[#out + 1] = rule
    else
      unknown[#unknown + 1] = rule
      release_items(rule)
    end
  end
  local weights = {}
  for _, rule in ipairs(out) do weights[rule.left[1]] = rule end
  for _, rule in ipairs(out) do -- one action for a weight and its bias, if it suits both
    local weight = weights[(rule.left[1]:gsub("%.bias$", ".weight"))]
    local choice = weight and weight ~= rule and not (rule.each or weight.affine) and weight.choice
    if choice and choice.text ~= rule.choice.text and trials.also_fits(rule, choice, configs_of(rule)) then rule.choice = choice end
  end
  return out, unknown
end

local function ordered(list, order)
  local out = {}
  for i, k in ipairs(order or {}) do out[i] = list[k] end
  return order and out or list
end

---@param rule InferredRule
---@param left_name fun(text: string): string   a pattern of the left as its part has it
---@return Row
local function row_of(rule, left_name)
  local many = #rule.left > 1 and "left" or #rule.right > 1 and "right" or nil
  local first = rule.pairs[1]
  local choice = trials.with_cast(rule.choice, first.left[1], first.right[1])
  local row = { options = {}, action = choice.text ~= "nil" and choice.text or nil, needs = choice.needs, order = first.left[1].order,
    each = rule.each }
  for _, side in ipairs { "left", "right" } do
    row[side] = {}
    for i, pattern in ipairs(many == side and ordered(rule[side], rule.order) or rule[side]) do
      row[side][i] = side == "left" and left_name(pattern) or pattern
    end
    local also = rule.also[side]
    local names = {}
    for i, one in ipairs(also) do
      local pattern, part = unpack(one)
      if side == "left" then pattern = left_name(pattern) end
      for k, original in ipairs(many == side and rule.order or {}) do
        if original == one[2] then part = k break end
      end
      names[i] = #rule[side] == 1 and ("%q"):format(pattern)
        or ('{ "%s", function(_, parts) return parts[%d] end }'):format(pattern, part)
    end
    if #also > 0 then
      row.options[#row.options + 1] = ("also_%s = %s"):format(side, #names == 1 and names[1] or "{ " .. table.concat(names, ", ") .. " }")
    end
  end
  if rule.divisor then
    row.options[#row.options + 1] = ("number = { forward = function(n) return n / %d end, backward = function(n) return n * %d end }")
      :format(rule.divisor, rule.divisor)
  end
  if rule.is_by_name then row.note = "by name: these tensors have the same values as others" end
  return row
end

-- --- tensors that one side makes

---The pattern of the items of a template, as a rule on their side counts; that rule.
---@param items Item[]
---@param rules InferredRule[]
---@param side Side
local function host_of(items, rules, side)
  for _, rule in ipairs(rules) do
    local own = rule.templates[side] and rule.templates[side][1]
    if own and #rule[side] == 1 and not rule.each and #rule.pairs == #items then
      local prefix = own:match "^.-#%." or nil
      local pattern = prefix and items[1].template:sub(1, #prefix) == prefix and select(2, items[1].template:gsub("#", "#")) == 1
      if pattern and rule[side][1]:find "%f[^.%z]%u%f[.%z]" then
        local letter = rule[side][1]:match "%f[^.%z](%u)%f[.%z]"
        return rule, (items[1].template:gsub("#", letter, 1))
      end
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

---Adds makers for what only one side has: to a rule of the same layers, or to `fill`.
---@param part_for fun(key: string): table
local function explain_made(inventory, side, rules, rows, part_for, without_part)
  for _, template in ipairs(naming.sorted(inventory.by_template)) do
    local items = inventory.by_template[template]
    if not items[1].rule then
      local part = part_for(items[1].key)
      local configs = part.configs
      local host, pattern = nil, items[1].key
      local is_int = items[1].dtype == "int64" and #items[1].shape == 2
      local is_vector = not configs.right and #items[1].shape == 1 and items[1].numel > 1
      if #items == 1 and (is_int or is_vector) then
        host = host_of_rows(items[1], rules, side, function(key) return side == "right" or part_for(key) == part end)
      end
      local text = makers.find(items[1], configs, host and host.pairs[1][side][1].tensor)
      for i = 2, text and #items or 0 do
        if makers.find(items[i], configs) ~= text then text = nil break end
      end
      if text and #items[1].numbers > 0 then
        local own_host, own_pattern = host_of(items, rules, side)
        host, pattern = own_host or host, own_pattern or pattern
      end
      if text and (host or #items == 1) then
        for _, item in ipairs(items) do item.rule = part end
        if side == "left" then pattern = without_part(part, pattern) end
        if host then
          local list = rows[host].made or {}
          rows[host].made, list[side] = list, list[side] or {}
          table.insert(list[side], ('{ "%s", %s }'):format(pattern, text))
        else
          table.insert(part.made[side], ('{ "%s", %s }'):format(pattern, text))
          part.one_sided[#part.one_sided + 1] = ('rules.only.%s("%s", "it is made from the config"),'):format(side, pattern)
        end
      end
    end
  end
end

local function add_made_options(rows)
  for _, row in pairs(rows) do
    for side, list in pairs(row.made or {}) do
      local option = ("also_%s = { %s }"):format(side, table.concat(list, ", "))
      for i, known in ipairs(row.options) do -- beside copies
        local names = known:match("^also_" .. side .. " = {? ?(.-) ?}?$")
        if names then
          option = ("also_%s = { %s, %s }"):format(side, names, table.concat(list, ", "))
          table.remove(row.options, i)
          break
        end
      end
      table.insert(row.options, option)
    end
  end
end

-- --- all of it

---What no rule has, template by template.
local function unexplained_of(inventories, unknown, fold)
  local out, lines, same = {}, {}, {}
  for _, rule in ipairs(unknown) do
    for side, other in pairs(other_side) do
      for _, pair in ipairs(rule.pairs) do
        for _, item in ipairs(pair[side]) do same[item] = pair[other][1].key end
      end
    end
  end
  for _, side in ipairs { "left", "right" } do
    local keys = {}
    for _, item in ipairs(inventories[side].items) do
      if not item.rule then
        local near = same[item] and ("the elements of '%s' in another order, which is no known action"):format(same[item])
        out[#out + 1] = { side = side, key = item.key, why = near or "no tensor of the other side has its values" }
        local id = ("%s: %s [%s]  %s"):format(side, item.dtype, table.concat(item.shape, ", "), near and "elements in another order"
          or "values that the other side lacks")
        if not keys[id] then
          keys[id] = {}
          keys[#keys + 1] = id
        end
        table.insert(keys[id], item.key)
      end
    end
    for _, id in ipairs(keys) do lines[#lines + 1] = ("%s: %s"):format(id, fold(keys[id])) end
  end
  return out, lines
end

-- --- parts: on the left a model may be several checkpoints, each with its config

---@class InferPart
---@field name? string     the part's folder; nil of a whole model
---@field tensors Dict
---@field config? Dict

---The section of the right config that says what a part's config does.
---@param part InferPart
---@param config Dict
---@return string|nil
local function section_of(part, config)
  if cbk.kind(config, part.name) == "dict" then return part.name end
  local best, most = nil, 2
  for name, section in cbk.items(config) do
    local count = 0
    for field, value in cbk.items(cbk.kind(config, name) == "dict" and section or cbk.dict()) do
      if type(value) == "number" and part.config[field] == value then count = count + 1 end
    end
    if count > most then best, most = name, count end
  end
  return best
end

---What is known of each part of the left: by its name, or the whole.
---@param left InferSide
---@param right InferSide
---@return { name: string|nil, section: string|nil, configs: { left: Dict|nil, right: Dict|nil } }[]
---@return Dict tensors   with the part before the key
local function parts_of(left, right)
  if not left.parts then return { { configs = { left = left.config, right = right.config } } }, left.tensors end
  local out, tensors = {}, cbk.dict()
  for i, part in ipairs(left.parts) do
    local section = section_of(part, right.config)
    out[i] = { name = part.name, section = section, configs = { left = part.config,
      right = section and right.config[section] or cbk.dict() } }
    for key, tensor in cbk.items(part.tensors) do tensors[part.name .. "/" .. key] = tensor end
  end
  return out, tensors
end

---The part that a key or pattern of the left is of.
local function part_of(parts, key)
  for _, part in ipairs(parts) do
    if not part.name or key:sub(1, #part.name + 1) == part.name .. "/" then return part end
  end
  return parts[1]
end

local function without_part(part, text) return part.name and text:gsub("^" .. part.name:gsub("%p", "%%%0") .. "/", "") or text end

---Fields of the right config that are no section of a part.
local function beside_parts(parts, config)
  local out, is_section = {}, {}
  for _, part in ipairs(parts) do is_section[part.section or ""] = true end
  for name in cbk.items(config) do
    if not is_section[name] then out[#out + 1] = tostring(name) end
  end
  return out
end

---The entries of `files` for layouts of the user's own.
local function files_of(sides)
  local out = {}
  for _, side in ipairs { "left", "right" } do
    local kind = sides[side].file and own_layout.container(sides[side].file)
    if kind and catalogue.is_own_layout(sides[side].format) then out[#out + 1] = ('%s = "%s"'):format(side, kind) end
  end
  return out
end

---@param left InferSide
---@param right InferSide
---@param options { model: string, on_read: fun(key: string, bytes: integer)|nil }
---@return Inferred
function infer.run(left, right, options)
  local parts, tensors = parts_of(left, right)
  local inventories = { left = content.inventory("left", tensors, options.on_read),
    right = content.inventory("right", right.tensors, options.on_read) }
  local rules, unknown = with_actions(match.rules(inventories.left, inventories.right, trials.is_affine), function(rule)
    return part_of(parts, rule.pairs[1].left[1].key).configs
  end)
  for _, part in ipairs(parts) do
    part.rows, part.one_sided, part.made = {}, {}, { left = {}, right = {} }
  end
  local rows, needs = {}, {}
  for _, rule in ipairs(rules) do
    local part = part_of(parts, rule.pairs[1].left[1].key)
    local row = row_of(rule, function(text) return without_part(part, text) end)
    rows[rule] = row
    part.rows[#part.rows + 1] = row
    for _, need in ipairs(row.needs or {}) do needs[#needs + 1] = need end
  end
  for _, side in ipairs { "left", "right" } do
    explain_made(inventories[side], side, rules, rows, function(key) return part_of(parts, key) end, without_part)
  end
  add_made_options(rows)
  local unexplained, lines = unexplained_of(inventories, unknown, naming.all)
  for _, part in ipairs(parts) do
    table.sort(part.rows, function(a, b) return a.order < b.order or a.order == b.order and a.right[1] < b.right[1] end)
    part.fill = {}
    for _, side in ipairs { "left", "right" } do
      local list = part.made[side]
      if #list > 0 then part.fill[#part.fill + 1] = ("%s = { %s }"):format(side, table.concat(list, ", ")) end
    end
    local configs = part.configs
    part.fields = configs.left and configs.right and infer_fields.infer(configs.left, configs.right) or nil
  end
  local text = write.text {
    model = options.model, formats = { left = left.format, right = right.format }, parts = parts, needs = needs,
    files = files_of { left = left, right = right }, unexplained = lines, sources = { left = left.source, right = right.source },
    right_only = left.parts and beside_parts(parts, right.config), right_config = right.config,
  }
  local count, matched = {}, {}
  for side, inventory in pairs(inventories) do
    count[side], matched[side] = #inventory.items, #inventory.items
  end
  for _, one in ipairs(unexplained) do matched[one.side] = matched[one.side] - 1 end
  return { text = text, rules = rules, matched = matched, count = count, unexplained = unexplained }
end

return infer
