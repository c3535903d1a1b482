-- Patterns of keys, and the tree that a converter's rules are compiled into, which is walked once per key.
--
-- A pattern is a dotted key: `N` (any single capital letter) means digits, also inside a part (`block_{N}`, `block_{N:2}` with two
-- digits or more), `'D'` or `'a b'` a name with anything in it (but a dot; a quote is written twice), `*` one or more parts
-- (choices.lua: what else one may write). What a pattern matched on one side is carried over to the other.

local choices = require "converters.engine.choices"
local rules = require "converters.engine.rules"

local patterns = {}

---The parts of a dotted key or pattern.
---@param text string
---@return string[]
local function split(text)
  local parts, from = {}, 1
  while true do
    local dot = text:find(".", from, true)
    parts[#parts + 1] = text:sub(from, dot and dot - 1)
    if not dot then return parts end
    from = dot + 1
  end
end

patterns.split = split

local function is_letter(part) return #part == 1 and part:find "%u" ~= nil end

patterns.is_letter = is_letter

---@class NumberInPart   A letter with text around it, in one part: "block_{N:2}".
---@field letter string
---@field width integer   at least so many digits; 0 without zeros in front

---@param part string
---@return (string|NumberInPart)[]|nil   texts and letters in turn; nil of a part without such letters
local function numbers_in(part)
  if not part:find "{%u[:}]" or part:find "^'" then return nil end
  local out, from = {}, 1
  for start, letter, width, stop in part:gmatch "(){(%u):?(%d*)}()" do
    if start > from then out[#out + 1] = part:sub(from, start - 1) end
    out[#out + 1], from = { letter = letter, width = tonumber(width) or 0 }, stop
  end
  if from <= #part then out[#out + 1] = part:sub(from) end
  return out
end

---A part of a pattern as a Lua pattern that catches its numbers; nil if it has none.
local function caught_by(part)
  local pieces, out = numbers_in(part), { "^" }
  for _, piece in ipairs(pieces or {}) do
    out[#out + 1] = type(piece) == "string" and piece:gsub("%p", "%%%0") or "(%d+)"
  end
  return pieces and table.concat(out) .. "$", pieces
end

---The name that a part of a pattern is: 'D' in quotes is no number.
local function literal(part) return choices.quoted_name(part) or part end

---The numbers in a part of a key as the other side has them, without zeros in front; nil if a part of a pattern does not fit.
---@param pattern string   of caught_by
---@param pieces (string|NumberInPart)[]
---@param part string      of a key
---@return string[]|nil
local function numbers_of(pattern, pieces, part)
  local found, out = { part:match(pattern) }, {}
  for _, piece in ipairs(found[1] and pieces or {}) do
    if type(piece) == "table" then
      local digits = found[#out + 1]
      if #digits > math.max(piece.width, 1) and digits:sub(1, 1) == "0" or #digits < piece.width then return nil end
      out[#out + 1] = digits:match "^0*(%d+)$"
    end
  end
  return found[1] and out or nil
end

---Whether a part of a key fits a part of a pattern that is no star.
---@param part string
---@param own string
---@return boolean
function patterns.fits(part, own)
  if literal(part) == own or is_letter(part) and own:find "^%d+$" then return true end
  local pattern, pieces = caught_by(part)
  return pattern ~= nil and numbers_of(pattern, pieces, own) ~= nil
end

---The letters and stars of a pattern, in order.
---@return string[]
function patterns.captures(pattern)
  local out = {}
  for _, part in ipairs(split(pattern)) do
    if part == "*" or is_letter(part) then out[#out + 1] = part end
    for _, piece in ipairs(numbers_in(part) or {}) do
      if type(piece) == "table" then out[#out + 1] = piece.letter end
    end
  end
  return out
end

---A pattern ready to be filled in with captures: strings, capture positions and letters in turn.
local function template(pattern, places)
  local out, text = {}, ""
  local function add(piece)
    if text ~= "" then out[#out + 1] = text end
    out[#out + 1], text = piece, ""
  end
  for i, part in ipairs(split(pattern)) do
    if i > 1 then text = text .. "." end
    if part == "*" or is_letter(part) then
      add(places[part] or { part })
    else
      for _, piece in ipairs(numbers_in(part) or { literal(part) }) do
        if type(piece) == "string" then
          text = text .. piece
        else
          add { piece.letter, place = places[piece.letter], width = piece.width }
        end
      end
    end
  end
  if text ~= "" then out[#out + 1] = text end
  return out
end

---@param letters? table<string, string>  values of letters that the other side does not have
function patterns.render(pieces, caught, letters)
  if #pieces == 1 and type(pieces[1]) == "string" then return pieces[1] end
  local out = {}
  for i, piece in ipairs(pieces) do
    if type(piece) == "number" then
      out[i] = caught[piece]
    elseif type(piece) == "table" then
      local text = piece.place and caught[piece.place] or letters and letters[piece[1]]
        or error(("'%s' is in the pattern of the key to write, but not in that of the key to read; "
        .. "`cbk rules FILE` names the rule"):format(piece[1]), 0)
      out[i] = ("0"):rep((text:find "^%d" and piece.width or 0) - #text) .. text
    else
      out[i] = piece
    end
  end
  return table.concat(out)
end

local function templates(list, places)
  local out, free, each = {}, places, list.each
  if each then -- its letter is counted, whatever the key that was met says
    free, out.each = {}, { letter = each.letter, count = each.count, place = places[each.letter] }
    for name, place in pairs(places) do free[name] = name ~= each.letter and place or nil end
  end
  for i, pattern in ipairs(list) do out[i] = template(pattern, free) end
  return out
end

---@class Hit
---@field ending Ending
---@field caught string[]   what its letters and stars stand for

---@class Ending   Where a key goes that a pattern fits.
---@field order integer    its place among all
---@field pattern string   without choices
---@field rule Rule        without choices
---@field kind "write"|"only"|"drop"|"refuse"
---@field why? string
---@field from table[]     templates of the keys that are read; `each`, where they are one for each value of a letter
---@field to table[]       … of the keys that are written
---@field also table[]     templates of further keys, each with its function
---@field copy_of? table   template of the key that says the same

local function insert(tree, pattern, ending)
  local node = tree
  for _, part in ipairs(split(pattern)) do
    local special = part == "*" and "star" or is_letter(part) and "digits"
    local edges, name = special and node or node.literal, special or literal(part)
    local inside, pieces = caught_by(part)
    if inside then
      node.inside = node.inside or {}
      edges, name = node.inside, part
      edges[name] = edges[name] or { literal = {}, ends = {}, pattern = inside, pieces = pieces }
    end
    edges[name] = edges[name] or { literal = {}, ends = {} }
    node = edges[name]
  end
  node.ends[#node.ends + 1] = ending
end

---A key that the other direction writes beside another one says nothing new.
local function beside(rule, side, extra)
  local own, pattern = rule[side], extra[1]
  return {
    kind = "only", why = "made again on the way back", copy_of = not own.each and own[1] or nil, is_made = not extra.is_copy,
    base = rule.base or rule,
    also = { left = {}, right = {} }, [side] = { pattern },
  }
end

---The tree for reading `side`, and its endings in the order of the table.
---@param set Rule[]
---@param side Side
---@return table tree, Ending[] endings
function patterns.compile(set, side)
  local tree, other, endings, expanded = { literal = {}, ends = {} }, rules.other[side], {}, {}
  for _, rule in ipairs(set) do
    for _, one in ipairs(rules.expand(rule)) do expanded[#expanded + 1] = one end
  end
  local function add(rule, pattern)
    local places = {}
    for place, name in ipairs(patterns.captures(pattern)) do places[name] = place end
    local from, to = rule[side], rule[other] or {}
    local extras = {}
    for i, extra in ipairs(rule.also[other]) do extras[i] = { template(extra[1], places), extra[2] } end
    local ending = {
      order = #endings + 1, rule = rule, pattern = pattern, kind = rule.kind or "write", why = rule.why,
      from = templates(from, places), to = templates(to, places),
      also = extras, copy_of = rule.copy_of and template(rule.copy_of, places),
    }
    endings[#endings + 1] = ending
    insert(tree, pattern, ending)
  end
  for _, rule in ipairs(expanded) do
    for _, pattern in ipairs(rule[side] or {}) do add(rule, pattern) end
  end
  for _, rule in ipairs(expanded) do
    for _, extra in ipairs(rule.also[side]) do add(beside(rule, side, extra), extra[1]) end
  end
  return tree, endings
end

local function walk(node, parts, i, caught, hits)
  if i > #parts then
    for _, ending in ipairs(node.ends) do hits[#hits + 1] = { ending = ending, caught = { unpack(caught) } } end
    return
  end
  local part = parts[i]
  local child = node.literal[part]
  if child then walk(child, parts, i + 1, caught, hits) end
  child = node.digits
  if child and part:find "^%d+$" then
    caught[#caught + 1] = part
    walk(child, parts, i + 1, caught, hits)
    caught[#caught] = nil
  end
  for _, inside in pairs(node.inside or {}) do
    local numbers = numbers_of(inside.pattern, inside.pieces, part)
    for _, number in ipairs(numbers or {}) do caught[#caught + 1] = number end
    if numbers then walk(inside, parts, i + 1, caught, hits) end
    for _ = 1, #(numbers or {}) do caught[#caught] = nil end
  end
  child = node.star
  if child then
    for stop = i, #parts do
      caught[#caught + 1] = table.concat(parts, ".", i, stop)
      walk(child, parts, stop + 1, caught, hits)
      caught[#caught] = nil
    end
  end
end

---Every ending that fits `key`, in the order of the table.
---@return Hit[]
function patterns.match(tree, key)
  local hits = {}
  walk(tree, split(key), 1, {}, hits)
  if #hits > 1 then
    table.sort(hits, function(a, b) return a.ending.order < b.ending.order end)
  end
  return hits
end

return patterns
