-- Where the parts of a joined tensor are in it, such as q, k and v: "q rows 0..15, k rows 16..31". The rule's action joins numbers in
-- place of the parts, so that any action has its answer.

local cbk = require "cbk"
local kinds = require "converters.engine.kinds"
local patterns = require "converters.engine.patterns"
local steps = require "converters.conversion.steps"

local part_ranges = {}

local MOST_SHOWN = 2 -- ranges of a part
local MOST_LINE = 10000000 -- rows or columns

---The text without so many characters at its ends.
local function within(text, front, back) return text:sub(front + 1, #text - back) end

---What differs in keys: "q" and "k" of "proj_q.weight" and "proj_k.weight"; the parts between dots if that is no word.
---@param keys string[]
---@return string[]
local function short_names(keys)
  local first, front, back, out, parts = keys[1], #keys[1], #keys[1], {}, {}
  for _, key in ipairs(keys) do
    while key:sub(1, front) ~= first:sub(1, front) do front = front - 1 end
  end
  for _, key in ipairs(keys) do
    back = math.min(back, #key - front)
    while back > 0 and key:sub(-back) ~= first:sub(-back) do back = back - 1 end
  end
  local head = #(first:sub(1, front):match "^.*%." or "")
  local tail = #(first:sub(#first - back + 1):match "%..*$" or "")
  local are_words = true
  for i, key in ipairs(keys) do
    out[i], parts[i] = within(key, front, back), within(key, head, tail)
    are_words = are_words and out[i]:find "^%a+$" ~= nil
  end
  return are_words and out or parts
end

---The numbers along the first dim with several, and what is in that dim.
---@return number[]|nil line, string|nil what
local function line_of(joined)
  local shape = joined:shape()
  for dim = 1, #shape do
    local line = joined
    for other = 1, #shape do
      if other ~= dim then line = line:slice(other - 1, 0, 1) end
    end
    local list = shape[dim] <= MOST_LINE and line:reshape({ shape[dim] }):tolist() or {}
    for _, number in ipairs(list) do
      if number ~= list[1] then return list, #shape == 1 and "elements" or ({ "rows", "columns" })[dim] or "dim " .. dim - 1 end
    end
  end
end

---@param line number[]
---@param part integer
---@return string   "0..3, 12..15, … (8 ranges)"
local function ranges_text(line, part)
  local out, count, first = {}, 0, nil
  for i = 1, #line + 1 do
    local is_own = line[i] == part
    if is_own and not first then first = i end
    if first and not is_own then
      count = count + 1
      if count <= MOST_SHOWN then out[count] = ("%d..%d"):format(first - 1, i - 2) end
      first = nil
    end
  end
  return table.concat(out, ", ") .. (count > MOST_SHOWN and (", … (%d ranges)"):format(count) or "")
end

local function text_of(record, step, configs)
  local ending, action = record.ending, record.ending.rule.action
  local way, back = step.side == "left" and "forward" or "backward", step.side == "left" and "backward" or "forward"
  local at = { left = configs.left, right = configs.right, side = step.side, key = record.key }
  local is_split = #ending.to > 1
  local parts, join, keys, numbers = record.given, action[way], {}, {}
  if is_split then parts, join = action[way](record.given, at), action[back] end
  for i, pattern in ipairs(is_split and ending.to or ending.from) do keys[i] = patterns.render(pattern, record.caught) end
  for i, part in ipairs(parts) do numbers[i] = cbk.full(part:shape(), i) end
  local line, what = line_of(join(numbers, at))
  if not line then return nil end
  local out = {}
  for i, name in ipairs(short_names(keys)) do out[i] = ("%s %s %s"):format(name, what, ranges_text(line, i)) end
  return table.concat(out, "; ")
end

---Nil if a record does not split or join tensors, or if its action needs more than their shapes.
---@param record KeyRecord
---@param step Step
---@param configs StepConfigs
---@return string|nil
function part_ranges.text(record, step, configs)
  local ending = record.ending
  local is_between = record.what == "write" and ending and ending.rule.action and not (ending.from.each or ending.to.each)
    and (#ending.from > 1) ~= (#ending.to > 1) and (kinds.is_tensor(record.given) or type(record.given) == "table")
  for _, one in ipairs(is_between and steps.tables(configs) or {}) do
    local fine, text = pcall(text_of, record, step, one.configs)
    if fine then return text end
    if type(text) == "table" and text.code == "interrupted" then error(text, 0) end
  end
end

return part_ranges
