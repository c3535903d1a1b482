-- The dry run of a conversion, key by key, from the engine's trace (KeyRecord).

local cbk = require "cbk"
local fold = require "cbk.fold"
local kinds = require "converters.engine.kinds"

local dry_run = {}

---@class Watch   The records of a job, step by step.
---@field job Job
---@field steps KeyRecord[][]
---@field trace fun(record: KeyRecord, step: integer)   adds a record; set as the job's `trace`

---Collects what happens to each key of a job.
---@param job Job
---@return Watch
function dry_run.watch(job)
  local watch = { job = job, steps = {} }
  for i in ipairs(job.path) do watch.steps[i] = {} end
  function watch.trace(record, step)
    local list = watch.steps[step]
    list[#list + 1] = record
  end
  return watch
end

---@class DryRunRow
---@field source? string      the key in the checkpoint; nil: made here
---@field target? string
---@field action string       what happens to the tensor, "copy" if it is unchanged
---@field why? string         why nothing is written
---@field from? string        dtype and shape
---@field to? string
---@field kind "written"|"made"|"part"|"left out"|"not matched"

---What one step did to a tensor; nil for a plain copy, such as of a bias by a rule that transposes matrices.
---@param record KeyRecord
---@return string|nil
function dry_run.action(record)
  local action = record.ending and record.ending.kind == "write" and record.ending.rule.action
  local is_same = record.given ~= nil and rawequal(record.given, record.value)
  local name = record.what ~= "fill" and not is_same and action and action.name ~= "copy" and action.name or nil
  if record.note then return name and record.note .. " + " .. name or record.note end
  return name
end

local function why_not(record)
  if record.what == "unmatched" then return "no rule fits" end
  return record.ending.why
end

---Whether a key is made here: by a rule for missing keys, or beside a tensor, such as a mask, and not as a copy of it.
---@param record KeyRecord
---@param written table<string, KeyRecord[]>   records of what = "write", by source
local function is_made(record, written)
  if record.what ~= "beside" then return record.what == "fill" end
  for _, one in ipairs(written[record.source] or {}) do
    if rawequal(one.value, record.value) then return false end
  end
  return true
end

---@param records KeyRecord[]
---@return table<string, KeyRecord[]>
local function written_by_source(records)
  local out = {}
  for _, record in ipairs(records) do
    if record.what == "write" then
      out[record.source] = out[record.source] or {}
      table.insert(out[record.source], record)
    end
  end
  return out
end

---For each step: the record that wrote each key, and the one that read it. One part of a composite may not know another part's keys.
local function index(watch)
  local writers, readers = {}, {}
  for i, records in ipairs(watch.steps) do
    writers[i], readers[i] = {}, {}
    for _, record in ipairs(records) do
      if record.target and record.what ~= "part" then writers[i][record.target] = record end
      if record.what ~= "unmatched" then readers[i][record.source] = record end
    end
  end
  return writers, readers
end

---The key that later steps convert this step's target into.
---@param readers table<string, KeyRecord>[]
---@param step integer
local function final_target(readers, step, target)
  for i = step + 1, #readers do
    local reader = readers[i][target]
    target = reader and reader.target or target
  end
  return target
end

---@param watch Watch
---@return DryRunRow[]
function dry_run.rows(watch)
  local writers, readers = index(watch)
  local rows, last = {}, #watch.steps
  local written = {}
  for i, records in ipairs(watch.steps) do written[i] = written_by_source(records) end
  for i, records in ipairs(watch.steps) do
    for _, record in ipairs(records) do
      local is_known = record.what == "unmatched" and readers[i][record.source]
      local is_written_again = record.target and record.what ~= "part" and writers[i][record.target] ~= record
      if not is_known and not is_written_again and (i == last or not record.target or record.what == "part") then
        local actions, first, at, is_new = {}, record, i, is_made(record, written[i])
        while first and not is_new do
          local action = dry_run.action(first)
          if action then table.insert(actions, 1, action) end
          local earlier = at > 1 and writers[at - 1][first.source]
          if not earlier then break end
          first, at = earlier, at - 1
          is_new = is_made(first, written[at])
        end
        local done = #actions > 0 and table.concat(actions, " + ") or is_new and "made" or "copy"
        local from = not is_new and kinds.facts(first.given) or nil
        local is_same = from and rawequal(first.given, record.value)
        rows[#rows + 1] = {
          source = not is_new and first.source or nil,
          target = record.target and final_target(readers, i, record.target),
          action = done, why = not record.target and why_not(record) or nil,
          from = from, to = is_same and from or kinds.facts(record.value),
          kind = record.what == "unmatched" and "not matched" or not record.target and "left out"
            or record.what == "part" and "part" or is_new and "made" or "written",
        }
      end
    end
  end
  return rows
end

---@param row DryRunRow
---@return string
function dry_run.line(row)
  local source = row.source or "(made here)"
  if not row.target then return ("%s -> (nothing: %s)  %s"):format(source, row.why, row.from or "") end
  if row.kind == "part" then return ("%s -> %s  %s, together with others"):format(source, row.target, row.action) end
  local facts = (not row.from or row.from == row.to) and row.to or row.from .. " -> " .. row.to
  return ("%s -> %s  %s  %s"):format(source, row.target, row.action, facts)
end

---The rows as lines, those of like layers in one.
---@param rows DryRunRow[]
---@return string[]
function dry_run.folded(rows)
  local pairs_of, out = {}, {}
  for i, row in ipairs(rows) do
    local signature = table.concat({ row.kind, row.action, row.why or "", row.from or "", row.to or "" }, "\0")
    pairs_of[i] = { from = row.source or "", to = row.target or "", signature = signature, row = row }
  end
  for i, group in ipairs(fold.pairs(pairs_of)) do
    local row = setmetatable({ source = group.from ~= "" and group.from or nil, target = group.to ~= "" and group.to or nil },
      { __index = function(_, field) return field ~= "source" and field ~= "target" and group.members[1].row[field] or nil end })
    out[i] = dry_run.line(row) .. (#group.members > 1 and ("  %d ×"):format(#group.members) or "")
  end
  return out
end

---The numbers of keys of each kind and of each action.
---@param rows DryRunRow[]
---@return table   { keys, written, made, left_out, not_matched, actions = { {name, count} … } }
function dry_run.totals(rows)
  local out, read = { keys = 0, written = 0, made = 0, left_out = 0, not_matched = 0, actions = {} }, {}
  local count = {}
  for _, row in ipairs(rows) do
    if row.source and not read[row.source] then
      read[row.source] = true
      out.keys = out.keys + 1
    end
    local name = row.kind:gsub(" ", "_")
    if out[name] then out[name] = out[name] + 1 end
    if row.kind == "written" then
      if not count[row.action] then
        count[row.action] = { row.action, 0 }
        table.insert(out.actions, count[row.action])
      end
      count[row.action][2] = count[row.action][2] + 1
    end
  end
  return out
end

---@return string
function dry_run.summary(rows)
  local totals = dry_run.totals(rows)
  local actions, rest = {}, {}
  for i, one in ipairs(totals.actions) do actions[i] = ("%s %d"):format(one[1], one[2]) end
  for _, one in ipairs { { "made here", totals.made }, { "left out", totals.left_out }, { "not matched", totals.not_matched } } do
    if one[2] > 0 then rest[#rest + 1] = ("; %s: %d"):format(one[1], one[2]) end
  end
  return ("keys read: %d; keys written: %d (%s)%s"):format(totals.keys, totals.written + totals.made, table.concat(actions, ", "),
    table.concat(rest))
end

---All rows and totals as data, for --json.
---@param rows DryRunRow[]
---@return Dict
function dry_run.tree(rows)
  local keys, actions = cbk.list(), cbk.dict()
  for i, row in ipairs(rows) do keys[i] = cbk.dict(row) end
  local totals = dry_run.totals(rows)
  for _, one in ipairs(totals.actions) do actions[one[1]] = one[2] end
  totals.actions = actions
  return cbk.dict { { "keys", keys }, { "totals", cbk.dict(totals) } }
end

return dry_run
