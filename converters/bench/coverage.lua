-- Which keys of a list a converter's rules fit, and which rules fit none of them.

local cbk = require "cbk"
local catalogue = require "converters.engine.catalogue"
local convert = require "converters.engine.convert"
local kinds = require "converters.engine.kinds"
local patterns = require "converters.engine.patterns"
local rules = require "converters.engine.rules"

local coverage = {}

---@class Coverage   One table, or those of a composite's parts, read in one direction over a list of keys.
---@field tables Table[]
---@field side Side
---@field matched integer
---@field copied integer     … of these, by a rule that fits all keys
---@field unmatched string[]
---@field idle Rule[]        rules, as they were written, that fit no key
---@field refused string[]   keys that a rule refuses

---A key as the table sees it; nil where it is not one of this table's part.
local function own_key(key, part, side)
  if not part or side == "right" then return key end
  local prefix = part.left .. "/"
  return key:sub(1, #prefix) == prefix and key:sub(#prefix + 1) or nil
end

---The first rule that fits; a condition counts as met where there is no config to ask.
local function find(tree, key, at)
  for _, hit in ipairs(patterns.match(tree, key)) do
    local when = hit.ending.rule.when
    if not when or not at then return hit end
    at.key = key
    local fine, holds = pcall(when, at) -- some look into tensors, which a list of keys does not have
    if holds or not fine then return hit end
  end
end

---@param one Table
---@param side Side
---@param keys string[]
---@param at? table      an At for conditions: { left, right, source }
---@return Coverage
function coverage.of(one, side, keys, at)
  local tree = patterns.compile(one.keys, side)
  local out = { tables = { one }, side = side, matched = 0, copied = 0, unmatched = {}, idle = {}, refused = {} }
  local used = {}
  for _, key in ipairs(keys) do
    local own = own_key(key, one.part, side)
    local hit = own and (find(tree, own, at) or own:find "^model%." and find(tree, own:sub(7), at))
    if hit then
      out.matched = out.matched + 1
      if hit.ending.pattern == "*" then out.copied = out.copied + 1 end
      used[hit.ending.rule.base or hit.ending.rule] = true
      if hit.ending.kind == "refuse" then out.refused[#out.refused + 1] = key end
    else
      out.unmatched[#out.unmatched + 1] = key
    end
  end
  for _, rule in ipairs(one.keys) do
    if rule[side] and not used[rule] then out.idle[#out.idle + 1] = rule end
  end
  return out
end

---The names of a checkpoint's tensors as converters see them: without `model`, those of a composite's parts as "part/key".
---@param root Dict
---@return string[]
function coverage.keys_of(root)
  local out = {}
  local function add(tree, prefix)
    for key, value in cbk.items(tree) do
      if kinds.is_dict(value) then add(value, prefix .. tostring(key) .. "/") else out[#out + 1] = prefix .. tostring(key) end
    end
  end
  add(kinds.is_dict(root, "model") and root.model or root, "")
  return out
end

---What the conditions of a table ask: both configs, complete with defaults; nil where the table cannot read this config.
---@param one Table
---@param side Side
---@param config Dict    the whole file
---@param has fun(key: string): boolean
function coverage.at(one, side, config, has)
  local src = catalogue.formats(one.converter[side == "left" and 1 or 2])[1]
  local tgt = catalogue.formats(one.converter[side == "left" and 2 or 1])[1]
  local step = { converter = one.converter, side = side, src = src, tgt = tgt }
  local job = { model = one.model, zoo_name = one.model.name or one.model.model, path = { step } }
  local warn = cbk.warn
  cbk.warn = function() end -- luacheck: ignore
  local fine = pcall(convert.config, job, config)
  cbk.warn = warn -- luacheck: ignore
  if not fine then return nil end
  local configs = job.configs[1]
  if one.variant and configs.converter ~= one.variant then return nil end
  local part = one.part
  return {
    side = side, left = part and configs.left[part.left] or configs.left, right = part and configs.right[part.right] or configs.right,
    source = function(_, key) return has(key) or nil end,
  }
end

---The parts of a composite in one: a key is matched where one of them knows it.
---@param group Coverage[]
---@param count integer   of all keys
local function joined(group, count)
  if #group == 1 then return group[1] end
  local out, misses = { tables = {}, side = group[1].side, unmatched = {}, idle = {}, refused = {} }, {}
  for _, one in ipairs(group) do
    out.tables[#out.tables + 1] = one.tables[1]
    for _, rule in ipairs(one.idle) do out.idle[#out.idle + 1] = rule end
    for _, key in ipairs(one.refused) do out.refused[#out.refused + 1] = key end
    for _, key in ipairs(one.unmatched) do
      misses[key] = (misses[key] or 0) + 1
      if misses[key] == #group then out.unmatched[#out.unmatched + 1] = key end
    end
  end
  out.matched = count - #out.unmatched
  return out
end

---The readings of a list of keys that fit best, one for each model: the tables of one converter and one side.
---@param tables Table[]
---@param keys string[]
---@param config? Dict
---@return Coverage[]
function coverage.best(tables, keys, config)
  local there, groups, order = {}, {}, {}
  for _, key in ipairs(keys) do there[key] = true end
  local function has(key) return there[key] or there["model." .. key] end
  for _, one in ipairs(tables) do
    for side in pairs(rules.other) do
      local at = config and coverage.at(one, side, config, has)
      if at or not config then
        local id = tostring(one.converter) .. tostring(one.variant) .. side
        local group = groups[id] or { model = one.model, place = #order + 1 }
        if not groups[id] then groups[id], order[#order + 1] = group, group end
        group[#group + 1] = coverage.of(one, side, keys, at)
      end
    end
  end
  local best = {}
  for _, group in ipairs(order) do
    local score = 0
    for _, one in ipairs(group) do score = score + one.matched - one.copied / 2 end
    group.score = score
    local so_far = best[group.model]
    if not so_far or score > so_far.score then best[group.model] = group end
  end
  local out = {}
  for _, group in ipairs(order) do
    if best[group.model] == group then out[#out + 1] = joined(group, #keys) end
  end
  return out
end

return coverage
