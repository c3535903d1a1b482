-- Relations of patterns to each other and to keys: covering, overlapping, nearly matching. These patterns have no choices; their parts
-- are literals, capital letters (numbers) and stars.

local patterns = require "converters.engine.patterns"

local relate = {}

local is_letter = patterns.is_letter

local parts_of = setmetatable({}, { __index = function(memory, pattern) -- a cache: each pattern is compared with all others
  local out = patterns.split(pattern)
  memory[pattern] = out
  return out
end })

---Whether a part of a key, or an equal part of a pattern, fits a part of a pattern.
local function fits(part, own) return part == own or patterns.fits(part, own) end

---Whether all keys that fit `special` fit `general` too.
---@param general string
---@param special string
---@return boolean
function relate.covers(general, special)
  local g, s = parts_of[general], parts_of[special]
  local function from(i, j)
    if i > #g then return j > #s end
    if j > #s then return false end
    if g[i] == "*" then
      for stop = j, #s do
        if from(i + 1, stop + 1) then return true end
      end
      return false
    end
    local one = s[j]
    local covered = one ~= "*" and (fits(g[i], one) or is_letter(g[i]) and is_letter(one))
    return covered and from(i + 1, j + 1)
  end
  return from(1, 1)
end

---The parts of a pattern, with each star as "any part" and "any further parts".
local function opened(pattern)
  local out = {}
  for _, part in ipairs(parts_of[pattern]) do
    out[#out + 1] = part == "*" and "?" or part
    if part == "*" then out[#out + 1] = "…" end
  end
  return out
end

local function meet(a, b)
  return a == "?" or b == "?" or fits(a, b) or fits(b, a) or is_letter(a) and is_letter(b)
end

---Whether some key fits both patterns.
---@return boolean
function relate.overlap(one, other)
  local a, b = opened(one), opened(other)
  local function from(i, j)
    if i > #a and j > #b then return true end
    if a[i] == "…" then return from(i + 1, j) or j <= #b and from(i, j + 1) end
    if b[j] == "…" then return from(i, j + 1) or i <= #a and from(i + 1, j) end
    return i <= #a and j <= #b and meet(a[i], b[j]) and from(i + 1, j + 1)
  end
  return from(1, 1)
end

---How many parts of a key and a pattern agree from the front and from the back, and where they differ first.
---@return integer front, integer back, string|nil wanted, string|nil found   `wanted`: the pattern's part, `found`: the key's
function relate.alike(pattern, key)
  local p, k = patterns.split(pattern), patterns.split(key)
  local front, back = 0, 0
  while front < #p and front < #k and p[front + 1] ~= "*" and fits(p[front + 1], k[front + 1]) do front = front + 1 end
  while back < #p - front and back < #k - front and fits(p[#p - back], k[#k - back]) do back = back + 1 end
  return front, back, p[front + 1], k[front + 1]
end

return relate
