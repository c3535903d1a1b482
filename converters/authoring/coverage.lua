-- Coverage of a list of keys by a converter's rules: keys without a rule, and rules without a key.

local cbk = require "cbk"
local errors = require "cbk.errors"
local warnings = require "cbk.warnings"
local catalogue = require "converters.engine.catalogue"
local contents = require "converters.conversion.contents"
local convert = require "converters.conversion.convert"
local engine = require "converters.engine.keys"
local steps = require "converters.conversion.steps"
local patterns = require "converters.engine.patterns"
local wrap = require "converters.engine.wrap"

local coverage = {}

---@class Coverage   The result of matching a list of keys against one table, or the tables of a composite's parts.
---@field tables Table[]
---@field side Side
---@field matched integer
---@field copied integer     matched by a rule that fits any key
---@field unmatched string[]
---@field idle Rule[]        rules, as written, that fit no key
---@field refused string[]   keys that a rule refuses
---@field beside { key: string, other: string, rule: Rule }[]   keys of a read-only rule, together with another key of the same target
---@field beyond table<string, string>   for keys of `unmatched` with a number beyond the config's count: "num_experts=3"

---A key as the table sees it; nil if it belongs to another part, or to no model of this table.
---@param one Table
---@param key string
---@param side Side
local function own_key(one, key, side)
  if one.inside and side == "right" then return wrap.inner_key(one.inside, key) end
  if not one.part or side == "right" then return key end
  local prefix = one.part.left .. "/"
  return key:sub(1, #prefix) == prefix and key:sub(#prefix + 1) or nil
end

---The first rule that fits. A condition that cannot be tested without a config or a tensor counts as met if the rule converts, and as
---not met if it refuses.
local function find(compiled, key, at)
  for _, hit in ipairs(patterns.match(compiled, key)) do
    local fine, holds = false, false
    if at then
      at.key = key
      fine, holds = pcall(engine.holds, hit, at) -- some look into tensors, which a list of keys does not have
    end
    local is_unconditional = not hit.ending.rule.when
    if fine and holds or not fine and (is_unconditional or hit.ending.kind ~= "refuse") then return hit end
  end
end

---The config's count, if a rule fits except for a number in the key that exceeds it.
---@return string|nil   "num_experts=3"
local function count_before(compiled, key, at)
  for _, hit in ipairs(patterns.match(compiled, key)) do
    local each = hit.ending.from.each
    local fine, count = pcall(each and engine.count or error, each, hit.ending.rule, at)
    if fine and tonumber(hit.caught[each.place]) >= count then
      return type(each.count) == "string" and ("%s=%d"):format(each.count, count) or ("the %d values of '%s'"):format(count, each.letter)
    end
  end
end

---Records pairs of keys in one file that become the same key, one of them by a read-only rule. That one is not written again.
---@param first table<string, { key: string, rule: Rule }>   by target, of the keys so far; changed
local function note_target(first, beside, key, hit)
  local rule = hit.ending.rule.base or hit.ending.rule
  local has_target, target = pcall(patterns.render, hit.ending.to[1] or {}, hit.caught)
  if hit.ending.kind ~= "write" or not has_target or #hit.ending.to ~= 1 then return end
  local earlier = first[target]
  first[target] = earlier or { key = key, rule = rule }
  if not earlier or earlier.rule == rule then return end
  if rule.read_only then
    beside[#beside + 1] = { key = key, other = earlier.key, rule = rule }
  elseif earlier.rule.read_only then
    beside[#beside + 1] = { key = earlier.key, other = key, rule = earlier.rule }
  end
end

---Marks a rule as used if the file has its tensor under another name that the class ties to it by default.
---@param compiled CompiledPatterns
---@param used table<Rule, true>   changed
local function mark_tied(one, side, compiled, keys, used)
  local class = (one.own and one.own.classes or one.model and one.model.classes or {})[side]
  local fine, known = pcall(function() return class:tensors(cbk.dict()) end)
  if not fine then return end
  local is_there = {}
  for _, key in ipairs(keys) do is_there[known:own_key(key) or key] = true end
  for _, names in ipairs(known:tied_names()) do
    local has_any = false
    for _, name in ipairs(names) do has_any = has_any or is_there[name] end
    for _, name in ipairs(has_any and names or {}) do
      for _, hit in ipairs(patterns.match(compiled, name)) do used[hit.ending.rule.base or hit.ending.rule] = true end
    end
  end
end

---A Model Zoo key without `model.` at the beginning; nil if it does not begin with that.
---@param one Table
---@param side Side
---@param own string
local function short_key(one, side, own)
  local is_zoo = catalogue.release(catalogue.formats(one.converter[side == "left" and 1 or 2])[1]) ~= nil
  return is_zoo and own:match "^model%.(.*)$" or nil
end

---@param one Table
---@param side Side
---@param keys string[]
---@param at? table      an At for conditions: { left, right, source }
---@return Coverage
function coverage.of(one, side, keys, at)
  local compiled = patterns.compile(one.keys, side)
  local out = { tables = { one }, side = side, matched = 0, copied = 0, unmatched = {}, idle = {}, refused = {}, beyond = {},
    beside = {} }
  local used, first = {}, {}
  for _, key in ipairs(keys) do
    local own = own_key(one, key, side)
    local short = own and short_key(one, side, own)
    local hit = own and find(compiled, own, at) or short and find(compiled, short, at)
    if hit then
      out.matched = out.matched + 1
      if hit.ending.pattern == "*" then out.copied = out.copied + 1 end
      used[hit.ending.rule.base or hit.ending.rule] = true
      note_target(first, out.beside, key, hit)
      if hit.ending.kind == "refuse" then out.refused[#out.refused + 1] = key end
    elseif one.inside and side == "right" and wrap.is_copy(one.inside, key) then
      out.matched = out.matched + 1
    else
      out.unmatched[#out.unmatched + 1] = key
      if own and at then out.beyond[key] = count_before(compiled, own, at) or short and count_before(compiled, short, at) end
    end
  end
  if out.matched > 0 then mark_tied(one, side, compiled, keys, used) end -- that lists all tensors of the class
  for _, rule in ipairs(one.keys) do
    if rule[side] and not used[rule] then out.idle[#out.idle + 1] = rule end
  end
  return out
end

---How many unmatched keys would fit a rule if their numbers did not exceed a count of the config; nil if none.
---@param reading Coverage
---@return string|nil text, integer|nil count
function coverage.beyond(reading)
  local counts, order, count = {}, {}, 0
  for _, key in ipairs(reading.unmatched) do
    local count_text = reading.beyond[key]
    if count_text and not counts[count_text] then counts[count_text], order[#order + 1] = 0, count_text end
    if count_text then counts[count_text], count = counts[count_text] + 1, count + 1 end
  end
  for i, text in ipairs(order) do
    order[i] = ("%d of them %s beyond %s of the config"):format(counts[text], counts[text] == 1 and "has a number" or "have numbers", text)
  end
  if count > 0 then return table.concat(order, ", "), count end
end

---Runs `f` without its warnings; nil and the reason if it fails.
local function quietly(f, ...)
  local fine, result = warnings.quietly(f, ...)
  if fine then return result or true end
  return nil, errors.text(result)
end

---The job that converts by one table.
---@param one Table
---@param side Side
---@return Job
local function job_of(one, side)
  local place = side == "left" and 1 or 2
  local src, tgt = catalogue.formats(one.converter[place])[1], catalogue.formats(one.converter[3 - place])[1]
  local path = { { converter = one.converter, side = side, src = src, tgt = tgt } }
  return { model = one.model, zoo_name = one.model.name or one.model.model, path = path }
end

---What a table's conditions need: both configs, complete with defaults. Nil and the reason if the table cannot read this config.
---@param one Table
---@param side Side
---@param config Dict    the whole file
---@param has fun(key: string): boolean
local function configs_for(one, side, config, has)
  local function source(_, key) return has(key) or nil end
  local job = job_of(one, side)
  local fine, why = quietly(convert.config, job, config)
  if not fine then return nil, why end
  for _, own in ipairs(convert.tables(job.configs[1])) do
    if own.converter.keys == one.keys then
      local configs = own.configs
      return {
        side = side, left = configs.left, right = configs.right, assumed = configs.assumed, source = source,
      }
    end
  end
  return nil, "the config chooses another table"
end

---Why a conversion by a table fails; nil if it does not.
---@param one Table
---@param side Side
---@param config Dict|nil   the whole file; nil: none; some user tables need none
---@param source Dict   the checkpoint's tree, or those of a composite's parts
---@param names { deduplicated: any }   of the file (Job)
---@return string|nil, string[]|nil doubts   about the output of one that does not fail
function coverage.refusal(one, side, config, source, names)
  local job = job_of(one, side)
  job.source, job.deduplicated = source, names.deduplicated
  if steps.is_bare(job.path[1], config) then job.source = contents.of_layout(source).root end
  local fine, why = quietly(function()
    convert.config(job, config)
    convert.checkpoint(job, job.source)
    return true
  end)
  return not fine and why or nil, job.doubts
end

---The coverage of a composite's parts as one: a key is matched if any part matches it.
---@param group Coverage[]
---@param count integer   the number of all keys
local function joined(group, count)
  if #group == 1 then return group[1] end
  local out, misses = { tables = {}, side = group[1].side, unmatched = {}, idle = {}, refused = {}, beyond = {}, beside = {} }, {}
  for _, one in ipairs(group) do
    out.tables[#out.tables + 1] = one.tables[1]
    for _, rule in ipairs(one.idle) do out.idle[#out.idle + 1] = rule end
    for _, key in ipairs(one.refused) do out.refused[#out.refused + 1] = key end
    for _, pair in ipairs(one.beside) do out.beside[#out.beside + 1] = pair end
    for _, key in ipairs(one.unmatched) do
      out.beyond[key] = out.beyond[key] or one.beyond[key]
      misses[key] = (misses[key] or 0) + 1
      if misses[key] == #group then out.unmatched[#out.unmatched + 1] = key end
    end
  end
  out.matched = count - #out.unmatched
  return out
end

---Whether a table accepts any key, as steps between releases do. Then a match means nothing.
---@param one Table
local function takes_all(one)
  for _, rule in ipairs(one.keys) do
    if not rule.when and rule.left and rule.left[1] == "*" and rule.right and rule.right[1]:find "%*$" then return true end
  end
  return false
end

---The tables that do not accept every key; all tables if each of them does.
local function specific(tables)
  local out = {}
  for _, one in ipairs(tables) do
    if not takes_all(one) then out[#out + 1] = one end
  end
  return #out > 0 and out or tables
end

---The keys of a part's own file, with the part's name as prefix; nil if they have such prefixes already.
local function keys_of_part(one, side, keys)
  if not one.part or side == "right" then return nil end
  for _, part in ipairs(one.converter.components) do
    for _, key in ipairs(keys) do
      if key:sub(1, #part.left + 1) == part.left .. "/" then return nil end
    end
  end
  local out = {}
  for i, key in ipairs(keys) do out[i] = one.part.left .. "/" .. key end
  return out
end

---The index of the newest release of a converter.
local function newest_of(converter)
  local out = 0
  for _, text in ipairs { converter[1], converter[2] } do
    for _, format in ipairs(catalogue.formats(text)) do out = math.max(out, catalogue.place_of(format) or 0) end
  end
  return out
end

---Whether coverage `a` is better: it matches more keys, has a newer release, or has fewer rules without a key.
local function is_better(a, b)
  if a.score ~= b.score then return a.score > b.score end
  if a.newest ~= b.newest then return a.newest > b.newest end
  return a.idle < b.idle
end

---Matches keys against all tables of one converter and one side, and returns the best coverage.
---@param tables Table[]
---@param keys string[]
---@param at_of fun(one: Table, side: Side): table|nil, boolean   the configs (configs_for), and whether the table is left out
---@return table|nil   coverages, with their score
local function best_group(tables, keys, at_of)
  local groups, order = {}, {}
  for _, one in ipairs(tables) do
    for _, side in ipairs { "left", "right" } do
      local at, is_out = at_of(one, side)
      if not is_out then
        local alone = keys_of_part(one, side, keys)
        local id = tostring(one.converter) .. tostring(one.part and not alone and "" or one.keys) .. side
        if not groups[id] then groups[id], order[#order + 1] = {}, id end
        table.insert(groups[id], coverage.of(one, side, alone or keys, at))
      end
    end
  end
  local best
  for _, id in ipairs(order) do
    local group = { score = 0, idle = 0, newest = newest_of(groups[id][1].tables[1].converter), unpack(groups[id]) }
    for _, one in ipairs(group) do group.score, group.idle = group.score + one.matched - one.copied / 2, group.idle + #one.idle end
    if not best or is_better(group, best) then best = group end
  end
  return best
end

---The coverage that fits a list of keys best: the tables of one converter and one side. The config decides between tables that match some
---of the keys. If the config fits only tables that match less than half as many, the keys decide, and the second result says why the
---config is not used.
---@param tables Table[]
---@param keys string[]
---@param config? Dict
---@return Coverage|nil, string|nil why
function coverage.best(tables, keys, config)
  local present, whys = {}, {}
  for _, key in ipairs(keys) do present[key] = true end
  local function has(key) return present[key] or present["model." .. key] end
  tables = specific(tables)
  local read = config and best_group(tables, keys, function(one, side)
    local at, why = configs_for(one, side, config, has)
    whys[tostring(one) .. side] = why
    return at, not at
  end)
  local best = best_group(tables, keys, function() return nil, false end)
  if read and read.score > 0 and read.score * 2 >= best.score then return joined(read, #keys) end
  if not best then return nil end
  return joined(best, #keys), config and whys[tostring(best[1].tables[1]) .. best[1].side] or nil
end

return coverage
