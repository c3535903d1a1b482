-- The text of one value: containers nested, tensors as one line and a few elements from their edges.

local cbk = require "cbk"
local numbers = require "cbk.numbers"
local text_table = require "cbk.text_table"

local value_text = {}

---@class ValueTextOptions
---@field lines? integer
---@field depth? integer
---@field text? integer   longest text, in bytes
---@field digits? integer   of numbers with decimals (default: as many as are needed)
---@field edge? integer   elements shown at each end of a dimension, fewer if `columns` is too small
---@field columns? integer   of the terminal (default: no limit)
---@field in_keys? boolean    items of lists are labelled by their positions in keys, which count from 0 (default: by Lua's indices)
---@field leaves? fun(value: any, options: ValueTextOptions, out: string[])   adds the lines of a tree that has tensors

local EXACT = 17 -- digits
local DEFAULTS = { lines = 100, depth = 8, text = 200, edge = 3, digits = EXACT }

-- --- texts and numbers

local ESCAPES = { ["\n"] = "\\n", ["\t"] = "\\t", ['"'] = '\\"', ["\\"] = "\\\\" }

--- The first bytes of a text, without half a character at their end.
local function beginning(text, bytes)
  if #text <= bytes then return text end
  return (text:sub(1, bytes):gsub("[\192-\255]?[\128-\191]*$", ""))
end

--- A Lua string literal that is safe to print on a terminal. What is not shown of a long text is not escaped, either.
local function quoted(text, limit)
  local start = beginning(text, limit)
  local escaped = cbk.shown((start:gsub('[\n\t"\\]', ESCAPES)))
  if #start < #text or #escaped > limit then escaped = beginning(escaped, limit) .. "…" end
  return '"' .. escaped .. '"'
end

--- The shortest text that is exact, or has `most` digits: 0.1, 1e-05, 3.
local function number_text(number, most)
  if number ~= number then return "nan" end
  if number == math.huge then return "inf" elseif number == -math.huge then return "-inf" end
  if number == 0 and 1 / number < 0 then return "-0" end
  if number % 1 == 0 and math.abs(number) < 2 ^ 53 then return ("%d"):format(number) end
  for digits = 6, most do
    local text = ("%%.%dg"):format(digits):format(number)
    if tonumber(text) == number or digits == most then return text end
  end
end

-- --- tensors

--- A function that returns a value's text, aligned to the right with the widest of `values`.
local function aligned_right(values, text_of)
  local width = 0
  for _, value in ipairs(values) do width = math.max(width, #text_of(value)) end
  return function(value)
    local text = text_of(value)
    return (" "):rep(width - #text) .. text
  end
end

--- One format for all elements of a sample, as wide as the widest.
local function element_format(flat)
  local smallest, largest, whole = math.huge, 0, true
  for _, x in ipairs(flat) do
    if type(x) ~= "number" then
      return aligned_right(flat, numbers.whole_text) -- integers beyond 2^53, or bools
    end
    local size = math.abs(x)
    if x == x and size < math.huge and size > 0 then
      smallest, largest = math.min(smallest, size), math.max(largest, size)
      whole = whole and x % 1 == 0
    end
  end
  local pattern = "%.4f"
  if whole and largest <= 2 ^ 53 then pattern = "%.0f" elseif largest >= 1e5 or smallest < 1e-3 then pattern = "%.4e" end
  return aligned_right(flat, function(x) return pattern:format(x) end)
end

--- Indices of the first and last `edge` positions, or nil when all fit.
local function edges(extent, edge)
  if extent <= 2 * edge then return nil end
  local list = {}
  for i = 0, edge - 1 do list[#list + 1] = i end
  for i = edge, 1, -1 do list[#list + 1] = extent - i end
  return list
end

--- The elements at the edges as nested lists, and the position of the gap in each dim (nil: none).
local function sample(tensor, edge)
  local shape, gaps = tensor:shape(), {}
  local small = tensor
  for dim, extent in ipairs(shape) do
    local wanted = dim > #shape - 2 and edge or 1
    local indices = edges(extent, wanted)
    if indices then
      small = small:index_select(dim - 1, indices)
      gaps[dim] = wanted
    end
  end
  return small:tolist(), gaps
end

local function flatten(list, out)
  if type(list) ~= "table" then
    out[#out + 1] = list
  else
    for _, item in ipairs(list) do flatten(item, out) end
  end
  return out
end

local function grid(list, gaps, dim, format, indent)
  local parts, is_row = {}, type(list[1]) ~= "table"
  for i, item in ipairs(list) do
    parts[#parts + 1] = is_row and format(item) or grid(item, gaps, dim + 1, format, indent .. " ")
    if gaps[dim] == i then parts[#parts + 1] = "…" end
  end
  return "[" .. table.concat(parts, is_row and ", " or ",\n" .. indent .. " ") .. "]"
end

local function widest_line(text)
  local widest = 0
  for line in text:gmatch "[^\n]+" do widest = math.max(widest, cbk.terminal.columns(line)) end
  return widest
end

---"Tensor float32 [50257, 768], 147.2 MiB, model.bin at 1024"
---@param tensor Tensor
function value_text.tensor_header(tensor)
  local text = ("%s, %s"):format(tostring(tensor), cbk.format_size(tensor:nbytes()))
  local storage = tensor:storage()
  if not storage then return text .. ", computed" end
  if storage.file then text = ("%s, %s at %d"):format(text, cbk.shown(cbk.fs.basename(storage.file)), storage.position) end
  return text
end

local function tensor_text(tensor, options)
  local header, problem = value_text.tensor_header(tensor), tensor:problem()
  if problem then return header .. "\n  " .. problem end
  if tensor:numel() == 0 or tensor:dim() > 6 or tensor.dtype:find "^complex" then return header end
  for edge = options.edge, 1, -1 do
    local list, gaps = sample(tensor, edge)
    local format = element_format(flatten(list, {}))
    local text = "  " .. (type(list) == "table" and grid(list, gaps, 1, format, "  ") or format(list))
    if edge == 1 or not options.columns or widest_line(text) <= options.columns then return header .. "\n" .. text end
  end
end

-- --- trees

local CONTAINERS = { dict = true, ordereddict = true, counter = true, defaultdict = true, list = true, tuple = true, set = true,
  frozenset = true, deque = true, torch_size = true }
local TENSORS = require("cbk.tensor_kinds").ALL

local function is_tree(value) return type(value) == "userdata" and CONTAINERS[cbk.kind(value)] end

--- A value on one line.
local function short(value, options)
  local kind = type(value)
  if kind == "string" then return quoted(value, options.text) end
  if kind == "number" then return number_text(value, options.digits) end
  if kind == "cdata" then return (tostring(value):gsub("U?LL$", "")) end
  return tostring(value)
end

--- Whether a tree has tensors. A tree that contains itself has no list of leaves; it is shown nested.
local function has_tensors(value)
  local ok, tensors = pcall(cbk.tensors, value)
  return ok and tensors() ~= nil
end

local WIDEST_INLINE = 100

---The texts of a list's plain values, and how wide they are on one line; nil if it has containers.
---@return string[]|nil parts, integer|nil width
local function list_parts(value, options)
  local parts, width = {}, 0
  for _, item in cbk.items(value) do
    if is_tree(item) or type(item) == "table" then return nil end
    parts[#parts + 1] = short(item, options)
    width = width + #parts[#parts] + 2
  end
  return parts, width
end

---A list of plain values on one line: [1, 2, 3], or [1, 2, … 99] (99 items)
---@param used? integer   columns before it
local function inline_list(value, options, used)
  local widest = math.min(WIDEST_INLINE, (options.columns or WIDEST_INLINE) - (used or 0))
  local parts, width = list_parts(value, options)
  if not parts or width <= widest then return parts and "[" .. table.concat(parts, ", ") .. "]" end
  local last = ("… %s] (%s)"):format(parts[#parts], numbers.counted(#parts, "item"))
  local first, room = {}, math.min(WIDEST_INLINE / 2, widest - 1 - cbk.terminal.columns(last))
  if options.columns and room < 0 then return ("[…] (%s)"):format(numbers.counted(#parts, "item")) end
  for i = 1, #parts - 1 do
    room = room - #parts[i] - 2
    if room < 0 then break end
    first[i] = parts[i]
  end
  return ("[%s%s"):format(table.concat(first, ", ") .. (#first > 0 and ", " or ""), last)
end

---The lines of a list of plain values that is too long for one.
local function list_lines(parts, options)
  local lines, room = {}, math.min(options.columns or WIDEST_INLINE, WIDEST_INLINE) - 4
  local line = ""
  for i, part in ipairs(parts) do
    local piece = i < #parts and part .. "," or part
    if line ~= "" and #line + 1 + #piece > room then
      lines[#lines + 1], line = "  " .. line, ""
      if #lines == options.lines then
        lines[#lines + 1] = "  … more lines"
        return lines
      end
    end
    line = line == "" and piece or line .. " " .. piece
  end
  lines[#lines + 1] = "  " .. line
  return lines
end

--- A short table of named plain values on one line, in Lua's syntax: { a = 1, b = "x" }
local function inline_table(value, options)
  if type(value) ~= "table" then return nil end
  local parts, width = {}, 0
  for key, item in cbk.items(value) do
    if is_tree(item) or type(item) == "table" or type(item) == "userdata" or type(item) == "function" then return nil end
    local name = type(key) == "string" and key:find "^[%a_][%w_]*$" and key or "[" .. short(key, options) .. "]"
    parts[#parts + 1] = ("%s = %s"):format(name, short(item, options))
    width = width + #parts[#parts] + 2
    if width > 100 then return nil end
  end
  return "{ " .. table.concat(parts, ", ") .. " }"
end

local function is_list(value)
  if type(value) == "table" then return #value > 0 end
  return cbk.kind(value):find "dict" == nil and cbk.kind(value) ~= "counter"
end

local MOST_COLUMNS = 12

--- The cell of a value in a table of records; nil if it does not fit one.
local function cell_of(item, options)
  local is_nested = is_tree(item) or type(item) == "table" and getmetatable(item) == nil
  if is_nested then return is_list(item) and inline_list(item, options) or nil end
  if type(item) == "userdata" and TENSORS[cbk.kind(item)] then return tostring(item) end
  return short(item, options)
end

--- The names of the records' fields in order of first occurrence, and the cells of each record.
local function fields_of(value, options)
  local names, known, rows = {}, {}, {}
  for i, item in ipairs(value) do
    if type(item) ~= "table" or getmetatable(item) ~= nil or next(item) == nil then return nil end
    rows[i] = {}
    for key, field in cbk.items(item) do
      local cell = cell_of(field, options)
      if type(key) ~= "string" or not cell or #cell > 40 then return nil end
      if not known[key] then
        names[#names + 1], known[key] = key, true
        if #names > MOST_COLUMNS then return nil end
      end
      rows[i][key] = { text = cell, is_number = type(field) == "number" or type(field) == "cdata" }
    end
    if #rows > options.lines then break end
  end
  return names, rows
end

---The label of a list's item: its index in Lua, or its position in a key.
local function position_label(i, options) return options.in_keys and tostring(i - 1) or ("[%d]"):format(i) end

--- A list of records with plain fields, as lines of a table with a column for each field; nil for other lists.
local function record_lines(value, options)
  if type(value) ~= "table" or #value < 2 then return nil end
  for key in pairs(value) do
    if type(key) ~= "number" then return nil end
  end
  local names, rows = fields_of(value, options)
  if not names then return nil end
  local columns, lines = { { title = "", right = true } }, {}
  for c, name in ipairs(names) do
    local is_number = true
    for _, row in ipairs(rows) do is_number = is_number and (not row[name] or row[name].is_number) end
    columns[c + 1] = { title = cbk.shown(name), right = is_number, weight = #names - c }
  end
  for i, row in ipairs(rows) do
    lines[i] = { position_label(i, options) }
    for c, name in ipairs(names) do lines[i][c + 1] = row[name] and row[name].text or "" end
  end
  return (text_table.lines(columns, lines))
end

--- Adds nested lines, up to one more than requested.
local function nest_lines(value, indent, options, seen, out)
  local has_positions = is_list(value)
  for key, item in cbk.items(value) do
    if #out > options.lines then return end
    local label = type(key) == "string" and (key:find "^[%w_.-]+$" and key or quoted(key, options.text))
      or has_positions and type(key) == "number" and position_label(key, options) or short(key, options)
    local is_container = is_tree(item) or type(item) == "table" and getmetatable(item) == nil
    local inline = is_container and is_list(item) and inline_list(item, options, #indent + #label + 2)
    inline = inline or is_container and not is_list(item) and inline_table(item, options)
    local records = is_container and not inline and record_lines(item, options)
    if records then
      out[#out + 1] = ("%s%s:"):format(indent, label)
      for _, line in ipairs(records) do out[#out + 1] = indent .. "  " .. line end
    elseif not is_container or inline then
      out[#out + 1] = ("%s%s: %s"):format(indent, label, inline or short(item, options))
    elseif seen[item] then
      out[#out + 1] = ("%s%s: (itself)"):format(indent, label)
    elseif #indent / 2 > options.depth then
      out[#out + 1] = ("%s%s: %s"):format(indent, label, tostring(item))
    else
      out[#out + 1] = ("%s%s: %s"):format(indent, label, type(item) == "table" and "table" or tostring(item))
      seen[item] = true
      nest_lines(item, indent .. "  ", options, seen, out)
      seen[item] = nil
    end
  end
end

local function tree_text(value, options)
  local out = { type(value) == "table" and "table" or tostring(value) }
  if type(value) ~= "table" and has_tensors(value) then
    if options.leaves then options.leaves(value, options, out) else out[2] = "  …" end
    return table.concat(out, "\n")
  end
  local parts, width = nil, nil
  if is_list(value) and options.lines > 1 then parts, width = list_parts(value, options) end
  if parts and width > WIDEST_INLINE then return out[1] .. "\n" .. table.concat(list_lines(parts, options), "\n") end
  local inline = is_list(value) and inline_list(value, options) or not is_list(value) and inline_table(value, options)
  if inline then return inline end
  local records = record_lines(value, options)
  if records then
    for i = options.lines + 1, #records do records[i] = i == options.lines + 1 and "  … more lines" or nil end
    return table.concat(records, "\n")
  end
  nest_lines(value, "  ", options, { [value] = true }, out)
  if #out > options.lines then out[#out] = "  … more lines" end
  return table.concat(out, "\n")
end

--- A tensor of a type that only TensorFlow has. Its texts are read only if there is room for them.
local function foreign_text(object, options)
  local state = object.state
  if options.lines <= 1 then return tostring(object) end
  if state.dtype ~= "string" then return tostring(object) .. tensor_text(state.elements, options):gsub("^[^\n]*", "") end
  local out, texts = { tostring(object) }, cbk.tensorflow.texts(object)
  for i = 1, math.min(#texts, options.lines) do
    local is_text = pcall(cbk.json, beginning(texts[i], options.text))
    out[#out + 1] = "  " .. (is_text and quoted(texts[i], options.text) or cbk.format_size(#texts[i]) .. ", not UTF-8: "
      .. cbk.hex(texts[i]:sub(1, 32)) .. (#texts[i] > 32 and "…" or ""))
  end
  if #texts > options.lines then out[#out + 1] = ("  … %d more"):format(#texts - options.lines) end
  return table.concat(out, "\n")
end

---A value as text.
---@param value any
---@param options? ValueTextOptions
---@return string
function value_text.text(value, options)
  options = setmetatable(options or {}, { __index = DEFAULTS })
  if type(value) == "table" then
    local meta = getmetatable(value)
    if (meta and meta.__tostring) or next(value) == nil then return meta and cbk.shown(tostring(value), true) or "{}" end
    return tree_text(value, options)
  end
  if type(value) ~= "userdata" then return short(value, options) end
  local kind = cbk.kind(value)
  if TENSORS[kind] then return tensor_text(value, options) end
  if cbk.compute.is_tensor(value) then
    local line = tostring(value) -- raises an error if its value cannot be read
    return value:dim() < 2 and line or tensor_text(cbk.compute.to_lazy(value), options)
  end
  if CONTAINERS[kind] then return tree_text(value, options) end
  if kind == "Checkpoint" then return tostring(value) .. "\n" .. value_text.text(value.root, options) end
  if kind == "object" and value.type == "tensorflow.tensor" then return foreign_text(value, options) end
  if kind == "object" and is_tree(value.state) then return tostring(value) .. "\n" .. tree_text(value.state, options) end
  return tostring(value)
end

return value_text
