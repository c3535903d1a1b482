-- The table of contents of a checkpoint, for `cbk ls` and the REPL's `:ls`, from the rows of `cbk.leaf_rows`. Each line is
-- made when it is printed: there may be a million of them.

local cbk = require "cbk"
local fold = require "cbk.fold"
local numbers = require "cbk.numbers"
local value_text = require "cbk.value_text"

local listing = {}

local find, concat = string.find, table.concat

local grouped, counted = numbers.grouped, numbers.counted

local TENSORS = require("cbk.tensor_kinds").ALL

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

---A short line for a value that is not a tensor.
---@param value any  as returned by `cbk.raw`, or a plain Lua value
function listing.value_text(value)
  local is_raw = type(value) == "userdata" and PLAIN[cbk.kind(value)]
  if is_raw and cbk.kind(value) ~= "str" then return tostring(value) end
  local text = value_text.text(is_raw and value.value or value, { text = 60, lines = 1 })
  return (text:gsub("\n.*", " …"))
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

--- The cells of a line: for similar leaves, or for a container.
local function cells_of(indent, label, group)
  label = ("  "):rep(indent) .. (label == "" and fold.EMPTY or label)
  if group.type then
    return { label, group.count > 1 and grouped(group.count) .. " ×" or "", group.encoding or group.type, group.shape or "",
      group.shape and cbk.format_size(group.bytes) or "", note_of(group) }
  end
  local class = group.class and cbk.shown(group.class) or "" -- of a record
  if group.tensors == 0 then return { label, "", "", "", "", class } end
  return { label, "", counted(group.tensors, "tensor"), "", cbk.format_size(group.bytes), class }
end

local ALIGN_RIGHT = { false, true, false, false, true, false }
local WIDEST = 100             -- of a cell
local NARROWEST, REST = 20, 40 -- of the labels; of the rest of the line in a narrow terminal

--- The columns that a cell takes. Almost all cells are plain ASCII.
local function width_of(cell)
  if not find(cell, "[\128-\255]") then return #cell end
  return cbk.terminal.columns(cell)
end

--- Six cells as a line, two spaces apart; sizes and counts are aligned to the right.
local function line_of(cells, widths)
  local pieces, last, count = {}, 6, 0
  while last > 1 and cells[last] == "" do last = last - 1 end
  for column = 1, last do
    local cell = cells[column]
    if widths[column] > 0 or cell ~= "" then
      local padding = (" "):rep(math.max(0, widths[column] - width_of(cell)))
      local is_right = ALIGN_RIGHT[column]
      pieces[count + 1] = count > 0 and "  " or ""
      pieces[count + 2] = is_right and padding or cell
      pieces[count + 3] = is_right and cell or column < last and padding or ""
      count = count + 3
    end
  end
  return concat(pieces, "", 1, count)
end

local MOST_WAITING, CELL = 2 ^ 20, 40 -- bytes; of a cell besides its text

--- Calls `print_line` with each line that `each` visits, aligned. The columns are as wide as the first lines need, and grow with later
--- lines. A cell wider than WIDEST, or a label that leaves too little room, affects only its own line.
---@param each fun(visit: fun(indent: integer, label: string, group: LeafGroup))
---@param print_line fun(line: string)
---@param terminal? integer   its columns
local function print_aligned(each, print_line, terminal)
  local widest = math.min(WIDEST, math.max(NARROWEST, (terminal or math.huge) - REST))
  local widths, waiting, bytes = { 0, 0, 0, 0, 0, 0 }, {}, 0
  local function print_waiting()
    for _, cells in ipairs(waiting) do print_line(line_of(cells, widths)) end
    waiting = nil
  end
  each(function(...)
    local cells = cells_of(...)
    for column, cell in ipairs(cells) do
      local width = width_of(cell)
      if width > widths[column] and width <= (column == 1 and widest or WIDEST) then widths[column] = width end
      bytes = bytes + #cell + CELL
    end
    if not waiting then return print_line(line_of(cells, widths)) end
    waiting[#waiting + 1] = cells
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
  print_aligned(function(visit) groups:each(visit) end, print_line, terminal)
end

return listing
