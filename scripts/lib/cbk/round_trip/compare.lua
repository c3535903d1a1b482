-- What comes back from a round trip, compared with what was read: tensors bit for bit, ties, fields of the config.

local configs = require "cbk.round_trip.configs"
local extents = require "cbk.extents"
local fold = require "cbk.fold"
local numbers = require "cbk.numbers"
local position = require "converters.notation.position"
local rules = require "converters.engine.rules"
local trip = require "cbk.round_trip.trip"
local values = require "cbk.diff.values"

local compare = {}

---@class RoundTripFinding
---@field what "lost"|"shape"|"dtype"|"values"|"tie"|"field"
---@field key string        of the tensor, or the name of a field
---@field text string       what happened to it
---@field where? string     the place of the rule

---@class RoundTripResult
---@field findings RoundTripFinding[]
---@field tensors integer    that were read
---@field same integer       that came back bit for bit
---@field left_out integer   that a rule leaves out for a reason, or that are computed from the config
---@field rounded string[]   that an action computed with: they differ by rounding alone
---@field added integer      keys that came back and were not read

local EXACT = { rtol = 0, atol = 0 }
local ROUNDING = { float32 = 2 ^ -23, float64 = 2 ^ -52 } -- narrower dtypes lose too much of a weight by a sum

---Whether two tensors differ by the rounding of numbers up to 1, as a sum there and a difference back leave it.
local function is_rounding(difference, dtype)
  return ROUNDING[dtype] ~= nil and type(difference.max_abs) == "number" and difference.max_abs <= ROUNDING[dtype]
    and (difference.rel_norm or 1) < 1e-4
end

---How a tensor that came back differs from the one that was read; nil if it does not.
---@return string|nil what, string|nil text
local function difference(read, back)
  local shape, found = extents.shape(read:shape()), extents.shape(back:shape())
  if shape ~= found then return "shape", ("comes back with the shape %s, not %s"):format(found, shape) end
  if read.dtype ~= back.dtype then return "dtype", ("comes back as %s, not %s"):format(back.dtype, read.dtype) end
  if read:same(back) or read:compare(back).same_bits then return nil end
  local one = values.compare(read, back, EXACT)
  if not one then return "values", "comes back with equal numbers in other bits (the sign of 0, or NaN)" end
  if is_rounding(one, read.dtype) then return "rounded" end
  local place = #one.first > 0 and ", the first at " .. extents.shape(one.first) or ""
  local count, all = numbers.grouped(one.different), numbers.counted(one.numel, "element")
  return "values", ("comes back with %s of %s changed%s"):format(count, all, place)
end

---The other names of each tied tensor, by its class.
---@param known ClassTensors|nil
---@return table<string, string[]>
local function tied_names(known)
  local out = {}
  for _, names in ipairs(known and known:tied_names() or {}) do
    for _, name in ipairs(names) do out[name] = names end
  end
  return out
end

---Whether nothing is lost without the key: its tensor came back under another name of it, or is computed from the config.
local function is_spare(key, read, back, known, tied)
  local own = known and known:own_key(key)
  local one = own and known.by_key[own]
  if one and (one.buffer or one.optional or one.foreign) then return true end
  for _, name in ipairs(own and tied[own] or {}) do
    if back[name] and not difference(read[key], back[name]) then return true end
  end
  return false
end

---Whether a rule leaves the key out, and says why; what comes back under its name is made anew.
---@param record KeyRecord|nil   of the way there
---@param is_lost boolean
local function is_meant(record, is_lost)
  local ending = record and record.ending
  return ending ~= nil and (ending.kind == "only" or ending.kind == "drop" or is_lost and ending.rule.read_only ~= nil)
end

