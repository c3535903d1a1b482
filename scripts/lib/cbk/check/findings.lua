-- The findings of a check: collected, counted, and listed for people.

local cbk = require "cbk"
local fold = require "cbk.fold"
local numbers = require "cbk.numbers"
local rules = require "cbk.check.rules"

---@class Finding
---@field rule CheckRule
---@field severity "error"|"warning"|"note"
---@field file string
---@field key? string
---@field text string      what is wrong
---@field parameter string|nil   of which the key is a state
---@field advice string    what to try
---@field order integer

---@class Findings
---@field list Finding[]
---@field number table<string, integer>                            of each rule
---@field total { error: integer, warning: integer, note: integer }   including findings beyond the first thousands
---@field is_skipped table<string, true>   rules whose findings are not wanted
---@field parameters table<string, string>   of which the states of an optimizer are, by "optimizer.state.3"
local Findings = {}
Findings.__index = Findings

local RANK = { error = 1, warning = 2, note = 3 }
local LISTED = 20 -- of one rule, for people
local KEPT = 4000 -- of one rule; further ones are only counted

local findings = {}

---@class RuleChoice
---@field only? string[]   the rules whose findings are kept (default: all)
---@field skip? string[]   rules whose findings are not kept

---@param choice? RuleChoice
---@return Findings
function findings.new(choice)
  local only, skip = choice and choice.only or {}, choice and choice.skip or {}
  local is_skipped = {}
  for id in pairs(#only > 0 and rules.by_id or {}) do is_skipped[id] = true end
  for _, id in ipairs(only) do is_skipped[id] = nil end
  for _, id in ipairs(skip) do is_skipped[id] = true end
  return setmetatable({ list = {}, number = {}, total = { error = 0, warning = 0, note = 0 }, is_skipped = is_skipped, parameters = {} },
    Findings)
end

---Whether findings of any of the rules are kept.
---@param ids string[]
---@return boolean
function Findings:wants(ids)
  for _, id in ipairs(ids) do
    if not self.is_skipped[id] then return true end
  end
  return false
end

---Adds a finding, unless its rule is skipped.
---@param id string        of the rule
---@param file string
---@param key string|nil
---@param text string
---@param options? { severity?: string, advice?: string }
function Findings:add(id, file, key, text, options)
  options = options or {}
  local rule = rules.by_id[id] or error("no rule " .. id)
  if self.is_skipped[id] then return end
  local severity = options.severity or rule.severity
  self.number[id], self.total[severity] = (self.number[id] or 0) + 1, self.total[severity] + 1
  if self.number[id] > KEPT then return end
  local parameter = key and (self.parameters[key] or self.parameters[key:match "^(.*)%.[^.]*$"])
  self.list[#self.list + 1] = { rule = rule, severity = severity, file = file, key = key, text = text, parameter = parameter,
    advice = options.advice or rule.help, order = #self.list }
end

---The findings, the most severe first.
---@return Finding[]
function Findings:sorted()
  local out = {}
  for i, one in ipairs(self.list) do out[i] = one end
  table.sort(out, function(a, b)
    if a.severity ~= b.severity then return RANK[a.severity] < RANK[b.severity] end
    if a.rule ~= b.rule then return a.rule.position < b.rule.position end
    return a.order < b.order
  end)
  return out
end

---How many findings there are of each severity.
---@return { error: integer, warning: integer, note: integer }
function Findings:counts() return self.total end

---How many findings are counted but not kept: those of a rule beyond its first thousands.
---@return integer
function Findings:left_out() return self.total.error + self.total.warning + self.total.note - #self.list end

---"2 errors, 1 note"; nil if there are none.
---@return string|nil
function Findings:counts_text()
  local counts, parts = self:counts(), {}
  for _, severity in ipairs { "error", "warning", "note" } do
    if counts[severity] > 0 then parts[#parts + 1] = numbers.counted(counts[severity], severity) end
  end
  return #parts > 0 and table.concat(parts, ", ") or nil
end

---Advice begins with a capital letter in the table of rules.
local function as_clause(text) return (text:gsub("^%u%l", string.lower):gsub("%.$", "")) end

local function line_of(severity, file, name, text, finding)
  local place = cbk.shown(file) .. (name and ": " .. name or "")
  return ("%-7s  %s: %s; try: %s [%s]"):format(severity, place, cbk.shown(text), cbk.shown(as_clause(finding.advice)), finding.rule.id)
end

---Findings of one rule as lines. Keys with the same text are folded: "layers.{0..31}.weight".
---@param group Finding[]
---@param is_all boolean
---@param lost integer   the number of findings that are not kept
local function lines_of_rule(group, is_all, lost)
  local entries, lines = {}, {}
  for i, one in ipairs(group) do
    local signature = table.concat({ one.file, one.text, one.advice, one.key and "" or i }, "\0")
    entries[i] = { path = one.key or "", signature = signature, finding = one }
  end
  for _, folded in ipairs(fold.groups(entries)) do
    local one = folded.members[1].finding
    local count, name = #folded.members, one.key and fold.shown(one.key) or nil
    if name and count > 1 then name = ("%s (%s)"):format(folded.name, numbers.grouped(count)) end
    if one.parameter and count == 1 then name = ("%s (of %s)"):format(name, fold.shown(one.parameter)) end
    lines[#lines + 1] = line_of(one.severity, one.file, name, one.text, one)
  end
  local shown = is_all and #lines or math.min(#lines, LISTED)
  local rest = #lines - shown
  for i = #lines, shown + 1, -1 do lines[i] = nil end
  if rest + lost > 0 then
    lines[#lines + 1] = ("%-7s  … and %s more [%s]%s"):format(group[1].severity, numbers.grouped(rest + lost), group[1].rule.id,
      rest > 0 and " (--all lists them)" or "")
  end
  return lines
end

---Lines for people, the most severe findings first.
---@param is_all boolean   list all findings of a rule, however many
---@return string[]
function Findings:lines(is_all)
  local out, group = {}, {}
  local function flush()
    local lost = group[1] and math.max(0, self.number[group[1].rule.id] - KEPT)
    for _, line in ipairs(group[1] and lines_of_rule(group, is_all, lost) or {}) do out[#out + 1] = line end
    group = {}
  end
  for _, one in ipairs(self:sorted()) do
    if group[1] and (group[1].rule ~= one.rule or group[1].severity ~= one.severity) then flush() end
    group[#group + 1] = one
  end
  flush()
  return out
end

return findings
