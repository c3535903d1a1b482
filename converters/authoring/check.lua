-- Finds mistakes in a converter's key rules: rules that no key reaches, two rules with one target, keys that are converted in one
-- direction only. It converts nothing.

local naming = require "cbk.naming"
local patterns = require "converters.engine.patterns"
local rules = require "converters.engine.rules"
local relate = require "converters.authoring.relate"
local position = require "converters.notation.position"

local check = {}

---@class Finding
---@field kind "unreachable"|"one way"|"both ways"|"collision"|"captures"
---@field rule Rule
---@field text string

---@class OneWay   Keys that are only read or only written, and why.
---@field side Side     the side with these keys
---@field pattern string
---@field text string
---@field rule Rule

local towards = { left = "left to right", right = "right to left" }

---The earlier ending that takes all keys of `ending`.
local function shadow_of(endings, ending)
  for i = 1, ending.order - 1 do
    local earlier = endings[i]
    if not earlier.rule.when and relate.covers(earlier.pattern, ending.pattern) then return earlier end
  end
end

---For each rule, as written, and each side: the rule that takes all of its keys, if there is one.
---@return table<Rule, table<Side, { by: Rule, is_same: boolean }>>   is_same: both have the very same pattern there
local function shadows(compiled)
  local out, reached = {}, {}
  for side, endings in pairs(compiled) do
    for _, ending in ipairs(endings) do
      local rule = ending.rule.base or ending.rule
      if ending.rule[side] and (rule[side] or rule.kind) and ending.why ~= "made again on the way back" then
        out[rule], reached[rule] = out[rule] or {}, reached[rule] or {}
        local shadow = shadow_of(endings, ending)
        if not shadow then
          reached[rule][side] = true
        elseif not reached[rule][side] then
          out[rule][side] = { by = shadow.rule.base or shadow.rule, is_same = shadow.pattern == ending.pattern }
        end
        if reached[rule][side] then out[rule][side] = nil end
      end
    end
  end
  return out
end

---Advice for a rule that never writes its key. To write both keys, the first rule must name the second key.
local function never_written(rule, first, side)
  local other = rules.other[side]
  local key = rule[other][1]
  local advice = 'if only some files have this key, say which: read_only = "…"'
  if first[other] and not rule.when then advice = ("to write both keys, add also_%s = '%s' to that rule"):format(other, key) end
  return ("%s, '%s' is never written: '%s' (%s) takes '%s'; %s"):format(towards[side], key, rules.text(first), position.of(first),
    rule[side][1], advice)
end

