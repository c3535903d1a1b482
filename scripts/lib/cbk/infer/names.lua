-- Keys as templates: their numbers become places, which are filled with letters or with numbers.

local naming = require "cbk.naming"

local names = {}

local LETTERS = { "N", "E", "M", "K", "L", "P" }

-- In a template a place is \1 and its kind: "#" if the number is a whole part, else the least number of digits of a number inside a
-- part, or 0.
local PLACE = "\1(.)"
local STRANGE = "[\\^$()?+|%s,{}%[%]*']" -- in a pattern only in quotes

local MOST_RUNS = 16 -- of digits; in a key with more, numbers are ordinary text

---The runs of digits of a key.
---@param key string
---@return { from: integer, to: integer, text: string, stem: string, is_whole: boolean, is_strange: boolean }[]   `stem`: the text before
---the number, without numbers; `is_strange`: in a part that must be in quotes
local function runs_of(key)
  local out = {}
  if select(2, key:gsub("%d+", "", MOST_RUNS + 1)) > MOST_RUNS then return out end
  for from, text, after in key:gmatch "()(%d+)()" do
    local part = naming.last(key:sub(1, from - 1)) .. key:match("[^.]*", from)
    local is_whole = key:sub(from, after):find "^%d+%.?$" and (from == 1 or key:sub(from - 1, from - 1) == ".")
    out[#out + 1] = { from = from, to = after - 1, text = text, stem = key:sub(1, from - 1):gsub("%d+", "#"),
      is_whole = is_whole or false, is_strange = part:find(STRANGE) ~= nil }
  end
  return out
end

---@class Stem   The text before a number, over all keys of a side.
---@field numbers table<integer, table<string, string>>   for each number, the texts after it, with the shape of the tensor
---@field texts table<integer, string>   the number as written
---@field has_zeros boolean       some number has a leading zero
---@field is_clear boolean        every number is always written alike
---@field is_whole boolean
---@field is_inner boolean        another number is before it

---@param keys { key: string, shape: string }[]
---@return table<string, Stem>
local function stems_of(keys)
  local out = {}
  for _, one in ipairs(keys) do
    for _, run in ipairs(runs_of(one.key)) do
      local stem = out[run.stem] or { numbers = {}, texts = {}, has_zeros = false, is_clear = true, is_whole = run.is_whole,
        is_inner = run.stem:find("#", 1, true) ~= nil }
      local n = #run.text < 10 and tonumber(run.text) or -1
      out[run.stem] = stem
      stem.is_clear = stem.is_clear and n >= 0 and not run.is_strange and (stem.texts[n] or run.text) == run.text
        and stem.is_whole == run.is_whole
      stem.has_zeros = stem.has_zeros or #run.text > 1 and run.text:sub(1, 1) == "0"
      stem.numbers[n], stem.texts[n] = stem.numbers[n] or {}, run.text
      stem.numbers[n][one.key:sub(run.to + 1):gsub("%d+", "#")] = one.shape
    end
  end
  return out
end

---Whether a stem counts layers: its numbers have no gaps, and each has several tensors, of the same shapes. A layer can have three
---norms.
---@param stem Stem
local function is_counting(stem)
  local least, most, count, kinds, shapes = math.huge, -1, 0, {}, {}
  for n, rests in pairs(stem.numbers) do
    least, most, count = math.min(least, n), math.max(most, n), count + 1
    for rest, shape in pairs(rests) do
      if (shapes[rest] or shape) ~= shape then return false end
      shapes[rest], kinds[(rest:gsub("%.weight$", ""):gsub("%.bias$", ""))] = shape, true
    end
  end
  if count < 2 or most - least + 1 ~= count then return false end
  return next(kinds, next(kinds)) ~= nil or stem.has_zeros or count > (stem.is_inner and 3 or 2)
end