---The rules that a key went through, and the place of the one that is likelier wrong: that of the way back, if it is another one.
---@return string text, string|nil where
local function blamed(key, there, back)
  local out, seen, where = {}, {}, nil
  for _, record in ipairs { there[key] or false, back[key] or false } do
    local rule = record and record.ending and (record.ending.rule.base or record.ending.rule)
    if rule and not seen[rule] then
      seen[rule], where = true, position.of(rule)
      local action = rule.action and rule.action.name
      out[#out + 1] = ("'%s'%s"):format(rules.text(rule), action and (", action '%s'"):format(action) or "")
    end
  end
  if #out == 0 then return "", nil end
  return (" (%s)"):format(table.concat(out, "; back by ")), where
end

---Why a trip fails, with the rule of the first key in the text, unless that names a rule itself.
---@param one RoundTrip
---@param why string
---@return string text, string|nil where
function compare.refusal(one, why)
  if why:find("(rule '", 1, true) then return why end
  local there, back, between = trip.records(one)
  for key in why:gmatch "'([^']+)'" do
    local name = key:gsub("^model%.", "")
    local found = { [key] = there[key] or between[key] or between[name] }
    local text, where = blamed(key, found, back)
    if where then return why .. text, where end
  end
  return why
end

---The first key that each key has its tensor from, where a file has a tensor under several names.
---@return { [1]: string, [2]: string }[]
local function ties_of(tensors, order)
  local out, first = {}, {}
  for _, key in ipairs(order) do
    local id = tensors[key]:storage_id()
    local earlier = id and first[id]
    if id and not earlier then first[id] = key end
    if earlier and tensors[earlier]:same(tensors[key]) then out[#out + 1] = { earlier, key } end
  end
  return out
end

---@param one RoundTrip
---@param made Trip
---@return RoundTripResult
function compare.run(one, made)
  local read, order = trip.tensors(made.source)
  local back, made_order = trip.tensors(made.result)
  local known = trip.known(one, made.there, one.side)
  local tied, there, behind = tied_names(known), nil, nil
  local out = { findings = {}, tensors = #order, same = 0, left_out = 0, rounded = {}, added = 0 }
  local function add(finding)
    if not there then there, behind = trip.records(one) end
    if finding.what ~= "field" then
      local text, where = blamed(finding.key, there, behind)
      finding.text, finding.where = finding.text .. text, where
    end
    out.findings[#out.findings + 1] = finding
  end
  for _, key in ipairs(order) do
    local what, text = "lost", "does not come back"
    if back[key] then what, text = difference(read[key], back[key]) end
    local is_lost = what == "lost"
    if what and what ~= "rounded" and not there then there, behind = trip.records(one) end
    if not what then
      out.same = out.same + 1
    elseif what == "rounded" then
      out.rounded[#out.rounded + 1] = key
    elseif is_meant(there[key], is_lost) or is_lost and is_spare(key, read, back, known, tied) then
      out.left_out = out.left_out + 1
    else
      add { what = what, key = key, text = text }
    end
  end
  for _, pair in ipairs(ties_of(read, order)) do
    local a, b = back[pair[1]], back[pair[2]]
    if a and b and not a:same(b) then
      add { what = "tie", key = pair[2], text = ("comes back as a tensor of its own: it was one with '%s'"):format(pair[1]) }
    end
  end
  for _, key in ipairs(made_order) do out.added = out.added + (read[key] and 0 or 1) end
  configs.compare(one, made, known and known.class, function(name, text)
    add { what = "field", key = name, text = "of the config " .. text }
  end)
  return out
end

---Findings that differ in the numbers of their keys alone, as one each.
---@param findings RoundTripFinding[]
---@return { key: string, count: integer, what: string, text: string, where: string|nil }[]
function compare.folded(findings)
  local entries, out = {}, {}
  for i, one in ipairs(findings) do
    local signature = one.what .. "\0" .. (one.where or "") .. "\0" .. one.text:gsub("%d+", "0")
    entries[i] = { path = one.key, signature = signature, finding = one }
  end
  for i, group in ipairs(fold.groups(entries)) do
    local first = group.members[1].finding
    out[i] = { key = group.name, count = #group.members, what = first.what, text = first.text, where = first.where }
  end
  return out
end

return compare
