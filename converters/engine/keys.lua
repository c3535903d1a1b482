-- Runs key rules over the tensors of one model, in one direction. Nothing is computed here: the output is lazy expressions.

local cbk = require "cbk"
local errors = require "cbk.errors"
local fold = require "cbk.fold"
local warnings = require "cbk.warnings"
local fields = require "converters.engine.fields"
local kinds = require "converters.engine.kinds"
local moved = require "converters.engine.moved"
local naming = require "cbk.naming"
local rules = require "converters.engine.rules"
local patterns = require "converters.engine.patterns"
local visible = require "converters.notation.visible"

local keys = {}

local MOST_VALUES = 1e5 -- of a letter
local MOST_SAID = 2 ^ 18 -- bytes of at:warn in a conversion

---@class At   What an action can ask for and do.
---@field left Dict                 The left model config, complete with defaults.
---@field right Dict                The right model config, complete with defaults.
---@field side Side                 The side that is read, "left" or "right".
---@field key string                The key that is read, without `model.`.
local At = {}
At.__index = At
keys.At = At
visible.show(At, "left right side key source is_stored emit invent warn")

---Another tensor of the checkpoint that is read, or nil.
---@param key string
function At:source(key)
  if type(key) ~= "string" then
    cbk.fail("converter", ("at:source(key): expected the key of a tensor, found %s"):format(kinds.facts(key) or type(key)))
  end
  local run, value = self.run, self.run.read(self.prefix .. key)
  if value == nil and run.prefix then value = run.read((self.prefix == "" and run.prefix or "") .. key) end
  return value
end

---Warns, once in a conversion of keys that differ in their numbers alone.
---@param text string
function At:warn(text)
  if type(text) ~= "string" then cbk.fail("converter", ("at:warn(text): expected a text, found a %s"):format(type(text))) end
  local kind, run = text:gsub("%d+", "0"), self.run
  if run.warned[kind] then return end
  run.warned[kind], run.said = true, run.said + #text
  if run.said > MOST_SAID then cbk.fail("converter", "the converter warns of more than fits on a screen") end
  cbk.warn(text)
end

---Whether the checkpoint has the key itself, not only another name of a tied tensor.
---@param key string
function At:is_stored(key) return self.run.kept[key] == nil and self:source(key) ~= nil end

---Writes a tensor under one more key.
function At:emit(key, value)
  local run = self.run
  local earlier = run.out[key]
  if earlier ~= nil and run:differ(earlier, value) then
    if run.writer[key] and run.writer[key] ~= self.full_key then return run:collide(run.writer[key], key) end
    cbk.warn(("two source tensors for '%s' have different values; keeping that of '%s'"):format(key, self.key))
  end
  run.emitter[key] = self.full_key
  run:put(key, value)
  run:tell(run.hit and "beside" or "fill", key, value)
end

---The seed of a key's random numbers. Different keys, and different seeds, get different numbers.
---@param key string
---@param seed integer
function keys.seed_of(key, seed)
  local low, high = seed % 2 ^ 31, math.floor(seed / 2 ^ 31)
  for i = 1, #key do low = (low * 31 + key:byte(i)) % 2 ^ 31 end
  return high * 2 ^ 31 + low
end

