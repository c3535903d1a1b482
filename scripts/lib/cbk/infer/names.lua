-- Keys as templates: their numbers become places, which a pattern fills with letters or with the numbers themselves.

local names = {}

local LETTERS = { "N", "E", "M", "K", "L", "P" }

---A key without its numbers, and these: "h.#.mlp.weight", { 3 }.
---@param key string
---@return string template, integer[] numbers
function names.template(key)
  local numbers = {}
  local text = key:gsub("[^.]+", function(part)
    if part:find "^%d+$" and (part == "0" or part:sub(1, 1) ~= "0") and #part < 10 then
      numbers[#numbers + 1] = tonumber(part)
      return "#"
    end
  end)
  return text, numbers
end

---A template with something in each place.
---@param template string
---@param places (string|integer)[]
---@return string
function names.filled(template, places)
  local i = 0
  return (template:gsub("%f[^.%z]#%f[.%z]", function()
    i = i + 1
    return tostring(places[i])
  end))
end

---What is before a place of a template.
local function before(template, place)
  local i = 0
  for at in template:gmatch "()%f[^.%z]#%f[.%z]" do
    i = i + 1
    if i == place then return template:sub(1, at - 1) end
  end
end

-- --- which places of two templates have the same number

---@class Seen       One pair of keys that have the same content.
---@field left integer[]    their numbers
---@field right integer[]

---@class Places     What is in each place of two templates: a letter, or the number itself.
---@field left (string|integer)[]
---@field right (string|integer)[]
---@field divisor? integer   the left counts 0, 2, 4 where the right counts 0, 1, 2

local USUAL = {}
for word in ("h layer layers block blocks resblocks experts"):gmatch "%S+" do USUAL[word] = true end

local function last_word(prefix) return prefix:match "([^.]+)%.$" end

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

---Whether the first number of a key counts layers and such, as far as is known.
---@param known table<string, boolean>   of `places`
---@param side Side
---@param template string
function names.counts(known, side, template)
  local prefix = before(template, 1)
  for pair in pairs(known) do
    local left, right = pair:match "^(.-)%z(.*)$"
    if prefix and (side == "left" and left or right) == prefix then return true end
  end
  return false
end

---Whether two places count the same, though only one number was seen: they do elsewhere, or nothing is known and their names say so.
local function is_known(templates, left, right, known)
  local a, b = before(templates.left, left), before(templates.right, right)
  if known[a .. "\0" .. b] then return true end
  return not next(known) and USUAL[last_word(a) or ""] and USUAL[last_word(b) or ""]
end

---@param templates { left: string, right: string }
---@param seen Seen[]
---@param known table<string, boolean>   prefixes of places that count the same; those that are found are added
---@param by? Side   letters are by the places of this side (default: left), so that several pairs with one key agree on them
---@return Places|nil
---@return Side|nil side, integer|nil place   that has several numbers for no reason
function names.places(templates, seen, known, by)
  local left, right, divisor = {}, {}, nil
  local function letter_for(k, s)
    left[k] = left[k] or LETTERS[by == "right" and s or k]
    right[s] = left[k]
  end
  for s = 1, #seen[1].right do
    for pass = 1, 2 do -- first a place that no other one has taken
      for k = 1, #seen[1].left do
        local is_free = (pass == 2 or not left[k]) and math.max(k, s) <= #LETTERS
        if not right[s] and is_free and agree(seen, k, s) then
          local is_varying = values(seen, "left", k) > 1
          if is_varying or is_known(templates, k, s, known) then
            letter_for(k, s)
            if is_varying then known[before(templates.left, k) .. "\0" .. before(templates.right, s)] = true end
          end
        end
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
  return { left = left, right = right, divisor = divisor }
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
    out[s] = type(place) == "string" and by_letter[place] / (places.divisor or 1) or place
  end
  return out
end

-- --- how much two keys look alike

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

local function words(name)
  local out, count = {}, 0
  local spaced = name:gsub("layer_norm", "layernorm"):gsub("(%l)(%u)", "%1_%2"):gsub("(%a)(%d)", "%1_%2")
  for word in spaced:lower():gmatch "[%a%d]+" do
    word = MEANS[word] or word
    if word ~= "" then out[word], count = (out[word] or 0) + 1, count + 1 end
  end
  return out, count
end

local like_cache = {}

---From 0 to 1, and a little more if the last words are the same.
---@param a string
---@param b string
---@return number
function names.likeness(a, b)
  local id = a .. "\0" .. b
  if not like_cache[id] then
    local of_a, count_a = words(a)
    local of_b, count_b = words(b)
    local common = 0
    for word, count in pairs(of_a) do common = common + math.min(count, of_b[word] or 0) end
    local is_same_end = a:match "[^.]+$" == b:match "[^.]+$"
    like_cache[id] = 2 * common / math.max(1, count_a + count_b) + (is_same_end and 0.25 or 0)
  end
  return like_cache[id]
end

return names
