-- Tensors with other keys but the same content, and how they are listed.

local extents = require "cbk.extents"
local fold = require "cbk.fold"
local team = require "cbk.team"

local renamed = {}

---@param row LeafRow
local function signature(row) return row.type .. " " .. extents.joined(row.shape, ",") end

---The numbers in a key: "3,0" of "h.3.mlp.0.w".
local function numbers_in(key)
  local out = {}
  for number in key:gmatch "%d+" do out[#out + 1] = number end
  return table.concat(out, ",")
end

---The indices of tensors by dtype and shape.
---@param is_wanted table<string, boolean>   is set if one of them is wanted
local function by_signature(rows, list, wanted, is_wanted)
  local out = {}
  for _, i in ipairs(list) do
    local row = rows[i]
    if row.shape and not row.problem then
      local id = signature(row)
      out[id] = out[id] or {}
      table.insert(out[id], i)
      is_wanted[id] = is_wanted[id] or wanted.row(rows, i)
    end
  end
  return out
end

---The content of each of the tensors, and whether it is constant.
---@return table<integer, { id: string, is_constant: boolean }>
local function contents(rows, list, wanted)
  local out = {}
  table.sort(list)
  local content_of = team.shared(#list, function(n) return rows[list[n]].bytes end, function(n)
    local scan = rows:value(list[n]):scan()
    wanted.on_read(rows:path(list[n]), rows[list[n]].bytes)
    return { id = scan.fingerprint, is_constant = scan.constant ~= nil }
  end, wanted.files)
  for n, i in ipairs(list) do out[i] = content_of(n) end
  return out
end

---The indices of tensors by content, and the contents of constant tensors.
local function by_content(list, content)
  local out, is_constant = {}, {}
  for _, i in ipairs(list) do
    local id = content[i].id
    out[id] = out[id] or {}
    table.insert(out[id], i)
    is_constant[id] = content[i].is_constant
  end
  return out, is_constant
end

-- Common features of tensors with equal content that belong together, the most certain first: so layers stay together.
local LIKENESSES = {
  function(key) return numbers_in(key) .. "\0" .. key:reverse():match "^%D*" end, -- and the text after the last number
  numbers_in,
  function() return "" end,
}

---Pairs tensors with equal content. Constants, such as norms of ones, are equal by chance: their names must be similar, too.
local function pair_up(a, same_a, b, same_b, is_constant, out)
  for n = 1, is_constant and 1 or #LIKENESSES do
    local likeness = LIKENESSES[n]
    local alike, left_a, left_b = {}, {}, {}
    for _, k in ipairs(same_b) do
      local id = likeness(b:path(k))
      alike[id] = alike[id] or { next = 1 }
      table.insert(alike[id], k)
    end
    for _, i in ipairs(same_a) do
      local list = alike[likeness(a:path(i))]
      local k = list and list[list.next]
      if k then out[i], list.next = k, list.next + 1 else left_a[#left_a + 1] = i end
    end
    for _, list in pairs(alike) do
      for p = list.next, #list do left_b[#left_b + 1] = list[p] end
    end
    table.sort(left_b)
    same_a, same_b = left_a, left_b
    if #same_a == 0 or #same_b == 0 then return end
  end
end

---Pairs of rows with equal dtype, shape and content, in the order of `a`. Tensors with a shape that only one side has are not read.
---@param a LeafRows
---@param only_a integer[]
---@param b LeafRows
---@param only_b integer[]
---@param wanted DiffWanted
---@return table<integer, integer> pairs   rows of `b` by rows of `a`
function renamed.pairs(a, only_a, b, only_b, wanted)
  local is_wanted, out = {}, {}
  local shapes_a, shapes_b = by_signature(a, only_a, wanted, is_wanted), by_signature(b, only_b, wanted, is_wanted)
  local read_a, read_b = {}, {}
  for id, list in pairs(shapes_a) do
    if shapes_b[id] and is_wanted[id] then
      for _, i in ipairs(list) do read_a[#read_a + 1] = i end
      for _, k in ipairs(shapes_b[id]) do read_b[#read_b + 1] = k end
    end
  end
  local content_a, content_b = contents(a, read_a, wanted), contents(b, read_b, wanted)
  for id, list in pairs(shapes_a) do
    if shapes_b[id] and is_wanted[id] then
      local contents_a, is_constant = by_content(list, content_a)
      local contents_b = by_content(shapes_b[id], content_b)
      for content, same_a in pairs(contents_a) do
        pair_up(a, same_a, b, contents_b[content] or {}, is_constant[content], out)
      end
    end
  end
  return out
end

---A key without its numbers, and its numbers.
local function pattern_of(key)
  local numbers = {}
  local pattern = key:gsub("%d+", function(number)
    numbers[#numbers + 1] = number
    return "\0"
  end)
  return pattern, numbers
end

---The patterns of `b`'s keys for those of `a`: "h.#.w" is "layers.#.weight" if all pairs agree.
local function patterns_of(pairs_by_content)
  local out = {}
  for _, pair in ipairs(pairs_by_content) do
    local from, numbers = pattern_of(pair.a)
    local to, others = pattern_of(pair.b)
    local is_like = #numbers > 0 and table.concat(numbers, ",") == table.concat(others, ",")
    if not is_like or out[from] ~= nil and out[from] ~= to then to = false end
    out[from] = to
  end
  return out
end

---Further pairs of tensors with the same shape, if their keys correspond like those of other pairs: layers with different content.
---@param pairs_by_content { a: string, b: string }[]
---@param a LeafRows
---@param left_a integer[]
---@param b LeafRows
---@param left_b integer[]
---@return table<integer, integer>   rows of `b` by rows of `a`
function renamed.alike(pairs_by_content, a, left_a, b, left_b)
  local patterns, is_left, out = patterns_of(pairs_by_content), {}, {}
  for _, k in ipairs(left_b) do is_left[k] = true end
  for _, i in ipairs(left_a) do
    local pattern, numbers = pattern_of(a:path(i))
    local next_number, row = 0, patterns[pattern] and a[i]
    local key = row and row.shape and not row.problem and patterns[pattern]:gsub("%z", function()
      next_number = next_number + 1
      return numbers[next_number]
    end)
    local k = key and b:find(key)
    local other = k and is_left[k] and b[k]
    if other and other.shape and not other.problem and extents.joined(row.shape, ",") == extents.joined(other.shape, ",") then
      out[i], is_left[k] = k, nil
    end
  end
  return out
end

---Renamed keys as lines: layers on one line, "a.{0..31}.w -> h.{0..31}.x".
---@param list { a: string, b: string }[]
---@return string[]
function renamed.lines(list)
  local pairs_of, lines = {}, {}
  for i, pair in ipairs(list) do pairs_of[i] = { from = fold.shown(pair.a), to = fold.shown(pair.b) } end
  for i, group in ipairs(fold.pairs(pairs_of)) do lines[i] = ("%s -> %s"):format(group.from, group.to) end
  return lines
end

---Whether a row is another name of a tensor. Files that store each tensor once lack it.
---@param rows LeafRows
---@param i integer
---@param is_matched table<string, boolean>   paths with a counterpart
function renamed.is_other_name(rows, i, is_matched)
  local row = rows[i]
  if row.tied_to then return is_matched[row.tied_to] == true end
  for _, key in ipairs((rows:ties(i, 20))) do
    if is_matched[key] then return true end
  end
  return false
end

return renamed
