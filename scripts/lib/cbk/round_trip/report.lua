-- Reports of round trips: findings, lines for people, rows for --json.

local cbk = require "cbk"
local compare = require "cbk.round_trip.compare"
local logits = require "cbk.logits"
local numbers = require "cbk.numbers"

local report = {}

---@class RoundTripReport
---@field title string            "llama, hf to cs-2.9 and back"
---@field weights string          "the given weights", "random weights, hidden_size=32, …"
---@field result? RoundTripResult
---@field logits? LogitsDifference
---@field not_computed? string    why there are no logits, though they were wanted
---@field refused? string         why nothing was compared: a conversion fails
---@field where? string           the place of the rule that it fails at
---@field note? string            why nothing was tried; no finding

local MOST_LINES = 20

---What was asked for and not tried at all; nil if something was.
---@param reports RoundTripReport[]
---@param with_logits boolean
---@return string|nil
local function nothing_of(reports, with_logits)
  local tried, computed, note, why = false, false, nil, nil
  for _, one in ipairs(reports) do
    tried, computed = tried or one.result ~= nil or one.refused ~= nil, computed or one.logits ~= nil
    note, why = note or one.note, why or one.not_computed
  end
  if note and not tried then return "nothing was converted there and back: " .. note end
  return with_logits and why and not computed and "no logits were compared: " .. why or nil
end

---What came back changed, each once: the sizes that showed it first are named.
---Nothing tried is a finding, too: of what is asked for, nothing is known to be right.
---@param reports RoundTripReport[]
---@param file string   of the converter
---@param with_logits boolean   they are wanted
---@return { kind: string, text: string, where: string, table: string }[]
function report.findings(reports, file, with_logits)
  local out, seen, left = {}, {}, 0
  local function add(id, text, where, title)
    if seen[id] then return end
    seen[id] = true
    if #out == MOST_LINES then left = left + 1 else out[#out + 1] = { kind = "round trip", text = text, where = where, table = title } end
  end
  for _, one in ipairs(reports) do
    if one.refused then
      add(one.title .. one.refused:gsub("%d+", "0"), ("%s: %s"):format(one.weights, one.refused), one.where or one.title,
        one.title)
    end
    if one.logits and not one.logits.is_same then
      add(one.title .. "\0logits", ("%s; with %s"):format(logits.text(one.logits), one.weights), one.title, one.title)
    end
    for _, finding in ipairs(one.result and compare.folded(one.result.findings) or {}) do
      local key, where = finding.key:gsub("%b{}", "0"):gsub("%d+", "0"), finding.where or one.title
      add(table.concat({ key, finding.what, where }, "\0"), ("'%s' %s; with %s"):format(finding.key, finding.text, one.weights), where,
        one.title)
    end
  end
  local nothing = nothing_of(reports, with_logits)
  if nothing then add("nothing", nothing, reports[1].title) end
  if left > 0 then out[#out + 1] = { kind = "round trip", text = numbers.counted(left, "change") .. " more", where = file } end
  return out
end

---@param one RoundTripReport
---@return string
local function tensors_line(one)
  local result, more = one.result, ""
  if one.note then return ("%s: not tried with %s: %s"):format(one.title, one.weights, one.note) end
  if not result then return ("%s, %s: refused"):format(one.title, one.weights) end
  local others = { { result.left_out, "left out for a reason" }, { #result.rounded, "rounded" }, { result.added, "added" } }
  for _, other in ipairs(others) do
    if other[1] > 0 then more = ("%s; %d %s"):format(more, unpack(other)) end
  end
  return ("%s, %s: %d of %s bit for bit%s"):format(one.title, one.weights, result.same, numbers.counted(result.tensors, "tensor"), more)
end

---A line for each trip, with what is said of logits below it; why there are none, once.
---@param reports RoundTripReport[]
---@return string[]
function report.lines(reports)
  local out, said = {}, {}
  for _, one in ipairs(reports) do
    out[#out + 1] = tensors_line(one)
    local why = one.not_computed
    if one.logits then out[#out + 1] = "  " .. logits.text(one.logits) end
    if why and not said[why] then out[#out + 1] = "  logits not computed: " .. why end
    if why then said[why] = true end
  end
  return out
end

---The reports as data, for --json.
---@param reports RoundTripReport[]
---@return table[]
function report.rows(reports)
  local out = {}
  for i, one in ipairs(reports) do
    local result, own = one.result or {}, one.logits
    out[i] = { trip = one.title, weights = one.weights, tensors = result.tensors, same = result.same, left_out = result.left_out,
      rounded = result.rounded and cbk.list(result.rounded), added = result.added, changed = result.findings and #result.findings,
      refused = one.refused, note = one.note, logits = own and logits.row(own), not_computed = one.not_computed }
  end
  return out
end

return report