---A new tensor for a key that the checkpoint lacks, with a warning.
---@param shape integer[]
---@param spread? number|{ uniform: number }   the standard deviation of normal random numbers, `{ uniform = x }` for uniform ones up to ±x,
---                                            or nil for zeros
---@param key? string   the key in the warning (default: the one at hand)
---@return Tensor
function At:invent(shape, spread, key)
  key = key or self.key
  local number = type(spread) == "table" and spread.uniform or spread
  if type(key) ~= "string" or number ~= nil and type(number) ~= "number" then
    cbk.fail("converter", "at:invent expects a shape, a number or { uniform = NUMBER }, and a key")
  end
  local is_uniform = type(spread) == "table"
  local what = is_uniform and ("uniform random values (±%g) of seed %d"):format(spread.uniform, self.run.seed)
    or spread and ("normal random values (0, %g) of seed %d"):format(spread, self.run.seed) or "zeros"
  cbk.warn(("'%s' is not in the checkpoint: %s are written"):format(key, what))
  if spread then self.run.invented[#self.run.invented + 1] = { key = key, shape = shape } end
  local seed = keys.seed_of(key, self.run.seed)
  if is_uniform then return cbk.rand(shape, { low = -spread.uniform, high = spread.uniform, seed = seed, dtype = "float32" }) end
  if not spread then return cbk.full(shape, 0, { dtype = "float32" }) end
  return cbk.randn(shape, { mean = 0, std = spread, seed = seed, dtype = "float32" })
end

local function fail(message, ...) cbk.fail("convert", message:format(...)) end

---@class Action   An invertible pair. A side given as a list of keys is a list of tensors here.
---@field name string
---@field forward fun(value: any, at: At): any    left to right
---@field backward fun(value: any, at: At): any
---@field takes_null? boolean

local function is_count(value) return type(value) == "number" and value % 1 == 0 and value >= 0 and value <= MOST_VALUES end

---How many values a letter has: a whole number, or an error.
---@param each Each
---@param rule Rule   that has it
---@param at At
---@return integer
function keys.count(each, rule, at)
  local field = type(each.count) == "string" and each.count
  local found = field and at.right[field]
  if not field then found = each.count(at) end
  if is_count(found) then return found end
  fail("%s: %s counts '%s', and is %s: only a whole number from 0 to %d is supported", rules.named(rule),
    field and "'" .. field .. "'" or "a function", each.letter, fields.shown(found), MOST_VALUES)
end

---Fails if the configs do not give the counts that rules need.
---@param set Rule[]
---@param at { left: Dict, right: Dict }
function keys.check_counts(set, at)
  for _, rule in ipairs(set) do
    for side in pairs(rules.other) do
      local each = rule[side] and rule[side].each
      if each then keys.count(each, rule, at) end
    end
  end
end

---The keys of one side of a rule: as given, or, for each pattern, one per value of a letter.
---@param side table[]   templates
local function members(side, rule, caught, at)
  local out, each = {}, side.each
  if not each then
    for i, pieces in ipairs(side) do out[i] = patterns.render(pieces, caught) end
    return out
  end
  local count = keys.count(each, rule, at)
  for _, pieces in ipairs(side) do
    for i = 0, count - 1 do out[#out + 1] = patterns.render(pieces, caught, { [each.letter] = tostring(i) }) end
  end
  return out
end

---Whether a rule applies to a key that its pattern fits: its condition holds, and the key is within the rule's count.
---@param hit Hit
---@param at At
function keys.holds(hit, at)
  local rule, each = hit.ending.rule, hit.ending.from.each
  if rule.when and not rule.when(at) then return false end
  local own = each and hit.caught[each.place]
  return not each or tonumber(own) < keys.count(each, rule, at) and tostring(tonumber(own)) == own
end

---@class KeyRecord   What became of a key; passed to options.trace.
---@field what "write"|"beside"|"fill"|"part"|"pass"|"unmatched"   `part`: joined with others into the target; `pass`: passed over, by a
---rule of one side
---@field source string       the key as it is in the checkpoint
---@field key string          the key as the rules see it
---@field target? string
---@field ending? Ending      the rule that fitted
---@field caught? string[]
---@field rejected Ending[]   earlier rules that fit except for their `when`
---@field given any           what was read: a tensor, null, or a list of tensors
---@field note? string        what was done to it before the rules saw it
---@field value any           what is written
---@field compiled CompiledPatterns   all patterns of this side
---@field endings Ending[]

local Run = {}
Run.__index = Run

---@param what string
function Run:tell(what, target, value)
  if not self.trace then return end
  local at, hit = self.at, self.hit
  self.trace {
    what = what, source = self.kept[at.full_key] or at.full_key, key = at.key, target = target,
    ending = hit and hit.ending, caught = hit and hit.caught, rejected = self.rejected, given = self.given, note = self.note,
    value = value, compiled = self.compiled, endings = self.endings,
  }
end

---Sets a key of the output. Null is written only for a checkpoint that has null, and other values that are no tensors only by a table
---that copies whatever there is, as they are.
function Run:put(target, value)
  local is_copy = self.reads_all and rawequal(value, self.given)
  if not (kinds.is_tensor(value) or is_copy or value == cbk.null and self.has_null) then
    fail("key '%s' would become %s: expected a tensor", target, kinds.facts(value) or "a " .. type(value))
  end
  self.out[target] = value
end

---Notes that another key becomes the same target as the current one.
---@param other string
function Run:collide(other, target)
  self.collisions[#self.collisions + 1] = ("'%s' and '%s' both become '%s'"):format(other, self.at.full_key, target)
end

---Remembers a target; a second source for it is an error.
function Run:write(target, value)
  if value == cbk.null and self.no_nulls then
    fail("key '%s' is null in the checkpoint, which the target format cannot hold", self.at.key)
  end
  local earlier, beside = self.writer[target], self.emitter[target]
  if earlier and earlier ~= self.at.full_key then
    self:collide(earlier, target)
  elseif beside and beside ~= self.at.full_key and self:differ(self.out[target], value) then
    self:collide(beside, target)
  end
  self.writer[target] = self.at.full_key
  self:put(target, value)
  self:tell("write", target, value)
end

---Calls a function of the current rule; its errors are reported with the key, its shape and the rule.
---@param what string   what the function does, for the message
function Run:call(what, rule, f, ...)
  local fine, result = pcall(f, ...)
  if fine then return result end
  local is_ours = type(result) == "table" and result.code == "config" and result.field and result.found == "nothing"
  if is_ours and cbk.count(self.at.left) + cbk.count(self.at.right) == 0 then
    return self:fail(what, rule, ("it reads fields such as '%s', and there is no config: name one with --config"):format(result.field))
  elseif is_ours and self.at.side == "left" and self.foreign_right then
    return self:fail(what, rule, ("it reads fields of the right config, such as '%s', and that of the format %s has none: add a config "
      .. "rule that writes it, or write an action of your own (see `cbk help converters`)"):format(result.field, self.foreign_right))
  elseif is_ours and self.at.side == "left" then -- rules made the right config
    return self:fail(what, rule, ("the right config has no '%s'; add a config rule that writes it"):format(result.field))
  end
  self:fail(what, rule, errors.text(result))
end

function Run:fail(what, rule, why)
  fail("cannot convert key '%s' (%s) with '%s': %s (%s)", self.at.key, kinds.facts(self.given), what, why, rules.named(rule))
end

---Collects the tensors that one target is made of; nil if this was done before, or if one is missing.
function Run:gather(hit)
  local at, from, rule = self.at, hit.ending.from, hit.ending.rule
  local each, group = from.each, {}
  for i, pattern in ipairs(from) do group[i] = patterns.render(pattern, hit.caught, each and each.itself) end
  local of_rule, id = self.gathered[rule] or {}, table.concat(group, " ")
  if of_rule[id] then return nil end
  self.gathered[rule], of_rule[id] = of_rule, true
  local parts, complete = {}, true
  for i, name in ipairs(members(from, rule, hit.caught, at)) do
    parts[i] = at:source(name)
    if parts[i] == nil then
      complete = false
      self.missing[#self.missing + 1] = ("%s (its partner is %s)"):format(name, at.key)
    end
  end
  return complete and parts or nil
end

---Records that the key is left out. Keys with the same reason are reported together.
---@param why string
---@param copy? { of: string, pattern: string }   the original key, and its pattern in the rule: %s in `why`
function Run:leave_out(why, copy)
  local name = copy and why:format(copy.pattern) or why
  local group = self.left_out[name]
  if not group then
    group = { why = copy and why:format(copy.of) or why, of_all = name }
    self.left_out[name], self.left_out[#self.left_out + 1] = group, group
  end
  group[#group + 1] = { path = self.at.full_key }
end

---Whether two tensors have different values. With `options.trace` no values are read, and the answer is false.
function Run:differ(a, b) return not self.trace and kinds.differ(a, b) end

---Handles a key that the other side does not have: fails, records it as left out, or skips a copy.
function Run:pass_over()
  local at, ending = self.at, self.hit.ending
  if ending.kind == "refuse" and self.given ~= cbk.null then fail("cannot convert key '%s': %s", at.key, ending.why) end
  if ending.kind == "drop" then self:leave_out(ending.why) end
  for hit in patterns.hits(self.compiled, at.key) do
    local original = hit.ending.copy_of and patterns.render(hit.ending.copy_of, hit.caught)
    local other = original and at:source(original)
    if original and other == nil then
      self:leave_out("it is known only as a copy of '%s', which is missing", { of = original, pattern = hit.ending.rule.copy_of })
    elseif original and not hit.ending.rule.is_made and self:differ(self.given, other) then
      self:leave_out("it differs from '%s', which is kept", { of = original, pattern = hit.ending.rule.copy_of })
    end
  end
  self.moves[at.full_key] = { is_changed = false }
  self:tell "pass"
end

---The captures of a key, with their numbers in the other side's counting. The way back must give the same numbers.
---@param number { forward: function, backward: function }   of the rule
---@param direction string
---@param caught string[]
local function renumber(number, direction, caught)
  local out = {}
  local count, count_back = number[direction], number[direction == "forward" and "backward" or "forward"]
  for i, text in ipairs(caught) do
    local n = text:find "^%d+$" and count(tonumber(text))
    if n and not (type(n) == "number" and n % 1 == 0 and n >= 0 and n < 2 ^ 53) then
      fail("number %s of a key becomes %s, which is not a whole number", text, fields.shown(n))
    end
    local back = n and count_back(n)
    if back ~= (n and tonumber(text)) then
      fail("number %s of a key becomes %d, which the rule's way back makes %s: 'forward' and 'backward' must undo each other", text, n,
        fields.shown(back))
    end
    out[i] = n and ("%d"):format(n) or text
  end
  return out
end

---What an action returned instead of a tensor for each key; nil if the result is valid.
---@param made any
---@param count integer|nil   the number of keys, if the side has several
---@param value any           the action's argument
local function mistake_in(made, count, value)
  if made == nil then return "nothing (does it return a value?)" end
  local list = count and made or { made }
  if type(list) ~= "table" or table.maxn(list) ~= (count or 1) then return kinds.facts(made) or "no tensors" end
  for i = 1, count or 1 do
    local one = list[i]
    local is_fine = one == cbk.null or kinds.is_tensor(one) or one ~= nil and rawequal(one, value)
    if not is_fine then return kinds.facts(one) or one == nil and "nothing as number " .. i or "no tensors" end
  end
end

---What the rule's action makes of a value: a tensor for one key, a list with one for each key of a side that has several.
---@param count integer|nil   the number of keys, if the side has several
function Run:act(rule, value, count)
  local action = rule.action
  local made = self:call(action.name, rule, action[self.direction], value, self.at)
  local mistake = mistake_in(made, count, value)
  if mistake then self:fail(action.name, rule, ("expected %s, found %s"):format(count and count .. " tensors" or "a tensor", mistake)) end
  return made
end

---Fails if a number in the key exceeds the config's count.
function Run:check_numbers()
  local known = self.known
  local said = known and not known:own_key(self.at.key) and known:beyond(self.at.key)
  if said then fail("the config says %s, but the checkpoint has '%s'", said, self.at.full_key) end
end

---@class KeyMove   What became of a key of one tensor.
---@field to? string          its new name; nil if it has none, or several
---@field is_written? boolean
---@field is_changed boolean   the tensor was changed
---@field is_split? boolean     it became several, which are parts of it

---Remembers what became of a key.
---@param targets string[]
---@param made any   what its action made of the value
function Run:note_move(hit, targets, value, made)
  local ending = hit.ending
  local is_one = #targets == 1 and #ending.also == 0 and #ending.from == 1 and not ending.from.each
  local is_same = rawequal(made, value) or kinds.is_tensor(made) and kinds.is_tensor(value) and made:same(value)
  self.moves[self.at.full_key] = { to = is_one and targets[1] or nil, is_written = #targets > 0, is_changed = not is_same,
    is_split = #targets > 1 }
end

---Fails if the value is not a tensor, or has no elements. A table that copies everything accepts any value.
function Run:check_weight(value)
  if self.reads_all or value == cbk.null then return end
  if not kinds.is_tensor(value) then
    fail("key '%s' of the checkpoint: expected a tensor, found %s", self.at.full_key, kinds.facts(value))
  end
  for _, extent in ipairs(value:shape()) do
    if extent == 0 then fail("key '%s' (%s) has no elements", self.at.full_key, kinds.facts(value)) end
  end
end

---The captures of a key, as its rule renumbers them.
---@param hit Hit
---@return string[]
function Run:captures(hit)
  local rule = hit.ending.rule
  return rule.number and self:call("its numbers", rule, renumber, rule.number, self.direction, hit.caught) or hit.caught
end

---Runs a rule on a key and writes the results.
---@param hit Hit
function Run:apply(hit, value)
  local ending, at = hit.ending, self.at
  self:check_weight(value)
  local rule, to, caught = ending.rule, ending.to, self:captures(hit)
  self:check_numbers()
  if #ending.from > 1 or ending.from.each then
    value = self:gather(hit)
    if not value then
      self.moves[at.full_key] = { is_written = true, is_changed = true } -- into one of others
      return self.trace and self:tell("part", members(to, rule, caught, at)[1])
    end
    self.given = value
  end
  local targets = members(to, rule, caught, at)
  local is_list = #to > 1 or to.each ~= nil
  local is_whole, given = value == cbk.null and not (rule.action and rule.action.takes_null), value -- null goes to each key
  if rule.action and not is_whole then
    value = self:act(rule, value, is_list and #targets or nil)
  end
  for i, target in ipairs(targets) do self:write(target, is_list and not is_whole and value[i] or value) end
  self:note_move(hit, targets, given, value)
  for _, extra in ipairs(ending.also) do
    local made = self:call("what is beside it", rule, extra[2], at, value)
    if made ~= nil then at:emit(patterns.render(extra[1], caught), made) end
  end
end

---Makes `full_key` current and clears the state of the previous key. Rules see the key without `prefix`.
---@param given any   the value that is read, if any
function Run:stand(full_key, prefix, given)
  local at = self.at
  at.key, at.full_key, at.prefix = full_key:sub(#prefix + 1), full_key, prefix
  self.given, self.note, self.hit, self.rejected = given, nil, nil, {}
end

---Finds the first rule that fits the key and whose condition holds.
function Run:find()
  for hit in patterns.hits(self.compiled, self.at.key) do
    local ending = hit.ending
    local is_plain = not (ending.rule.when or ending.from.each)
    if is_plain or self:call("its condition", ending.rule, keys.holds, hit, self.at) then
      self.hit = hit
      return
    end
    self.rejected[#self.rejected + 1] = ending
  end
end

---Converts one key; false if no rule fits it.
function Run:convert(key, value)
  if type(key) ~= "string" then return false end
  if value == cbk.null then self.has_null = true end
  self:stand(key, "", value)
  self:find()
  if not self.hit and self.prefix and key:sub(1, #self.prefix) == self.prefix then
    self:stand(key, self.prefix, value)
    self:find()
  end
  local weight, its_hit = self:find_weight()
  if not self.hit and not weight then
    self:tell "unmatched"
    return false
  end
  if self.view then value, self.note = self.view(key, value) end
  if self.kept[key] then self.note = self.note and "tied + " .. self.note or "tied" end
  if weight then
    self:apply_mask(weight, its_hit, value)
  elseif self.hit.ending.kind == "write" then
    self:apply(self.hit, value)
  else
    self:pass_over()
  end
  return true
end

---The weight of a mask, and its rule, which gives the mask its name. Nil if a rule names the mask itself.
---@return string|nil weight, Hit|nil
function Run:find_weight()
  local is_named = self.hit and not self.hit.ending.pattern:find "%*$"
  local weight = self.masks and not is_named and self.at.key:match "^(.*)_mask$"
  if not weight or self.at:source(weight) == nil then return nil end
  for _, hit in ipairs(patterns.match(self.compiled, weight)) do
    if keys.holds(hit, self.at) then
      local is_copied = hit.ending.kind == "write" and hit.ending.pattern:find "%*$"
      return not is_copied and weight or nil, hit
    end
  end
end

---Writes a mask beside its weight. Where an action changes that, or it is left out, so are the masks, when all of them are known.
---@param weight string
---@param hit Hit   of the weight
function Run:apply_mask(weight, hit, value)
  local ending = hit.ending
  if ending.kind ~= "write" or ending.rule.action or #ending.from > 1 or #ending.to > 1 or ending.from.each or ending.to.each then
    self.mask_of[weight] = value
    return
  end
  local caught = self:captures(hit)
  self.hit = hit
  self:write(patterns.render(ending.to[1], caught) .. "_mask", value)
end

---Converts the masks of weights that actions split, join or reorder, as these are.
---@param set Rule[]
---@param side Side
---@param options KeyOptions
function Run:convert_masks(set, side, options)
  if cbk.count(self.mask_of) == 0 then return end
  local function as_mask(record)
    return rules.variant(record, { source = record.source .. "_mask", target = record.target and record.target .. "_mask" })
  end
  local own = { left = options.left, right = options.right, prefix = options.prefix, no_nulls = options.no_nulls, is_refused = true }
  own.trace = options.trace and function(record) options.trace(as_mask(record)) end
  local fine, made = pcall(keys.convert, set, side, self.mask_of, own)
  if not fine then error(errors.put_in(made, "cannot convert the masks of sparse weights: every part of a weight needs one"), 0) end
  own.trace = nil
  local computed = moved.computed(self.mask_of, function(masks) return (keys.convert(set, side, masks, own)) end)
  if computed then
    cbk.fail("convert", ("cannot convert the mask of '%s': the table computes with the elements of the weight, and a mask can only move")
      :format(computed), { advice = "give masks a rule of their own in the table, such as { 'a.weight_mask', 'b.weight_mask' }" })
  end
  for key, value in cbk.items(made) do self:put(key .. "_mask", value) end
end

---Makes the tensors that the target needs and no rule wrote.
---@param makers? table[]
---@param is_idle? boolean   the output will not be written: errors count, warnings do not
function Run:fill(makers, is_idle)
  if is_idle then
    local fine, problem = warnings.quietly(self.fill, self, makers)
    if not fine then error(problem, 0) end
    return
  end
  for _, maker in ipairs(makers or {}) do
    local key, make = maker[1], maker[2]
    self:stand(key, "")
    if self.out[key] == nil then
      local made = make(self.at)
      if made ~= nil then
        self:put(key, made)
        self:tell("fill", key, made)
      end
    end
  end
end

---Warns about the keys that were left out.
function Run:warn_of_left_out()
  for _, group in ipairs(self.left_out) do
    local names = {}
    for i, one in ipairs(fold.groups(group)) do names[i] = one.name end
    cbk.warn(("%d %s left out: %s (%s)"):format(#group, #group == 1 and "key is" or "keys are", table.concat(names, ", "),
      #group == 1 and group.why or group.of_all))
  end
end

function Run:check()
  local function raise(list, one, many)
    if #list > 0 then cbk.fail("convert", ("%d %s: %s"):format(#list, #list == 1 and one or many, naming.listed(list))) end
  end
  raise(self.missing, "key is expected in the checkpoint but missing", "keys are expected in the checkpoint but missing")
  raise(self.collisions, "target key has two sources", "target keys have two sources")
end

---@class InventedTensor
---@field key string
---@field shape integer[]

---@class KeyOptions
---@field left Dict                     the two model configs, complete with defaults
---@field right Dict
---@field prefix? string                accepted before the keys that are read, never written
---@field fill? table<Side, table[]>    { key, function(at) }: tensors that the target needs, if no rule wrote them
---@field kept? table<string, string>   keys of tied tensors that the file does not store, to the key that it stores
---@field no_nulls? boolean             the target cannot hold null
---@field masks? boolean                it holds masks of sparse weights
---@field foreign_right? string         the right format, if it is not of the Model Zoo
---@field is_refused? boolean           the conversion fails if a key has no rule
---@field seed? integer
---@field known? ClassTensors           the class's tensors on the side that is read; nil if the table copies all keys
---@field view? fun(key: string, value: any): any, string?   the value as the rules see it, and what was done to it
---@field trace? fun(record: KeyRecord)

---Stops reading after this many keys without a rule, if the checkpoint is refused for them: a hostile file may have a million.
keys.ENOUGH_UNMATCHED = 20000

---Converts all keys of `source`.
---@param set Rule[]
---@param side Side     the side that `source` is
---@param source Dict   key to tensor (or null)
---@param options KeyOptions
---@return Dict out, string[] unmatched, table<string, KeyMove> moves, InventedTensor[] invented   of random numbers
function keys.convert(set, side, source, options)
  local view, compiled, endings = options.view, patterns.compile(set, side)
  local run = setmetatable({
    compiled = compiled, endings = endings, direction = side == "left" and "forward" or "backward",
    out = cbk.dict(), writer = {}, emitter = {}, gathered = {}, missing = {}, collisions = {}, left_out = {}, invented = {},
    kept = options.kept or {}, known = options.known, reads_all = rules.reads_all(set, side),
    moves = {}, foreign_right = options.foreign_right,
    prefix = options.prefix, no_nulls = options.no_nulls, masks = options.masks, view = view,
    trace = options.trace, seed = options.seed or 0, warned = {}, said = 0, mask_of = cbk.dict(),
  }, Run)
  function run.read(key)
    local value = source[key]
    if value == nil or not view then return value end
    return (view(key, value))
  end
  run.at = setmetatable({ run = run, side = side, left = options.left, right = options.right }, At)
  local unmatched = {}
  for key, value in cbk.items(source) do
    if not run:convert(key, value) then
      unmatched[#unmatched + 1] = tostring(key)
      if options.is_refused and #unmatched == keys.ENOUGH_UNMATCHED then break end
    end
  end
  run:convert_masks(set, side, options)
  run:fill(options.fill and options.fill[rules.other[side]], options.is_refused and #unmatched > 0)
  run:check()
  run:warn_of_left_out()
  return run.out, unmatched, run.moves, run.invented
end

return keys
