-- Detects the release of a checkpoint and its config: from the evidence in them (release.lua), and if several releases remain, by
-- converting the files as each of them.

local cbk = require "cbk"
local converters = require "cbk.converters"
local errors = require "cbk.errors"
local extents = require "cbk.extents"
local release = require "cbk.recognise.release"
local report = require "cbk.report"

local detect = {}
local catalogue = converters.catalogue

---"1.8", "1.8 or 1.9", "2.5 to 2.9"
---@param list string[]
function detect.listed(list)
  if #list > 2 then return list[1] .. " to " .. list[#list] end
  return table.concat(list, " or ")
end

---The end of a message: what was found, and how to choose.
---@param evidence Evidence[]
---@param advice string
function detect.reasons(evidence, advice)
  local lines = {}
  for i, one in ipairs(evidence) do lines[i] = release.line(one) end
  return (" (%s); %s"):format(#lines > 0 and table.concat(lines, "; ") or "there is no evidence of its release", advice)
end

-- --- trials

local function is_same(a, b)
  if cbk.equal(a, b) then return true end
  local function fill(value) return cbk.kind(value) == "tensor" and value:fill() or nil end
  return fill(a) ~= nil and fill(a) == fill(b) and a.dtype == b.dtype and extents.shape(a:shape()) == extents.shape(b:shape())
end

--- Only keys that do not fit count against a release; all other problems would occur in each.
local strikes = { key = true, unmatched = true, convert = true }

---@class Trial        The conversion of the files as files of one release.
---@field from string
---@field is_target boolean   there is nothing to convert
---@field done? { root: Dict, config: Dict }
---@field problem? any

---@param list string[]   releases
---@param try fun(from: string): { root: Dict, config: Dict }
---@return Trial[]
local function trials(list, model, target, try)
  local out = {}
  for i, from in ipairs(list) do
    local ok, done = report.quietly(try, from)
    local is_target = catalogue.format_at(model, from) == target
    out[i] = { from = from, is_target = is_target, done = ok and done or nil, problem = not ok and done or nil }
  end
  return out
end

---Whether two trees have the same leaves, but for the history of releases.
local function are_same_trees(a, b)
  local rows_a, rows_b = cbk.leaf_rows(a), cbk.leaf_rows(b)
  local i, k = 1, 1
  local function next_row(rows, at)
    while at <= #rows and rows:path(at):find "^__metadata__%." do at = at + 1 end
    return at
  end
  while true do
    i, k = next_row(rows_a, i), next_row(rows_b, k)
    if i > #rows_a or k > #rows_b then return i > #rows_a and k > #rows_b end
    if rows_a:path(i) ~= rows_b:path(k) or not is_same(rows_a:raw(i), rows_b:raw(k)) then return false end
    i, k = i + 1, k + 1
  end
end

---True where it makes no difference which of these releases the files are of: the same would be written.
---@param tried Trial[]
local function are_alike(tried)
  local first, first_text
  for _, one in ipairs(tried) do
    if one.is_target or not one.done then return false end -- others are converted
    local text = cbk.json(one.done.config)
    if first and (text ~= first_text or not are_same_trees(one.done.root, first)) then return false end
    first, first_text = first or one.done.root, text
  end
  return true
end

---The releases whose keys the files have; an error if there is none, or if all fail with the same message.
---@param tried Trial[]
---@return Trial[]
local function fitting(tried)
  local out, problems, texts, all_alike = {}, {}, {}, true
  for i, one in ipairs(tried) do
    if not (one.problem and strikes[one.problem.code]) then out[#out + 1] = one end
    texts[i] = one.problem and errors.text(one.problem)
    all_alike = all_alike and texts[i] and texts[i] == texts[1]
    problems[i] = ("as %s: %s"):format(one.from, texts[i] or "")
  end
  if all_alike then error(tried[1].problem, 0) end
  if #out == 0 then cbk.fail("convert", "the files fit none of the possible releases: " .. table.concat(problems, "; ")) end
  return out
end

---The oldest possible release, if all give the same result; else an error that shows the evidence.
---@param evidence Evidence[]   names of weights are added where they decided
---@param model_name string
---@param target string         the format wanted
---@param try fun(from: string): { root: Dict, config: Dict }   the conversion of the files as files of a release
---@param advice string         how to name the release
---@return string release
function detect.release(evidence, model_name, target, try, advice)
  local model, possible = catalogue.find(model_name), release.candidates(evidence)
  local function refuse(message) cbk.fail("format", message .. detect.reasons(evidence, advice)) end
  if #possible == 0 then refuse "checkpoint and config are of different releases" end
  local known = {}
  for _, one in ipairs(possible) do
    local format = model and catalogue.format_at(model, one)
    if not model or format == target or catalogue.path(model, format, target) then known[#known + 1] = one end
  end
  if #known == 0 then
    refuse(("the files are of release %s, and %s cannot be converted from there to %s"):format(detect.listed(possible), model_name,
      target))
  elseif #known == 1 or not model then
    return known[1]
  end
  local tried = fitting(trials(known, model, target, try))
  if #tried > 1 and not are_alike(tried) then
    for i, one in ipairs(tried) do known[i] = one.from end
    refuse(("the files may be of release %s, with different results"):format(detect.listed({ unpack(known, 1, #tried) })))
  end
  if #tried < #known then
    evidence[#evidence + 1] = { what = "names of weights", from = tried[1].from, to = tried[#tried].from }
  end
  return tried[1].from
end

return detect
