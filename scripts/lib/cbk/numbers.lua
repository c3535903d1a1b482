-- Numbers as text: for people, and for JSON, which cannot represent all of them.

local numbers = {}

---A percentage with enough decimals that it shows 0 or 100 only if it is exactly that: "99.99 %".
---@param part number
---@param whole number
---@return string
function numbers.percent(part, whole)
  for decimals = 1, 15 do
    local text = ("%." .. decimals .. "f"):format(100 * part / whole)
    local is_rounded_off = tonumber(text) == 0 and part > 0 or tonumber(text) == 100 and part < whole
    if not is_rounded_off or decimals == 15 then return (text:gsub("%.?0+$", "")) .. " %" end
  end
end

---12345678 → "12,345,678"
---@param number integer
function numbers.grouped(number)
  local text = ("%d"):format(number)
  return (text:reverse():gsub("(%d%d%d)", "%1,"):reverse():gsub("^(-?),", "%1"))
end

---"1 tensor", "20,000 tensors"
function numbers.counted(number, noun)
  return ("%s %s%s"):format(numbers.grouped(number), noun, number == 1 and "" or "s")
end

---The digits of a whole number.
---@param number number|ffi.cdata*|Value
function numbers.whole_text(number)
  if type(number) == "number" then return ("%.0f"):format(number) end
  return (tostring(number):gsub("U?LL$", ""))
end

---A whole number for JSON; from 2^53 on, its digits as a string.
---@param number number|ffi.cdata*|Value
---@return number|string
function numbers.json_whole(number)
  if type(number) == "number" and math.abs(number) < 2 ^ 53 then return number end
  return numbers.whole_text(number)
end

---A number for JSON, with "inf", "-inf" and "nan" as strings.
---@param number number|ffi.cdata*|Value
---@return number|string
function numbers.json_number(number)
  if type(number) ~= "number" then return numbers.whole_text(number) end
  if number ~= number then return "nan" end
  if math.abs(number) == math.huge then return number > 0 and "inf" or "-inf" end
  return number
end

return numbers
