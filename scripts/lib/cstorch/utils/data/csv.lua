-- Records of CSV files.

local csv = {}

local QUOTE, COMMA = ('"'):byte(), (","):byte()

---Whether a text has a quote that no other one closes.
---@param text string
---@return boolean
function csv.is_open(text)
  local is_open, at = false, text:find('"', 1, true)
  while at do
    is_open, at = not is_open, text:find('"', at + 1, true)
  end
  return is_open
end

---The fields of a record.
---@param record string   with or without the end of its line
---@return string[]|nil, string|nil problem
function csv.fields(record)
  local out, at, size = {}, 1, #(record:gsub("[\r\n]+$", ""))
  repeat
    if record:byte(at) == QUOTE then
      local parts, from = {}, at + 1
      while true do
        local close = record:find('"', from, true)
        if not close then return nil, "a quote is not closed" end
        parts[#parts + 1] = record:sub(from, close - 1)
        if record:byte(close + 1) ~= QUOTE then
          at = close + 1
          break
        end
        parts[#parts + 1], from = '"', close + 2
      end
      if at <= size and record:byte(at) ~= COMMA then return nil, "a quoted field has text after it" end
      out[#out + 1] = table.concat(parts)
    else
      local comma = record:find(",", at, true)
      local last = comma and comma <= size and comma - 1 or size
      out[#out + 1] = record:sub(at, last)
      at = last + 1
    end
    at = at + 1
  until at > size + 1
  return out
end

return csv
