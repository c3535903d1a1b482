-- Weights of a class under other names: below a prefix, or with the names that PyTorch's wrappers put between those of modules. Suggests
-- a `cbk copy` that renames them to the class's names. Each suggestion was tried on all names of the checkpoint.

local cbk = require "cbk"
local fit = require "converters.engine.fit"
local kinds = require "converters.engine.kinds"
local naming = require "cbk.naming"
local rename = require "cbk.cli.rename"
local weights = require "converters.conversion.weights"

local wrapped = {}

local MOST_MOVES = 3 -- prefixes that are replaced
local PLAIN = "^[%w_.-]*$" -- texts that need no quotes in a command line

---@class Leaf   A value of a checkpoint.
---@field path string
---@field shape? integer[]   nil: it is not a tensor

---The values of a checkpoint, by their paths in `cbk copy`.
---@param root Dict
---@return Leaf[]
function wrapped.leaves(root)
  local out = {}
  for path, value in cbk.leaves(root) do
    out[#out + 1] = { path = tostring(path), shape = kinds.is_tensor(value) and value:shape() or nil }
  end
  return out
end

---Whether all numbers in a key are 0. Such a key represents those of the other layers.
local function is_first(key) return not ("." .. key .. "."):find "%.[1-9]%d*%f[.]" end

local LONGEST = 1000 -- bytes of an end: no class has longer names, and a hostile name has 40,000 parts

---The key's ends: "a.b.c", "b.c", "c", with the place where each begins.
local function ends_of(key)
  local at = 1
  return function()
    while at do
      local from = at
      local dot = key:find(".", at, true)
      at = dot and dot + 1
      if #key - from < LONGEST then return from, key:sub(from) end
    end
  end
end

---Keys of the class by their ends; false for an end of several keys.
---@param known ClassTensors
---@return table<string, string|false>
local function by_end(known)
  local out = {}
  for _, one in ipairs(known) do
    for _, text in (is_first(one.key) and ends_of(one.key) or function() end) do
      if out[text] == nil then out[text] = one.key elseif out[text] ~= one.key then out[text] = false end
    end
  end
  return out
end

---The prefixes of a path and of a key before the longest end that only these two share.
---@return string|nil from, string|nil to, string|nil head   of the end: "lm_head."
local function move_of(path, index)
  for at, text in ends_of(path) do
    local key = index[text]
    local is_enough = key and (text == key or text:find(".", 1, true))
    if key == false then return nil end
    if is_enough then return path:sub(1, at - 1), key:sub(1, #key - #text), text:match "^[^.]*%.?" end
  end
end

---The path without wrappers inside it.
local function unwrapped(path)
  for _, name in ipairs(weights.WRAPPERS) do path = path:gsub("%." .. name .. "%.", ".") end
  return path
end

---@class Move   One prefix that becomes another.
---@field from string
---@field to string
---@field count integer    of weights
---@field heads string[]   what follows the prefix: "lm_head."

---How often each prefix is replaced by another one, the most frequent first.
---@param leaves Leaf[]
---@return Move[]
local function moves_of(leaves, index)
  local out, seen = {}, {}
  for _, leaf in ipairs(leaves) do
    local path = leaf.shape and is_first(leaf.path) and unwrapped(leaf.path)
    local from, to, head
    if path then from, to, head = move_of(path, index) end
    local id = from and from .. "=" .. to
    if id and not seen[id] then seen[id] = { from = from, to = to, count = 0, heads = {} }; out[#out + 1] = seen[id] end
    if id then
      local move = seen[id]
      move.count = move.count + 1
      if not move.heads[head] then move.heads[head], move.heads[#move.heads + 1] = true, head end
    end
  end
  table.sort(out, function(a, b)
    if a.count ~= b.count then return a.count > b.count end
    return a.from < b.from
  end)
  return out
end

---The arguments of --rename, in their order. Where a prefix becomes several ones, all of it gets the most frequent one, and what follows
---it then the others: '*=model.*', 'model.lm_head.*=lm_head.*'.
---@param leaves Leaf[]
---@param moves Move[]
---@return Renaming[]
local function renames_of(leaves, moves)
  local out = {}
  for _, name in ipairs(weights.WRAPPERS) do
    local inner = "." .. name .. "."
    for _, leaf in ipairs(leaves) do
      if leaf.path:find(inner, 1, true) then
        out[#out + 1] = { from = inner, to = ".", is_inner = true }
        break
      end
    end
  end
  local first = {}
  for _, move in ipairs(moves) do
    local to = first[move.from]
    for _, head in ipairs(to and move.heads or { "" }) do
      local before = (to or move.from) .. head
      if before ~= move.to .. head then out[#out + 1] = { from = before .. "*", to = move.to .. head .. "*" } end
    end
    first[move.from] = to or move.to
  end
  return out
end

---@class Renaming   An argument of --rename.
---@field from string
---@field to string
---@field is_inner? boolean   a module inside names, not a prefix

---@class Wrapped   How weights get the names of a class.
---@field included string[]    the prefixes that are copied; none: everything
---@field excluded string[]    paths
---@field renames Renaming[]   in their order
---@field left_out string[]    paths that are not copied
---@field missing string[]     weights of the class that are not in the checkpoint under any name
---@field matched integer
---@field from? string         the one prefix that becomes `to`
---@field to? string
---@field is_of_most? boolean  other names, such as that of a head, stay as they are

---Selects the prefixes that are copied: everything, or, if some values are below none of the prefixes, only these prefixes.
---@param leaves Leaf[]
---@param moves Move[]
---@return string[] included   prefixes; none: everything
---@return Leaf[] kept, string[] left_out
local function selected(leaves, moves)
  local kept, left_out, included = {}, {}, {}
  for _, move in ipairs(moves) do
    if move.from == "" then return {}, leaves, {} end
    included[#included + 1] = move.from
  end
  for _, leaf in ipairs(leaves) do
    local is_below = false
    for _, prefix in ipairs(included) do is_below = is_below or leaf.path:sub(1, #prefix) == prefix end
    if is_below then kept[#kept + 1] = leaf else left_out[#left_out + 1] = leaf.path end
  end
  return #left_out > 0 and included or {}, kept, left_out
end

---Extra values that share the weights' prefix and that the class does not have; nil if there are many.
---@param one Fit
---@param names table<string, string>   the old name for each new one
---@param shapes table<string, integer[]>
---@return string[]|nil
local function strangers(one, names, shapes)
  local out = {}
  for _, key in ipairs(one.unknown) do
    if not shapes[key] then out[#out + 1] = names[key] end
  end
  return #out <= MOST_MOVES and out or nil
end

---How to rename a checkpoint's weights to the names of a class; nil if they have these names already, or if they are other weights.
---@param leaves Leaf[]
---@param known ClassTensors
---@return Wrapped|nil
function wrapped.find(leaves, known)
  local moves = moves_of(leaves, by_end(known))
  if #moves == 0 or #moves > MOST_MOVES then return nil end
  local renames, rules = renames_of(leaves, moves), {}
  if #renames == 0 or #renames > MOST_MOVES + #weights.WRAPPERS then return nil end
  for i, one in ipairs(renames) do rules[i] = rename.parse(("%s=%s"):format(one.from, one.to)) end
  local included, kept, left_out = selected(leaves, moves)
  local keys, names, shapes = {}, {}, {}
  for i, leaf in ipairs(kept) do
    local key = leaf.path
    for _, rule in ipairs(rules) do key = rule.apply(key) end
    if names[key] then return nil end -- two values would get one name
    keys[i], names[key], shapes[key] = key, leaf.path, leaf.shape
  end
  local fitting = fit.of(known, keys, function(key) return shapes[key] end)
  local excluded = strangers(fitting, names, shapes)
  if #fitting.wrong > 0 or not excluded then return nil end
  for _, path in ipairs(excluded) do left_out[#left_out + 1] = path end
  for _, list in ipairs { included, excluded } do
    for _, text in ipairs(list) do
      if not text:find(PLAIN) then return nil end
    end
  end
  for _, one in ipairs(renames) do
    if not (one.from .. one.to):gsub("%*", ""):find(PLAIN) then return nil end
  end
  local first, second = moves[1], moves[2]
  local stays = second and #moves == 2 and first.from == "" and second.from == second.to
  local single = first.from ~= first.to and (#renames == 1 and not second or stays) and first or {}
  return { included = included, excluded = excluded, renames = renames, left_out = left_out, missing = fitting.missing,
    matched = fitting.matched, from = single.from, to = single.to, is_of_most = stays }
end

---A description of how the names differ.
---@param found Wrapped
---@return string   "without the prefix 'module.'"
function wrapped.how(found)
  if found.from and found.to == "" then return ("without the prefix '%s'"):format(found.from) end
  if found.from == "" then return ("with the prefix '%s'%s"):format(found.to, found.is_of_most and " before most of them" or "") end
  return "under other names"
end

---The command that renames the weights.
---@param found Wrapped
---@param place? string   before all keys of the checkpoint: "model."
function wrapped.command(found, place)
  local words = {}
  local function add(option, from, to)
    local text = (place or "") .. from
    words[#words + 1] = ("--%s '%s'"):format(option, to and ("%s=%s%s"):format(text, place or "", to) or text)
  end
  for _, prefix in ipairs(found.included) do add("include", prefix .. "*") end
  for _, path in ipairs(found.excluded) do add("exclude", path) end
  for _, one in ipairs(found.renames) do
    if one.is_inner then words[#words + 1] = ("--rename '%s=%s'"):format(one.from, one.to) else add("rename", one.from, one.to) end
  end
  return "cbk copy CHECKPOINT NEW " .. table.concat(words, " ")
end

---A description of the values that this command leaves out.
---@param found Wrapped
---@return string   " (leaves out step)", or empty
function wrapped.losses(found)
  return #found.left_out > 0 and (" (leaves out %s)"):format(naming.folded(found.left_out, 3)) or ""
end

return wrapped
