-- Numbers as positions on a scale, as colours and as text.

local scale = {}

---A number as a short text.
---@param number number
function scale.text(number)
  if number ~= number then return "nan" end
  if number == 0 then return "0" end -- also -0
  return (("%.3g"):format(number):gsub("e([+-])0*(%d)", "e%1%2"))
end

---The least and the largest finite number of a list; nil without one.
---@param list number[]
function scale.range(list)
  local low, high
  for _, number in ipairs(list) do
    if number == number and math.abs(number) < math.huge then
      low, high = math.min(low or number, number), math.max(high or number, number)
    end
  end
  return low, high
end

---A function that returns the position of a number between 0 (low) and 1 (high), on a logarithmic scale if requested.
---@param is_log? boolean
---@return fun(number: number): number
function scale.place(low, high, is_log)
  if is_log then
    low, high = math.log(low), math.log(high)
    return function(number) return high > low and (math.log(number) - low) / (high - low) or 1 end
  end
  return function(number) return high > low and (number - low) / (high - low) or 1 end
end

-- From a low number to a high one; and from negative numbers to positive ones.
local SEQUENTIAL = { { 68, 1, 84 }, { 59, 82, 139 }, { 33, 145, 140 }, { 94, 201, 98 }, { 253, 231, 37 } }
local DIVERGING = { { 33, 102, 172 }, { 103, 169, 207 }, { 247, 247, 247 }, { 239, 138, 98 }, { 178, 24, 43 } }
local LEVELS = 65 -- odd, so that 0 has the middle colour

---The colour at a position from 0 to 1.
---@param place number
---@param is_diverging? boolean
function scale.colour(place, is_diverging)
  local points = is_diverging and DIVERGING or SEQUENTIAL
  place = math.floor(math.max(0, math.min(1, place)) * (LEVELS - 1) + 0.5) / (LEVELS - 1) * (#points - 1)
  local i = math.min(math.floor(place), #points - 2)
  local a, b, share, out = points[i + 1], points[i + 2], place - i, {}
  for c = 1, 3 do out[c] = math.floor(a[c] + (b[c] - a[c]) * share + 0.5) end
  return out
end

scale.BAD = { 255, 0, 255 }
scale.NONE = { 221, 221, 221 }

---The nearest of the terminal's 256 colours.
---@param colour integer[]
function scale.terminal_colour(colour)
  local out = 16
  for c, weight in ipairs { 36, 6, 1 } do
    local level = colour[c] < 48 and 0 or colour[c] < 115 and 1 or math.floor((colour[c] - 35) / 40)
    out = out + weight * level
  end
  return out
end

return scale
