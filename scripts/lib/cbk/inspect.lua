-- Values as text for people: folded trees, and tensors as one line with a few elements from their edges. A tensor is never
-- read completely for printing.

local cbk = require "cbk"
local listing = require "cbk.listing"
local value_text = require "cbk.value_text"

local inspect = {}

local print = print -- Lua's own, which expressions cannot replace

---"Tensor float32 [50257, 768], 147.2 MiB, model.bin at 1024"
---@param tensor Tensor
function inspect.tensor_header(tensor) return value_text.tensor_header(tensor) end

--- The first lines of a listing, as many as requested, and the number of all lines.
local function list_lines(value, options, out)
  local count = #out
  listing.tree(cbk.leaf_rows(value), function(line)
    count = count + 1
    if count <= options.lines then out[count] = "  " .. line end
  end, options.columns and options.columns - 2)
  if count > options.lines then out[#out + 1] = ("  … %d more lines"):format(count - options.lines) end
end

---A value as text for people.
---@param value any
---@param options? ValueTextOptions
---@return string
function inspect.text(value, options)
  local own = { leaves = list_lines }
  for name, option in pairs(options or {}) do own[name] = option end
  return value_text.text(value, own)
end

---Prints values, each from a line of its own. Texts are printed as they are, byte for byte, but for a terminal: there
---control characters are escaped (line feeds and tabs stay), for texts out of a checkpoint are not to be trusted.
function inspect.print(...)
  local terminal = cbk.terminal.is_tty "stdout"
  for i = 1, select("#", ...) do
    local value = select(i, ...)
    if type(value) ~= "string" then
      print(inspect.text(value))
    else
      print(terminal and cbk.shown(value, true) or value)
    end
  end
end

---Lua's `print` for expressions and the prompt. On a terminal, control characters other than line feeds and tabs are escaped.
function inspect.print_line(...)
  if not cbk.terminal.is_tty "stdout" then return print(...) end
  local texts = {}
  for i = 1, select("#", ...) do texts[i] = cbk.shown(tostring((select(i, ...))), true) end
  print(table.concat(texts, "\t"))
end

return inspect