---The least number of digits of a stem's numbers, if some have leading zeros; 0 if none have; nil if the digits are inconsistent.
---@param stem Stem
local function width_of(stem)
  if not stem.has_zeros then return 0 end
  local width = 9
  for _, text in pairs(stem.texts) do width = math.min(width, #text) end
  for _, text in pairs(stem.texts) do
    if #text > width and text:sub(1, 1) == "0" then return nil end
  end
  return width > 1 and width or nil
end

---The stems of numbers inside parts that count layers and the like, as in "block_00.weight", with their digits.
---@param keys { key: string, shape: string }[]
---@return table<string, integer>
function names.counted(keys)
  local out = {}
  for text, stem in pairs(stems_of(keys)) do
    local is_wanted = stem.is_clear and (stem.has_zeros or not stem.is_whole) and is_counting(stem)
    out[text] = is_wanted and width_of(stem) or nil
  end
  return out
end

---A key as a template, and its numbers: "h.#.mlp.weight", { 3 }.
---@param key string
---@param counted table<string, integer>   of names.counted
---@return string template, integer[] numbers
function names.template(key, counted)
  local numbers, out, from = {}, {}, 1
  for _, run in ipairs(runs_of(key)) do
    local width = counted[run.stem]
    local is_plain = run.is_whole and (run.text == "0" or run.text:sub(1, 1) ~= "0") and #run.text < 10
    if width or is_plain then
      numbers[#numbers + 1] = tonumber(run.text)
      out[#out + 1] = key:sub(from, run.from - 1) .. "\1" .. (width and ("%d"):format(width) or "#")
      from = run.to + 1
    end
  end
  out[#out + 1] = key:sub(from)
  return table.concat(out), numbers
end

---A place filled with a letter or a number.
---@param kind string   of the place
---@param value string|integer   a letter, or the number itself
---@return string
function names.in_place(kind, value)
  if kind == "#" then return tostring(value) end
  if type(value) == "number" then return ("%0" .. kind .. "d"):format(value) end
  return kind == "0" and ("{%s}"):format(value) or ("{%s:%s}"):format(value, kind)
end

---A template with each place filled.
---@param template string
---@param places (string|integer)[]
---@return string
function names.filled(template, places)
  local i = 0
  return (template:gsub(PLACE, function(kind)
    i = i + 1
    return names.in_place(kind, places[i])
  end))
end

---A key as a pattern: parts that are one capital letter, are empty, or contain special characters or quotes are put in quotes.
---@param key string
---@return string
function names.quoted(key)
  return ((key .. "."):gsub("([^.]*)%.", function(part)
    return (part == "" or part:find "^%u$" or part:find(STRANGE)) and "'" .. part:gsub("'", "''") .. "'." or nil
  end):sub(1, -2))
end

---A template as a pattern, with each place filled.
---@param template string
---@param places (string|integer)[]
---@return string
function names.pattern(template, places) return names.filled(names.quoted(template), places) end

---A template as a Lua pattern that captures the numbers of its letters.
---@param template string
---@param places (string|integer)[]
---@return string
function names.catching(template, places)
  local i = 0
  return "^" .. template:gsub("%p", "%%%0"):gsub("\1%%?(.)", function(kind)
    i = i + 1
    return type(places[i]) == "string" and "(%d+)" or names.in_place(kind, places[i])
  end) .. "$"
end

---A template as a Lua pattern that captures the text before one place and the text after it.
---@param template string
---@param places (string|integer)[]
---@param place integer
---@return string
function names.around(template, places, place)
  local i = 0
  return "^(" .. template:gsub("%p", "%%%0"):gsub("\1%%?(.)", function(kind)
    i = i + 1
    if i == place then return ")%d+(" end
    return type(places[i]) == "string" and "%d+" or names.in_place(kind, places[i])
  end) .. ")$"
end

---A template for string.format, with these numbers.
---@param template string
---@param places (string|integer)[]
---@return string
function names.format(template, places)
  local i = 0
  return (template:gsub("%%", "%%%%"):gsub(PLACE, function(kind)
    i = i + 1
    if type(places[i]) == "number" then return names.in_place(kind, places[i]) end
    return (kind == "#" or kind == "0") and "%d" or "%0" .. kind .. "d"
  end))
end

---The least number of digits in a place.
---@param template string
---@param place integer
---@return integer
function names.digits(template, place)
  local i = 0
  for kind in template:gmatch(PLACE) do
    i = i + 1
    if i == place then return tonumber(kind) or 0 end
  end
  return 0
end

---A template with one place marked by \2 in place of \1.
---@param template string
---@param place integer
---@return string
function names.marked(template, place)
  local i = 0
  return (template:gsub(PLACE, function(kind)
    i = i + 1
    return i == place and "\2" .. kind or nil
  end))
end

---The text before a place of a template.
---@param template string
---@param place integer
---@return string|nil
function names.before(template, place)
  local i = 0
  for at in template:gmatch "()\1" do
    i = i + 1
    if i == place then return template:sub(1, at - 1) end
  end
end

-- --- which places of two templates have the same number

---@class Seen       One pair of keys with the same content.
---@field left integer[]    their numbers
---@field right integer[]

---@class Places     The contents of the places of two templates: letters or numbers.
---@field left (string|integer)[]
---@field right (string|integer)[]
---@field divisor? integer   the left counts 0, 2, 4 where the right counts 0, 1, 2
---@field offset? integer    the right counts 2, 3, 4 where the left counts 0, 1, 2

local USUAL = naming.set "h layer layers block blocks resblocks experts"

local function last_word(prefix)
  if prefix:find "[^.]%.$" then return naming.last(prefix:sub(1, -2)) end
  local backward = naming.last(prefix):reverse():match "^[^%a]*(%a+)"
  return backward and backward:reverse()
end

local function values(seen, side, place)
  local out, count = {}, 0
  for _, one in ipairs(seen) do
    local value = one[side][place]
    if not out[value] then out[value], count = true, count + 1 end
  end
  return count
end

local function agree(seen, left, right, divisor)
  for _, one in ipairs(seen) do
    if one.left[left] ~= one.right[right] * (divisor or 1) then return false end
  end
  return true
end

---The constant index offset right − left, or nil.
local function difference(seen)
  local out = seen[1].right[1] - seen[1].left[1]
  for _, one in ipairs(seen) do
    if one.right[1] - one.left[1] ~= out then return nil end
  end
  return out
end

---Whether the first number of a key is known to count layers or the like.
---@param known Known
---@param side Side
---@param template string
function names.counts(known, side, template)
  local prefix = names.before(template, 1)
  return prefix ~= nil and known.partners[side][prefix] ~= nil
end

---@class Known   Prefixes of places that count the same on both sides, except for an offset.
---@field offsets table<string, integer>     by both prefixes
---@field partners table<Side, table<string, string>>   for each prefix, the first one that corresponds to it
local Known = {}
Known.__index = Known

---@return Known
function names.known() return setmetatable({ offsets = {}, partners = { left = {}, right = {} } }, Known) end

function Known:is_empty() return next(self.offsets) == nil end

---@return integer|nil   the offset right − left; nil if the prefixes do not correspond
function Known:offset(left, right) return self.offsets[left .. "\0" .. right] end

---@param left string
---@param right string
---@param offset integer
function Known:add(left, right, offset)
  self.offsets[left .. "\0" .. right] = offset
  self.partners.left[left] = self.partners.left[left] or right
  self.partners.right[right] = self.partners.right[right] or left
end

---Whether two places count the same, although only one number was seen: other keys show it, or nothing is known and both have usual names.
local function is_known(templates, left, right, known)
  local a, b = names.before(templates.left, left), names.before(templates.right, right)
  if known:offset(a, b) == 0 then return true end
  return known:is_empty() and USUAL[last_word(a) or ""] and USUAL[last_word(b) or ""]
end

---@param templates { left: string, right: string }
---@param seen Seen[]
---@param known Known   found prefixes are added
---@param by? Side   the side that determines the letters (default: left), so that several pairs with one key agree on them
---@return Places|nil
---@return Side|nil side, integer|nil place   the place with several numbers that nothing explains
function names.places(templates, seen, known, by)
  local left, right, divisor, offset = {}, {}, nil, nil
  local function letter_for(k, s)
    left[k] = left[k] or LETTERS[by == "right" and s or k]
    right[s] = left[k]
  end
  for s = 1, #seen[1].right do
    for pass = 1, 2 do -- first a place that is not used yet
      for k = 1, #seen[1].left do
        local is_free = (pass == 2 or not left[k]) and math.max(k, s) <= #LETTERS
        if not right[s] and is_free and agree(seen, k, s) then
          local is_varying = values(seen, "left", k) > 1
          if is_varying or is_known(templates, k, s, known) then
            letter_for(k, s)
            if is_varying then known:add(names.before(templates.left, k), names.before(templates.right, s), 0) end
          end
        end
      end
    end
    if not right[s] and #seen[1].left == 1 and #seen[1].right == 1 then
      local apart, before, other = difference(seen), names.before(templates.left, 1), names.before(templates.right, 1)
      local is_varying = values(seen, "left", 1) > 1
      if apart and apart ~= 0 and (is_varying or known:offset(before, other) == apart) then
        letter_for(1, s)
        offset = apart
      end
    end
    if not right[s] and values(seen, "right", s) == 1 then right[s] = seen[1].right[s] end
    for m = 2, (right[s] or #seen[1].left > 1 or #seen[1].right > 1) and 1 or 4 do
      if not right[s] and agree(seen, 1, s, m) then
        letter_for(1, s)
        divisor = m
      end
    end
    if not right[s] then return nil, "right", s end
  end
  for k = 1, #seen[1].left do
    if not left[k] then
      if values(seen, "left", k) > 1 then return nil, "left", k end
      left[k] = seen[1].left[k]
    end
  end
  return { left = left, right = right, divisor = divisor, offset = offset }
end

---The numbers of the right for those of the left; nil if the left's do not fit.
---@param places Places
---@param numbers integer[]
---@return integer[]|nil
function names.right_numbers(places, numbers)
  local by_letter = {}
  for k, place in ipairs(places.left) do
    if type(place) == "string" then by_letter[place] = numbers[k] elseif place ~= numbers[k] then return nil end
  end
  local out = {}
  for s, place in ipairs(places.right) do
    out[s] = type(place) == "string" and by_letter[place] / (places.divisor or 1) + (places.offset or 0) or place
    if out[s] % 1 ~= 0 or out[s] < 0 then return nil end
  end
  return out
end

-- --- similarity of keys

local MEANS = {}
for words, meaning in pairs {
  ["ln layernorm lnorm rmsnorm gamma"] = "norm", ["attn selfattention selfattn crossattn"] = "attention", ["wte tok tokens token"] = "word",
  ["wpe pos positional"] = "position", ["embeddings embedding emb embd embedder"] = "embed", ["h layers block blocks"] = "layer",
  ["query qry"] = "q", ["key"] = "k", ["value val"] = "v", ["dense linear fc wo out output o"] = "proj", ["mlp feed forward"] = "ffn",
  ["f last"] = "final", ["input 0"] = "1", ["encoder decoder transformer model"] = "",
  ["heads head n_head"] = "heads", ["vocabulary vocab"] = "vocab", ["num n number count"] = "num",
} do
  for word in words:gmatch "%S+" do MEANS[word] = meaning end
end

---@param name string
---@return { [1]: table<string, integer>, [2]: string, [3]: integer }
local function analysed(name)
  local out, count, list = {}, 0, {}
  local spaced = name:gsub(PLACE, " "):gsub("layer_norm", "layernorm"):gsub("(%l)(%u)", "%1_%2"):gsub("(%a)(%d)", "%1_%2")
  for word in spaced:lower():gmatch "[%a%d]+" do
    word = MEANS[word] or word
    if word ~= "" then out[word], count, list[count + 1] = (out[word] or 0) + 1, count + 1, word end
  end
  table.sort(list)
  return { out, table.concat(list, " "), count }
end

local MOST_CACHED = 4096
local cache, cached = {}, 0

---The words of a key for comparison, how often each occurs, and all of them in one text.
---@param name string
---@return table<string, integer> words, string bag, integer count
function names.words(name)
  local found = cache[name]
  if not found then
    if cached == MOST_CACHED then cache, cached = {}, 0 end
    found = analysed(name)
    cache[name], cached = found, cached + 1
  end
  return found[1], found[2], found[3]
end

---The similarity of two keys: from 0 to 1, and a little more if their last words are the same.
---@param a string
---@param b string
---@return number
function names.likeness(a, b)
  local of_a, _, count_a = names.words(a)
  local of_b, _, count_b = names.words(b)
  local common = 0
  for word, count in pairs(of_a) do common = common + math.min(count, of_b[word] or 0) end
  local is_same_end = naming.last(a) == naming.last(b)
  return 2 * common / math.max(1, count_a + count_b) + (is_same_end and 0.25 or 0)
end

return names
