-- Colours for printed values: strings, numbers, words of Lua, and the names before values.

local colour = require "cbk.colour"

local colours = {}

local WORDS = { ["nil"] = true, ["true"] = true, ["false"] = true, null = true, nan = true, inf = true, None = true, ["-inf"] = true }

--- The colour of a piece of a line; nil: none.
local function kind_of(piece)
  if WORDS[piece] then return "magenta" end
  if tonumber(piece) and piece:find "^[-%d.]" then return "cyan" end
end

--- The last byte of a string that begins at `at`.
local function string_end(line, at)
  local stop = at + 1
  while stop <= #line and line:sub(stop, stop) ~= '"' do stop = stop + (line:sub(stop, stop) == "\\" and 2 or 1) end
  return math.min(stop, #line)
end

local function paint_line(line)
  local out, at = {}, 1
  local label, colon = line:match '^(%s*[^%s"%[%]{}(),:]+)(:)'
  if label and line:find("^[: ]", #label + 1) then
    out[1] = colour.text("blue", label) .. colon
    at = #label + 2
  end
  while at <= #line do
    if line:sub(at, at) == '"' then
      local stop = string_end(line, at)
      out[#out + 1] = colour.text("green", line:sub(at, stop))
      at = stop + 1
    else
      local piece = line:match('^[^%s"%[%]{}(),=:]+', at) or line:sub(at, at)
      local kind = kind_of(piece)
      out[#out + 1] = kind and colour.text(kind, piece) or piece
      at = at + #piece
    end
  end
  return table.concat(out)
end

---The text of a value, in colours. Only colour escapes are added.
---@param text string
function colours.value(text)
  local out = {}
  for line in (text .. "\n"):gmatch "(.-)\n" do out[#out + 1] = paint_line(line) end
  return table.concat(out, "\n")
end

return colours
