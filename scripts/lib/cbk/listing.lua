-- The table of contents of a checkpoint, for `cbk ls` and the REPL's `:ls`, from the rows of `cbk.leaf_rows`. Each line is
-- made when it is printed: there may be a million of them.

local cbk = require "cbk"
local fold = require "cbk.fold"
local numbers = require "cbk.numbers"
local shortened = require "cbk.shortened"
local tensor_kinds = require "cbk.tensor_kinds"
local value_text = require "cbk.value_text"

local listing = {}

local find, concat = string.find, table.concat

local grouped, counted = numbers.grouped, numbers.counted

local TENSORS = tensor_kinds.ALL

-- --- values

local H5 = { ["cerebras-h5"] = true, ["flat-h5"] = true }

---In an H5 checkpoint, the first tensor at the top whose key has a dot; nil if there is none. Such a file is a state dict, not a tree.
---@param checkpoint Checkpoint
---@return string|nil
function listing.flat_key(checkpoint)
  local root = checkpoint.root
  if not H5[checkpoint.format] or cbk.kind(root) ~= "dict" then return nil end
  for key, value in cbk.items(root) do
    if TENSORS[cbk.kind(value)] and tostring(key):find(".", 1, true) then return tostring(key) end
  end
end

---"torch-zip 3", with the number of files if there are several.
---@param checkpoint Checkpoint
function listing.format_text(checkpoint)
  local version = checkpoint.version ~= "" and " " .. cbk.shown(checkpoint.version) or ""
  local files = #checkpoint.files > 1 and (" in %d files"):format(#checkpoint.files) or ""
  local class = cbk.kind(checkpoint.root) == "object" and ", a " .. cbk.shown(checkpoint.root.type) or ""
  local flat = checkpoint.format ~= "flat-h5" and listing.flat_key(checkpoint) and ", flat keys" or ""
  return checkpoint.format .. version .. files .. class .. flat
end

---What `--provenance` wrote into the file: version, command, folder, sources; nil without it.
---@param checkpoint Checkpoint
---@return Dict|nil
function listing.origin(checkpoint)
  local metadata = checkpoint.metadata
  local text = cbk.kind(metadata) == "dict" and metadata.cbk_provenance
  if type(text) ~= "string" then return nil end
  local ok, origin = pcall(cbk.config.parse, text, "json")
  local is_origin = ok and cbk.kind(origin) == "dict" and cbk.kind(origin.cbk) == "str" and cbk.kind(origin.command) == "list"
  return is_origin and origin or nil
end

---"written by cbk 0.2.0: cbk copy model.mdl model.safetensors"
---@param origin Dict
---@return string
function listing.origin_text(origin)
  local words = {}
  for i = 1, #origin.command do words[i] = tostring(origin.command[i]) end
  return ("written by cbk %s: cbk %s"):format(cbk.shown(origin.cbk), cbk.shown(table.concat(words, " ")))
end

local PLAIN = { bool = true, int = true, float = true, str = true }

local DIGITS = 6

---A float for people: whole numbers as they are, others with 6 digits.
local function float_text(float)
  local exact, text = tostring(float), ("%%.%dg"):format(DIGITS):format(float.value)
  return float.value % 1 ~= 0 and #text < #exact and text or exact
end

---A short line for a value that is not a tensor.
---@param value any  as returned by `cbk.raw`, or a plain Lua value
---@param is_exact? boolean   with all digits of numbers
function listing.value_text(value, is_exact)
  local is_raw = type(value) == "userdata" and PLAIN[cbk.kind(value)]
  if is_raw and cbk.kind(value) == "float" and not is_exact then return float_text(value) end
  if is_raw and cbk.kind(value) ~= "str" then return tostring(value) end
  local text = value_text.text(is_raw and value.value or value, { text = 60, lines = 1, digits = not is_exact and DIGITS or nil })
  return (text:gsub("\n.*", " …"))
end

---The text of a plain value, or of a tensor without dims, which is read; nil for other tensors.
---@param value any   as returned by `cbk.raw`
---@return string|nil
function listing.plain_text(value)
  if not tensor_kinds.is_tensor(value) then return listing.value_text(value) end
  if value:dim() > 0 or value:problem() then return nil end
  return tostring(value:item())
end

---Two different values as short texts that differ, unless no text says how.
---@return string, string
function listing.pair_texts(a, b)
  local text_a, text_b = listing.value_text(a), listing.value_text(b)
  if text_a ~= text_b then return text_a, text_b end
  return listing.value_text(a, true), listing.value_text(b, true)
