-- Folding long lists of keys: what differs in nothing but its layer number becomes one line, "layers.{0..31}.weight".

local cbk = require "cbk"

local fold = {}

local byte, sub, find = string.byte, string.sub, string.find
local DOT, SLASH, ZERO, NINE = byte ".", byte "/", byte "0", byte "9"
local NEVER = math.huge

--- Stands for a number in a template, with its width between if it begins with zeros.
local OPEN, CLOSE = "\1", "\2"
local PLACE = OPEN .. "(%d*)" .. CLOSE

---How the empty key is shown.
fold.EMPTY = '""'

---A key as it is shown: control characters, which a terminal would obey, are escaped.
---@param path string
function fold.shown(path)
  if path == "" then return fold.EMPTY end
  if not find(path, "[%c\127-\255]") then return path end
  return cbk.shown(path)
end

local NONE = {}
local MOST_NUMBERS = 16 -- a key with more is no layer's

--- "a.0.b.12" → "a.{}.b.{}", { 0, 12 }; "a.007" → "a.{3}", { 7 }. Only whole dot-separated parts count as numbers; in
--- TensorFlow's names, "a/b_0/_w1", all digits that end a part. Byte by byte, because the JIT compiles that, and 20,000 keys
--- are no rarity.
local function template_of(path)
  local is_tensorflow = find(path, "/", 1, true) ~= nil
  local separator = is_tensorflow and SLASH or DOT
  local numbers, template, copied = NONE, "", 1
  local start, number = 1, 0 -- of the digits before `at`; `start` is behind `at` where a part cannot be a number any more
  for at = 1, #path + 1 do
    local c = byte(path, at) or separator
    if c == separator then
      local length = at - start
      if length > 0 and length < 10 then
        local width = length > 1 and byte(path, start) == ZERO and length or ""
        if numbers == NONE then numbers = {} end
        if #numbers == MOST_NUMBERS then return path, NONE end
        numbers[#numbers + 1] = number
        template = template .. sub(path, copied, start - 1) .. OPEN .. width .. CLOSE
        copied = at
      end
      start, number = at + 1, 0
    elseif c >= ZERO and c <= NINE then
      number = number * 10 + (c - ZERO)
    elseif is_tensorflow then
      start, number = at + 1, 0
    else
      start = NEVER
    end
  end
  return copied == 1 and path or template .. sub(path, copied), numbers
end

--- Sorted distinct numbers at `position` of all members.
local function distinct(members, position)
  local seen, list = {}, {}
  for _, member in ipairs(members) do
    local number = member.numbers[position]
    if not seen[number] then
      seen[number] = true
      list[#list + 1] = number
    end
  end
  table.sort(list)
  return list
end

--- { 0, 1, 2, 5 } → "{0..2,5}"; the numbers have at least `width` digits.
local function range_text(numbers, width)
  local pattern = "%0" .. width .. "d"
  if #numbers == 1 then return pattern:format(numbers[1]) end
  local parts, first = {}, 1
  for i = 1, #numbers do
    if numbers[i + 1] ~= numbers[i] + 1 then
      local a, b = pattern:format(numbers[first]), pattern:format(numbers[i])
      local count = numbers[i] - numbers[first] + 1
      parts[#parts + 1] = count == 1 and a or count == 2 and a .. "," .. b or a .. ".." .. b
      first = i + 1
    end
  end
  return "{" .. table.concat(parts, ",") .. "}"
end

--- One name for all members, or nil when their numbers are not the full product of what occurs at each position.
local function common_name(template, members)
  local position, count = 0, 1
  local name = template:gsub(PLACE, function(width)
    position = position + 1
    local numbers = distinct(members, position)
    count = count * #numbers
    return range_text(numbers, width == "" and "1" or width)
  end)
  return count == #members and name or nil
end

--- Splits a group that has no common name by its first number that varies.
local function emit(template, members, position, out)
  if #members == 1 then
    out[#out + 1] = { name = members[1].path, members = members, first = members[1].order }
    return
  end
  local name = common_name(template, members)
  if name then
    out[#out + 1] = { name = name, members = members, first = members[1].order }
    return
  end
  while #distinct(members, position) == 1 do position = position + 1 end
  local parts, order = {}, {}
  for _, member in ipairs(members) do
    local number = member.numbers[position]
    if not parts[number] then
      parts[number] = {}
      order[#order + 1] = number
    end
    table.insert(parts[number], member)
  end
  for _, number in ipairs(order) do emit(template, parts[number], position + 1, out) end
end

---Groups entries that are alike. Entries keep their order; a group stands where its first member stood. Entries whose keys
---have one text (1 and "1", or objects) never share a group. Names are as `fold.shown` gives them.
---@param entries { path: string, signature: string }[]  only equal signatures are folded together
---@return { name: string, members: { entry: table, path: string, numbers: integer[] }[] }[]
function fold.groups(entries)
  local by_signature, order, times = {}, {}, {}
  for i, entry in ipairs(entries) do
    local path = fold.shown(entry.path)
    local template, numbers = template_of(path)
    local signature = entry.signature or ""
    local earlier = times[path]
    times[path] = (earlier or 0) + 1
    if earlier then signature = signature .. "\0" .. earlier end
    local groups = by_signature[signature]
    if not groups then
      groups = {}
      by_signature[signature] = groups
    end
    local member = { entry = entry, path = path, numbers = numbers, order = i }
    local group = groups[template]
    if group then
      group.members[#group.members + 1] = member
    else
      group = { template = template, members = { member } }
      groups[template] = group
      order[#order + 1] = group
    end
  end
  local out, is_sorted = {}, true
  for _, group in ipairs(order) do
    local before = #out
    emit(group.template, group.members, 1, out)
    is_sorted = is_sorted and #out == before + 1
  end
  if not is_sorted then table.sort(out, function(a, b) return a.first < b.first end) end
  return out
end

return fold
