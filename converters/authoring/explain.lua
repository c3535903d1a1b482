-- Explains single keys: which rule matched them, what each step did, and why similar rules did not match.

local cbk = require "cbk"
local naming = require "cbk.naming"
local patterns = require "converters.engine.patterns"
local kinds = require "converters.engine.kinds"
local rules = require "converters.engine.rules"
local dry_run = require "converters.authoring.dry_run"
local part_ranges = require "converters.authoring.part_ranges"
local position = require "converters.notation.position"
local wrap = require "converters.engine.wrap"
local relate = require "converters.authoring.relate"

local explain = {}

local function rule_line(rule) return ("%s  (%s)"):format(rules.text(rule), position.of(rule)) end

---A rule's pattern on the side that is read, with its place.
local function one_side(ending, side)
  local rule = ending.rule.base or ending.rule
  local is_beside = ending.rule.kind and not rule.kind
  local list = not is_beside and rule[side] or { ending.pattern }
  return ("%s  (%s)"):format(#list == 1 and list[1] or ending.pattern, position.of(rule))
end

---The values of a pattern's letters and stars.
local function captures(ending, caught)
  local out = {}
  for i, name in ipairs(patterns.captures(ending.pattern)) do out[i] = ("%s = %s"):format(name, caught[i]) end
  return table.concat(out, ", ")
end

-- --- rules that did not match

---Rules that almost fit a key, best first, each with the first part that differs.
---@param endings Ending[]
---@param key string
---@param skip table<Rule, boolean>
---@param side Side
---@return string[]
local function near_misses(endings, key, skip, side)
  local best = {}
  for _, ending in ipairs(endings) do
    local rule = ending.rule.base or ending.rule
    local front, back, wanted, found = relate.alike(ending.pattern, key)
    local score = (front + back) / math.max(#patterns.split(ending.pattern), #patterns.split(key))
    if not skip[rule] and front + back > 0 and score < 1 and not (best[rule] and best[rule].score >= score) then
      best[rule] = { score = score, ending = ending, order = ending.order, part = front + 1, wanted = wanted, found = found }
    end
  end
  local list = {}
  for _, one in pairs(best) do list[#list + 1] = one end
  table.sort(list, function(a, b) return a.score ~= b.score and a.score > b.score or a.score == b.score and a.order < b.order end)
  local out, seen = {}, {}
  for _, one in ipairs(list) do
    local differs = not one.found and ("the key ends before '%s'"):format(one.wanted) or not one.wanted
      and ("the pattern ends before '%s'"):format(one.found) or ("part %d is '%s', not '%s'"):format(one.part, one.found, one.wanted)
    local line = ("%s: %s"):format(one_side(one.ending, side), differs)
    if #out < 3 and not seen[line] then out[#out + 1], seen[line] = line, true end
  end
  return out
end

---@param endings Ending[]
---@param compiled CompiledPatterns
---@param key string
---@param taken Ending|nil      the rule that matched the key
---@param rejected Ending[]     rules whose condition does not hold
---@param side Side
local function others(endings, compiled, key, taken, rejected, side)
  local out, skip, seen = {}, {}, {}
  local function add(line)
    if not seen[line] then out[#out + 1], seen[line] = line, true end
  end
  if taken then skip[taken.rule.base or taken.rule] = true end
  for _, ending in ipairs(rejected) do
    local rule = ending.rule.base or ending.rule
    if not skip[rule] then
      local why = ending.from.each and ("its number is not among those that count '%s'"):format(ending.from.each.letter)
      if rule.when then why = ("its condition (%s) does not hold"):format(position.of_function(rule.when)) end
      add(("%s: fits, but %s"):format(one_side(ending, side), why))
    end
    skip[rule] = true
  end
  for _, hit in ipairs(patterns.match(compiled, key)) do
    local rule = hit.ending.rule.base or hit.ending.rule
    if taken and not skip[rule] then add(("%s: fits too, but comes later"):format(one_side(hit.ending, side))) end
    skip[rule] = true
  end
  for _, line in ipairs(near_misses(endings, key, skip, side)) do add(line) end
  return out
end

-- --- one record

local function what_happened(record)
  local action = dry_run.action(record) or "copy"
  local ending = record.ending
  if record.what == "write" then
    return ("%s: %s -> %s"):format(action, kinds.facts(record.given) or "nothing", kinds.facts(record.value))
  elseif record.what == "beside" then
    return ("written as well: %s"):format(kinds.facts(record.value))
  elseif record.what == "pass" then
    return ending.kind == "drop" and "left out: " .. ending.why or "ignored: " .. ending.why
  elseif record.what == "fill" then
    return "no rule wrote it, so it is made: " .. kinds.facts(record.value)
  elseif record.what == "unmatched" then
    return "no rule fits"
  end
  return action .. ", together with its other parts"
end

---@param record KeyRecord
---@param step Step
---@param configs StepConfigs|nil   nil: the config is not converted
---@param out string[]
local function describe(record, step, configs, out)
  local function add(text, ...) out[#out + 1] = text:format(...) end
  local ending = record.ending
  add("  %s -> %s: %s", step.src, step.tgt, record.target or "(nothing)")
  if ending then
    add("    rule      %s", rule_line(ending.rule))
    local caught = captures(ending, record.caught)
    if caught ~= "" then add("    with      %s", caught) end
  end
  local is_tied = record.note and record.note:find "^tied"
  if is_tied then add("    for       %s, which is missing: another name of the same tensor", record.key) end
  add("    does      %s", what_happened(record))
  local parts = configs and part_ranges.text(record, step, configs)
  if parts then add("    parts     %s", parts) end
  if record.what ~= "fill" and record.what ~= "beside" and not is_tied then
    for i, line in ipairs(others(record.endings, record.compiled, record.key, ending, record.rejected, step.side)) do
      add("    %s %s", i == 1 and "not      " or "         ", line)
    end
  end
end

-- --- the whole path of a key

---The records of a key in all steps: earlier steps that made it, and later ones that read it.
local function thread(watch, step, record)
  local way = { [step] = { record } }
  for i = step - 1, 1, -1 do
    way[i] = {}
    for _, one in ipairs(watch.steps[i]) do
      for _, later in ipairs(way[i + 1]) do
        if one.target == later.source then table.insert(way[i], one) end
      end
    end
  end
  for i = step + 1, #watch.steps do
    way[i] = {}
    for _, one in ipairs(watch.steps[i]) do
      for _, earlier in ipairs(way[i - 1]) do
        if earlier.target and one.source == earlier.target then table.insert(way[i], one) end
      end
    end
  end
  return way
end

local function is_known_elsewhere(watch, step, record)
  if record.what ~= "unmatched" then return false end
  for _, one in ipairs(watch.steps[step]) do
    if one.source == record.source and one.what ~= "unmatched" then return true end
  end
end

---Suggests keys with similar names for a key that does not exist.
local function describe_unknown(watch, key, out)
  local seen = {}
  for _, record in ipairs(watch.steps[1]) do seen[record.source or false] = true end
  for _, record in ipairs(watch.steps[#watch.steps]) do seen[record.target or false] = true end
  seen[false] = nil
  local near = cbk.nearest(key, naming.sorted(seen))
  out[#out + 1] = ("'%s' is neither in the checkpoint nor in the output%s"):format(key,
    #near > 0 and "; the nearest keys are " .. table.concat(near, ", ") or "; --dry-run lists all keys")
  local job = watch.job
  local function look(i, side, text)
    local converter = job.configs[i] and job.configs[i].converter or job.path[i].converter
    for _, part in ipairs(converter.components or { converter }) do
      local compiled, endings = patterns.compile(part.keys, side)
      local own = converter.inside and side == "right" and wrap.inner_key(converter.inside, key) or key
      local hit = patterns.match(compiled, own)[1]
      if hit then
        out[#out + 1] = ("  as a key %s: %s"):format(text, rule_line(hit.ending.rule))
        local goes = hit.ending.kind == "write" and not (hit.ending.from.each or hit.ending.to.each)
        if goes then out[#out + 1] = ("    on the other side: %s"):format(patterns.render(hit.ending.to[1], hit.caught)) end
      else
        out[#out + 1] = ("  as a key %s: no rule fits"):format(text)
        for _, line in ipairs(near_misses(endings, own, {}, side)) do out[#out + 1] = "    " .. line end
      end
    end
  end
  look(1, job.path[1].side, "of " .. job.path[1].src)
  look(#job.path, rules.other[job.path[#job.path].side], "of " .. job.path[#job.path].tgt)
end

---@class Explanation   of a tensor
---@field key string
---@field lines string[]   below the key

---Explanations as lines; those that differ in numbers only once, with the keys of the others.
---@param list Explanation[]
---@return string[]
local function folded(list)
  local groups, order, out = {}, {}, {}
  for _, one in ipairs(list) do
    local like = (one.key .. "\n" .. table.concat(one.lines, "\n")):gsub("%d+", "#")
    if not groups[like] then groups[like], order[#order + 1] = {}, like end
    table.insert(groups[like], one)
  end
  for i, like in ipairs(order) do
    local group, keys = groups[like], {}
    if i > 1 then out[#out + 1] = "" end
    out[#out + 1] = group[1].key
    for _, line in ipairs(group[1].lines) do out[#out + 1] = line end
    for k = 2, #group do keys[k - 1] = group[k].key end
    if #keys > 0 then out[#out + 1] = ("  %d more like it: %s"):format(#keys, naming.all_folded(keys)) end
  end
  return out
end

---@param watch Watch
---@param glob string     matches source or target keys
---@return string[] lines, integer count
function explain.lines(watch, glob)
  local matches, list, seen = cbk.glob(glob), {}, {}
  local function consider(step, record, key)
    if not key or seen[record] or not matches(key) or is_known_elsewhere(watch, step, record) then return end
    local way = thread(watch, step, record)
    local first, lines = way[1][1] or record, {}
    for i, step_taken in ipairs(watch.job.path) do
      for _, one in ipairs(way[i]) do
        seen[one] = true
        describe(one, step_taken, watch.job.configs[i], lines)
      end
    end
    list[#list + 1] = { key = first.what == "fill" and "(made here)" or first.source, lines = lines }
  end
  for _, record in ipairs(watch.steps[1]) do consider(1, record, record.source) end
  local last = #watch.steps
  for _, record in ipairs(watch.steps[last]) do consider(last, record, record.target) end
  local out = folded(list)
  if #list == 0 then describe_unknown(watch, glob, out) end
  return out, #list
end

return explain