---@param excused table<Rule, boolean>   rules that need their `read_only`; changed
local function check_reach(set, compiled, findings, one_way, excused)
  local by_rule = shadows(compiled)
  for _, rule in ipairs(set) do
    local by_side = by_rule[rule] or {}
    local left, right = by_side.left, by_side.right
    if (left or not rule.left) and (right or not rule.right) then
      local taker = (left or right).by
      findings[#findings + 1] = { kind = "unreachable", rule = rule,
        text = ("no key reaches it: '%s' (%s) takes them all"):format(rules.text(taker), position.of(taker)) }
    elseif left or right then
      local side = left and "left" or "right"
      local other = rules.other[side]
      local first = (left or right).by
      excused[rule] = true
      if rule.read_only then
        one_way[#one_way + 1] = { side = other, rule = rule, pattern = rule[other][1], text = rule.read_only }
      else
        findings[#findings + 1] = { kind = "one way", rule = rule, text = never_written(rule, first, side) }
      end
    end
  end
end

-- --- what is written

local function has_star_alone(pattern) return pattern == "*" end

---Whether the conditions of two rules may both hold.
local function may_meet(a, b)
  local one, other = a.rule.base or a.rule, b.rule.base or b.rule
  return one ~= other and not (one.when or other.when)
end

local function targets_of(ending, other)
  local out = {}
  local function add(pattern) out[#out + 1] = { pattern = pattern, last = naming.last(pattern), ending = ending } end
  if ending.kind ~= "write" then return out end
  for _, pattern in ipairs(ending.rule[other] or {}) do add(pattern) end
  for _, extra in ipairs(ending.rule.also[other]) do add(extra[1]) end
  return out
end

---A quick comparison of the last parts of two patterns, before the full one.
local function may_be_alike(one, other) return one == other or #one == 1 or #other == 1 end

---Whether both can write the same key. Keys that both could read do not count: the first rule takes them.
local function collide(a, b)
  if not may_meet(a.ending, b.ending) then return false end
  if has_star_alone(a.pattern) or has_star_alone(b.pattern) then return false end
  if relate.overlap(a.ending.pattern, b.ending.pattern) then return false end
  return relate.overlap(a.pattern, b.pattern)
end

---Reports a key that a rule writes twice.
local function check_own_targets(ending, side, findings)
  local seen = {}
  for _, target in ipairs(targets_of(ending, rules.other[side])) do
    if seen[target.pattern] then
      findings[#findings + 1] = { kind = "collision", rule = ending.rule.base or ending.rule,
        text = ("%s, it writes '%s' twice"):format(towards[side], target.pattern) }
    end
    seen[target.pattern] = true
  end
end

local function check_targets(endings, side, findings, excused)
  local seen, reported = {}, {}
  for _, finding in ipairs(findings) do reported[finding.rule] = true end
  for _, ending in ipairs(endings) do
    if not shadow_of(endings, ending) then
      check_own_targets(ending, side, findings)
      for _, target in ipairs(targets_of(ending, rules.other[side])) do
        for _, earlier in ipairs(seen) do
          local rule, first = target.ending.rule.base or target.ending.rule, earlier.ending.rule.base or earlier.ending.rule
          local meet = may_be_alike(earlier.last, target.last) and not reported[rule] and not reported[first] and collide(earlier, target)
          if meet and (rule.read_only or first.read_only) then
            excused[rule], excused[first] = true, true
          elseif meet then
            reported[rule] = true
            findings[#findings + 1] = { kind = "collision", rule = rule,
              text = ("%s, '%s' and '%s' both become '%s' (%s); if a file has only one of them, say which files have this one: "
                .. "read_only = \"…\""):format(towards[side], earlier.ending.pattern, target.ending.pattern, target.pattern,
                position.of(first)) }
          end
        end
        seen[#seen + 1] = target
      end
    end
  end
end

-- --- captures

local function set_of(list)
  local out = {}
  for _, one in ipairs(list) do out[one] = true end
  return out
end

---The letters and stars of a pattern whose optional part may stand before one: "[model.]N.w".
local function captures_of(pattern) return set_of(patterns.captures((pattern:gsub("%[([^%[%]]*)%]", "%1")))) end

---The rule with the letter in its pattern. It may be the common prefix of a table of rules.
local function owner_of(rule, side, letter)
  local below = rule.below
  while below do
    if captures_of(below[1][side][1])[letter] then return below[1] end
    below = below[2]
  end
  return rule
end

---What is wrong with a part of a pattern such as "block_N", in which the letter is not a number; nil if there is none.
---@param pattern string
---@param letter string
---@return string|nil
local function plain_text(pattern, letter)
  for _, part in ipairs(patterns.split(pattern)) do
    local before, after = part:match("^([%w_-]*[_-])" .. letter .. "([_-]?[%w_-]*)$")
    if not before then before, after = part:match("^(%l[%l%d]*)" .. letter .. "()$") end
    if before then
      after = type(after) == "string" and after or ""
      return ("in '%s' %s is plain text: write %s{%s}%s or %s{%s:2}%s"):format(part, letter, before, letter, after, before, letter, after)
    end
  end
end

local function check_captures(rule, side, findings)
  local other = rules.other[side]
  local from, to = rule[side], rule[other]
  local function add(owner, text)
    for _, one in ipairs(findings) do
      if one.rule == owner and one.text == text then return end -- both directions have the same mistake
    end
    findings[#findings + 1] = { kind = "captures", rule = owner, text = text }
  end
  local caught = captures_of(from[1])
  if not to then return end
  local counted_from, counted_to = from.each and from.each.letter, to.each and to.each.letter
  local written = { to[1] }
  for _, extra in ipairs(rule.also[other]) do written[#written + 1] = extra[1] end
  for i, pattern in ipairs(written) do
    local wanted = captures_of(pattern)
    for letter in pairs(wanted) do
      if not caught[letter] and letter ~= counted_to then
        local owner = owner_of(rule, other, letter)
        add(owner, plain_text(from[1], letter)
          or ("%s '%s' has no value in '%s'"):format(towards[side], letter, owner == rule and pattern or owner[other][1]))
      end
    end
    for letter in pairs(caught) do
      if i == 1 and not wanted[letter] and letter ~= counted_from then
        local owner = owner_of(rule, side, letter)
        add(owner, plain_text(pattern, letter)
          or ("%s all values of '%s' in '%s' become one key"):format(towards[side], letter, owner[side][1]))
      end
    end
  end
end

-- --- all of it

---Collects keys that are written together with others and ignored in the other direction, and one-sided rules.
local function collect_one_way(set, one_way)
  local text = { only = "ignored: %s", drop = "left out, with a warning: %s", refuse = "an error: %s" }
  for _, rule in ipairs(set) do
    if rule.kind then
      local side = rule.left and "left" or "right"
      one_way[#one_way + 1] = { side = side, rule = rule, pattern = rule[side][1], text = text[rule.kind]:format(rule.why) }
    end
    for _, side in ipairs { "left", "right" } do
      for _, extra in ipairs(rule.also[side]) do
        one_way[#one_way + 1] = { side = side, rule = rule, pattern = extra[1],
          text = ("written together with '%s', and ignored when it is read"):format(rule[side][1]) }
      end
    end
  end
end

---@param set Rule[]
---@return Finding[] findings, OneWay[] one_way
---@return table<Rule, boolean> excused   rules that need their `read_only`, because another rule writes their target
function check.keys(set)
  local findings, one_way, compiled, excused = {}, {}, {}, {}
  for _, side in ipairs { "left", "right" } do compiled[side] = select(2, patterns.compile(set, side)) end
  check_reach(set, compiled, findings, one_way, excused)
  for _, rule in ipairs(set) do
    for _, side in ipairs { "left", "right" } do
      if rule[side] then check_captures(rule, side, findings) end
    end
  end
  for _, side in ipairs { "left", "right" } do check_targets(compiled[side], side, findings, excused) end
  collect_one_way(set, one_way)
  return findings, one_way, excused
end

---Rules with `read_only` whose keys are always written. Several tables may share a rule.
---@param looked { [1]: Rule[], [2]: table<Rule, boolean> }[]   tables, and the excused rules of check.keys
---@return Finding[]
function check.read_only(looked)
  local findings, is_needed, seen = {}, {}, {}
  local function id(rule) return rule.origin.source .. " " .. table.concat(rule.origin.names, " ") end
  for _, one in ipairs(looked) do
    for rule in pairs(one[2]) do is_needed[id(rule)] = true end
  end
  for _, one in ipairs(looked) do
    for _, rule in ipairs(one[1]) do
      if rule.read_only and not (rule.when or is_needed[id(rule)] or seen[id(rule)]) then
        seen[id(rule)] = true
        findings[#findings + 1] = { kind = "both ways", rule = rule,
          text = "its keys are written in both directions: remove `read_only`" }
      end
    end
  end
  return findings
end

---Keys that two parts of a composite write. On the right the parts share a checkpoint.
---@param parts Component[]
---@return Finding[]
function check.parts(parts)
  local findings, seen = {}, {}
  for _, part in ipairs(parts) do
    local own, collision = select(2, patterns.compile(part.keys, "right")), nil
    for _, ending in ipairs(own) do
      for _, earlier in ipairs(collision and {} or seen) do
        if not collision and relate.overlap(earlier.pattern, ending.pattern) then
          collision = { kind = "collision", rule = ending.rule.base or ending.rule,
            text = ("'%s' belongs to two parts: '%s' writes it too (%s)"):format(ending.pattern, earlier.part,
              position.of(earlier.rule)) }
        end
      end
    end
    findings[#findings + 1] = collision
    for _, ending in ipairs(own) do seen[#seen + 1] = { pattern = ending.pattern, rule = ending.rule, part = part.left } end
  end
  return findings
end

return check