end

local LONGEST_JSON = 2 ^ 22 -- bytes

---Sets `value` of a JSON row, or `text` if JSON cannot represent the value ("inf", "nan", bytes, objects) or its JSON is very long.
---@param out Dict
---@param value any
---@param text_of fun(value: any): string
function listing.set_json_value(out, value, text_of)
  local is_json = pcall(cbk.json, value, { shown = true, limit = LONGEST_JSON })
  if is_json then out.value = value else out.text = text_of(value) end
end

-- --- totals

---"291 tensors, 6,738,415,616 elements, 12.6 GiB (bfloat16)"
---@param totals LeafTotals
function listing.totals_text(totals)
  local parts = {}
  for _, dtype in ipairs(totals.dtypes) do
    local size = #totals.dtypes > 1 and " " .. cbk.format_size(dtype.bytes) or ""
    parts[#parts + 1] = dtype.dtype .. size
  end
  local text = ("%s, %s, %s"):format(counted(totals.tensors, "tensor"), counted(totals.numel, "element"),
    cbk.format_size(totals.bytes))
  if #parts > 0 then text = ("%s (%s)"):format(text, table.concat(parts, ", ")) end
  if totals.tied > 0 then
    text = ("%s, %s tied (%s without them)"):format(text, grouped(totals.tied), cbk.format_size(totals.stored))
  end
  if totals.values > 0 then text = ("%s, %s"):format(text, counted(totals.values, "other value")) end
  return text
end

-- --- lines

local VALUES_WIDTH = 40

local function values_text(group)
  local texts, seen, width = {}, {}, 0
  for _, value in ipairs(group.values) do
    local text = listing.value_text(value)
    if not seen[text] then
      seen[text] = true
      texts[#texts + 1] = text
      width = width + #text + 2
      if width > VALUES_WIDTH and #texts > 1 then
        texts[#texts] = "…"
        return concat(texts, ", ")
      end
    end
  end
  if group.more_values then texts[#texts + 1] = "…" end
  return concat(texts, ", ")
end

local function note_of(group)
  if group.problem then return group.problem end
  if group.values then return values_text(group) end
  if group.tied_to then return "= " .. fold.shown(group.tied_to) end
  if group.shares then return "shares bytes with " .. fold.shown(group.shares) end
  return group.role == "tensor" and "" or group.role
end

---@class ListingLine
---@field label string    with its indent
---@field indent string
---@field note string
---@field size string      "" for values
---@field summary? string  of a container: over the three columns of leaves
---@field count? string
---@field type? string
---@field shape? string    nil: a value, whose note follows its type

---The line of similar leaves, or of a container.
---@return ListingLine
local function line_for(indent, label, group)
  indent = ("  "):rep(indent)
  label = indent .. (label == "" and fold.EMPTY or label)
  if group.type then
    return { label = label, indent = indent, count = group.count > 1 and grouped(group.count) .. " ×" or "",
      type = group.encoding or group.type,
      shape = group.shape, size = group.shape and cbk.format_size(group.bytes) or "", note = note_of(group) }
  end
  local class = group.class and cbk.shown(group.class) or "" -- of a record
  if group.tensors == 0 then return { label = label, indent = indent, summary = "", size = "", note = class } end
  return { label = label, indent = indent, summary = counted(group.tensors, "tensor"), size = cbk.format_size(group.bytes), note = class }
end

local WIDEST = 100   -- of a cell
local NARROWEST = 20 -- of the labels in a narrow terminal
local REST = 40      -- of a line of which the label is whole
local LEAST_NOTE = 8

---The columns that a text takes. Almost all are plain ASCII.
local function width_of(text)
  if not find(text, "[\128-\255]") then return #text end
  return cbk.terminal.columns(text)
end

local function padded(text, width, is_right)
  local padding = (" "):rep(width - width_of(text))
  return is_right and padding .. text or text .. padding
end

---The columns between the labels and the sizes.
local function middle_width(widths)
  local sum = 0
  for _, column in ipairs { "count", "type", "shape" } do
    if widths[column] > 0 then sum = sum + widths[column] + (sum > 0 and 2 or 0) end
  end
  return math.max(sum, widths.summary)
end

---@param line ListingLine
---@return string
local function middle_of(line, widths)
  if line.summary then return padded(line.summary, middle_width(widths)) end
  local cells = {}
  if widths.count > 0 then cells[1] = padded(line.count, widths.count, true) end
  cells[#cells + 1] = padded(line.type, widths.type)
  if not line.shape then return concat(cells, "  ") end
  if widths.shape > 0 then cells[#cells + 1] = padded(line.shape, widths.shape) end
  return padded(concat(cells, "  "), middle_width(widths))
end

---A note in the room that is left: of a value its beginning, of a key its end.
local function note_within(line, room)
  if width_of(line.note) <= room then return line.note end
  if line.shape then return shortened(line.note, room) end
  local text = line.note:sub(1, 4 * room) -- a character has at most four bytes
  while width_of(text) > room - 1 do text = text:sub(1, #text - #text:match "[\128-\191]*$" - 1) end
  return text .. "…"
end

---A line as text, two spaces between its cells.
---@param line ListingLine
---@param widths table<string, integer>
---@param terminal? integer   its columns
---@return string
local function text_of(line, widths, terminal)
  local label = line.label
  if terminal and width_of(label) > widths.label then
    label = line.indent .. shortened(label:sub(#line.indent + 1), math.max(widths.label - #line.indent, LEAST_NOTE))
  end
  local text = ("%s  %s"):format(padded(label, widths.label), middle_of(line, widths))
  if line.size ~= "" then text = ("%s  %s"):format(text, padded(line.size, widths.size, true)) end
  if line.note == "" then return text:match "^(.*%S)" or "" end
  local room = terminal and terminal - width_of(text) - 2 or math.huge
  return ("%s  %s"):format(text, room < LEAST_NOTE and line.note or note_within(line, room))
end

local MOST_WAITING, LINE = 2 ^ 20, 240 -- bytes; of a line besides its texts
local COLUMNS = { "label", "summary", "count", "type", "shape", "size" }

---Calls `print_line` with each line that `each` visits, aligned. The columns are as wide as the first lines need, and grow with later
---lines. A cell wider than WIDEST affects only its own line. In a terminal, labels are shortened so that a line fits.
---@param each fun(visit: fun(indent: integer, label: string, group: LeafGroup))
---@param print_line fun(line: string)
---@param terminal? integer   its columns
---@param is_whole? boolean    no label is shortened: a long one moves its own line
local function print_aligned(each, print_line, terminal, is_whole)
  local widths, waiting, bytes = { label = 0, summary = 0, count = 0, type = 0, shape = 0, size = 0 }, {}, 0
  local widest = is_whole and terminal and math.min(WIDEST, math.max(NARROWEST, terminal - REST)) or WIDEST -- label
  local function print_one(line)
    local fitting = widths
    if terminal then
      local room = terminal - 2 - middle_width(widths) - (widths.size > 0 and widths.size + 2 or 0)
      fitting = setmetatable({ label = math.min(widths.label, math.max(room, NARROWEST)) }, { __index = widths })
    end
    print_line(text_of(line, fitting, not is_whole and terminal or nil))
  end
  local function print_waiting()
    for _, line in ipairs(waiting) do print_one(line) end
    waiting = nil
  end
  each(function(...)
    local line = line_for(...)
    for _, column in ipairs(COLUMNS) do
      local cell = line[column] or ""
      local width = width_of(cell)
      if width > widths[column] and width <= (column == "label" and widest or WIDEST) then widths[column] = width end
      bytes = bytes + #cell
    end
    if not waiting then return print_one(line) end
    waiting[#waiting + 1], bytes = line, bytes + #line.note + LINE
    if bytes > MOST_WAITING then print_waiting() end
  end)
  if waiting then print_waiting() end
end

---Prints the rows as a tree, repeated layers folded into "layers.{0..31}".
---@param rows LeafRows
---@param print_line fun(line: string)
---@param terminal? integer   its columns
---@param options? { unfolded: boolean }
function listing.tree(rows, print_line, terminal, options)
  local groups = rows:groups(options)
  print_aligned(function(visit) groups:outline(visit) end, print_line, terminal)
end

---Prints one line per leaf with its whole key.
---@param rows LeafRows
---@param print_line fun(line: string)
---@param terminal? integer   its columns
function listing.flat(rows, print_line, terminal)
  local groups = rows:groups { unfolded = true }
  print_aligned(function(visit) groups:each(visit) end, print_line, terminal, true)
end

return listing
