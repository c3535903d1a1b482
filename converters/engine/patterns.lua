-- Patterns of keys, and their compiled form: each is a Lua pattern, indexed by the key's skeleton.
--
-- A pattern is a dotted key. `N` (any single capital letter) means digits, also inside a part: `block_{N}`, or `block_{N:2}` with at
-- least two digits. `'D'` and `'a b'` are names with any characters but a dot; a quote is doubled. `*` means one or more parts, at most
-- once. Choices: choices.lua. What a pattern matches on one side is inserted on the other.

local choices = require "converters.notation.choices"
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
---@field width integer   the least number of digits; 0 without zeros in front

---@param part string
---@return (string|NumberInPart)[]|nil   texts and letters in turn; nil for a part without such letters
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

---The text of a part of a pattern: 'D' in quotes is a name, not a number.
local function literal(part) return choices.quoted_name(part) or part end

---The letters and stars of a pattern, in order, each once.
---@return string[]
function patterns.captures(pattern)
  local out, seen = {}, {}
  local function add(name)
    if not seen[name] then out[#out + 1], seen[name] = name, true end
  end
  for _, part in ipairs(split(pattern)) do
    if part == "*" or is_letter(part) then add(part) end
    for _, piece in ipairs(numbers_in(part) or {}) do
      if type(piece) == "table" then add(piece.letter) end
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
  if each then -- its letter takes all values, whatever number the matched key has
    free, out.each = {}, { letter = each.letter, count = each.count, place = places[each.letter], itself = { [each.letter] = each.letter } }
    for name, place in pairs(places) do free[name] = name ~= each.letter and place or nil end
  end
  for i, pattern in ipairs(list) do out[i] = template(pattern, free) end
  return out
end

---@class Hit
---@field ending Ending
---@field caught string[]   the text that each letter and star matched

---@class Ending   What happens to a key that a pattern fits.
---@field order integer    its place among all
---@field pattern string   without choices
---@field rule Rule        without choices
---@field kind "write"|"only"|"drop"|"refuse"
---@field why? string
---@field from table[]     templates of the keys that are read; with `each`, one key for each value of a letter
---@field to table[]       templates of the keys that are written
---@field also table[]     templates of further keys, each with its function
---@field copy_of? table   template of the key with the same values

---A text as a part of a Lua pattern that matches just it.
local function escaped(text) return (text:gsub("%p", "%%%0"):gsub("%z", "%%z")) end

---A key with `#` for each number. All keys that fit a pattern have one skeleton, unless the pattern has a star.
local function skeleton_of(key) return (key:gsub("%d+", "#")) end

---@class Matcher   A pattern, compiled.
---@field ending Ending
---@field text string         as a Lua pattern
---@field count integer       the number of captures
---@field inside table<integer, NumberInPart>   the letters inside parts, by the index of the capture
---@field again integer[][]    captures of letters that come again, each with the first one
---@field is_starred boolean  fits keys of several skeletons

---@param pattern string
---@param ending? Ending
---@return Matcher, string skeleton
local function matcher(pattern, ending)
  local out, texts, names = { ending = ending, count = 0, inside = {}, again = {}, is_starred = false }, {}, {}
  local place_of = {}
  local function caught(text, name)
    out.count = out.count + 1
    if place_of[name] then out.again[#out.again + 1] = { out.count, place_of[name] } end
    place_of[name] = place_of[name] or out.count
    return text
  end
  for i, part in ipairs(split(pattern)) do
    local is_star, pieces = part == "*", numbers_in(part)
    if is_star or is_letter(part) then
      texts[i], names[i] = caught(is_star and "(.-)" or "(%d+)", part), "0" -- any number has the same skeleton
      out.is_starred = out.is_starred or is_star
    else
      local own, name = {}, {}
      for k, piece in ipairs(pieces or { literal(part) }) do
        local is_text = type(piece) == "string"
        own[k], name[k] = is_text and escaped(piece) or caught("(%d+)", piece.letter), is_text and piece or "0"
        if not is_text then out.inside[out.count] = piece end
      end
      texts[i], names[i] = table.concat(own), table.concat(name)
    end
  end
  out.text = "^" .. table.concat(texts, "%.") .. "$"
  return out, skeleton_of(table.concat(names, "."))
end

---The rule for reading a further key (`also_left`, `also_right`): it is skipped, as the other direction writes it again.
local function beside(rule, side, extra)
  local own, pattern = rule[side], extra[1]
  return {
    kind = "only", why = "made again on the way back", copy_of = not own.each and own[1] or nil, is_made = not extra.is_copy,
    base = rule.base or rule,
    also = { left = {}, right = {} }, [side] = { pattern },
  }
end

---@class CompiledPatterns
---@field by_skeleton table<string, Matcher[]>
---@field starred Matcher[]

---The patterns for reading `side`, and their endings in the order of the table.
---@param set Rule[]
---@param side Side
---@return CompiledPatterns compiled, Ending[] endings
function patterns.compile(set, side)
  local compiled, other, endings, expanded = { by_skeleton = {}, starred = {} }, rules.other[side], {}, {}
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
    local one, skeleton = matcher(pattern, ending)
    local group = one.is_starred and compiled.starred or compiled.by_skeleton[skeleton] or {}
    group[#group + 1] = one
    if not one.is_starred then compiled.by_skeleton[skeleton] = group end
  end
  for _, rule in ipairs(expanded) do
    for _, pattern in ipairs(rule[side] or {}) do add(rule, pattern) end
  end
  for _, rule in ipairs(expanded) do
    for _, extra in ipairs(rule.also[side]) do add(beside(rule, side, extra), extra[1]) end
  end
  return compiled, endings
end

---What the letters and stars of a pattern matched in a key, each once; nil if it does not fit, as where a letter is two numbers. Numbers
---inside parts lose their leading zeros. They may have no more of these than the width requires.
---@param one Matcher
---@param key string
---@return string[]|nil
local function caught_by(one, key)
  local caught = { key:match(one.text) }
  if not caught[1] then return nil end
  if one.count == 0 then return {} end
  for place, piece in pairs(one.inside) do
    local digits = caught[place]
    if #digits > math.max(piece.width, 1) and digits:sub(1, 1) == "0" or #digits < piece.width then return nil end
    caught[place] = digits:match "^0*(%d+)$"
  end
  for i = #one.again, 1, -1 do
    local place, first = unpack(one.again[i])
    if caught[place] ~= caught[first] then return nil end
    table.remove(caught, place)
  end
  return caught
end

---Whether a part of a key fits a part of a pattern.
---@param part string
---@param own string
---@return boolean
function patterns.fits(part, own) return caught_by(matcher(part), own) ~= nil end

---An iterator over the endings that fit `key`, in the order of the table.
---@param compiled CompiledPatterns
---@param key string
---@return fun(): Hit|nil
function patterns.hits(compiled, key)
  local exact, starred, i, k = compiled.by_skeleton[skeleton_of(key)] or {}, compiled.starred, 1, 1
  return function()
    while exact[i] or starred[k] do
      local one = exact[i]
      if not one or starred[k] and starred[k].ending.order < one.ending.order then one, k = starred[k], k + 1 else i = i + 1 end
      local caught = caught_by(one, key)
      if caught then return { ending = one.ending, caught = caught } end
    end
  end
end

---Every ending that fits `key`, in the order of the table.
---@param compiled CompiledPatterns
---@param key string
---@return Hit[]
function patterns.match(compiled, key)
  local out = {}
  for hit in patterns.hits(compiled, key) do out[#out + 1] = hit end
  return out
end

return patterns
