-- The table of contents of a checkpoint: what `cbk ls` and the REPL's `:ls` print of the rows of `cbk.leaf_rows`.

local cbk = require "cbk"
local extents = require "cbk.extents"
local fold = require "cbk.fold"
local natural = require "cbk.natural"

local listing = {}

local byte, find, sub, concat = string.byte, string.find, string.sub, table.concat
local DOT = byte "."

-- --- words and numbers

---A share in percent, with as many decimals as it takes to be neither 0 nor 100 where it is not: "99.99 %".
---@param part number
---@param whole number
---@return string
function listing.percent(part, whole)
  for decimals = 1, 15 do
    local text = ("%." .. decimals .. "f"):format(100 * part / whole)
    local is_rounded_off = tonumber(text) == 0 and part > 0 or tonumber(text) == 100 and part < whole
    if not is_rounded_off or decimals == 15 then return (text:gsub("%.?0+$", "")) .. " %" end
  end
end

---12345678 → "12,345,678"
---@param number integer
function listing.grouped(number)
  local text = ("%d"):format(number)
  return (text:reverse():gsub("(%d%d%d)", "%1,"):reverse():gsub("^(-?),", "%1"))
end
local grouped = listing.grouped

---"1 tensor", "20,000 tensors"
function listing.counted(number, noun)
  return ("%s %s%s"):format(grouped(number), noun, number == 1 and "" or "s")
end
local counted = listing.counted

---"torch-zip 3", with the number of files if there are several.
---@param checkpoint Checkpoint
function listing.format_text(checkpoint)
  local version = checkpoint.version ~= "" and " " .. cbk.shown(checkpoint.version) or ""
  local files = #checkpoint.files > 1 and (" in %d files"):format(#checkpoint.files) or ""
  return checkpoint.format .. version .. files
end

local PLAIN = { bool = true, int = true, float = true, str = true }

---A value that is no tensor, on a short line.
---@param value any  as `cbk.raw` gives it, or a plain Lua value
function listing.value_text(value)
  local inspect = require "cbk.inspect"
  local is_raw = type(value) == "userdata" and PLAIN[cbk.kind(value)]
  if is_raw and cbk.kind(value) ~= "str" then return tostring(value) end
  return (inspect.text(is_raw and value.value or value, { text = 60, lines = 1 }):gsub("\n.*", " …"))
end

---Sets `value` of a row of JSON, or `text` where JSON cannot say it ("inf", "nan", bytes, objects).
---@param out Dict
---@param value any
---@param text_of fun(value: any): string
function listing.set_json_value(out, value, text_of)
  local is_json = pcall(cbk.json, value, { shown = true })
  if is_json then out.value = value else out.text = text_of(value) end
end

---The digits of a whole number.
---@param number number|ffi.cdata*|Value
function listing.whole_text(number)
  if type(number) == "number" then return ("%.0f"):format(number) end
  return (tostring(number):gsub("U?LL$", ""))
end

---A whole number for JSON: its digits from 2^53 on.
---@param number number|ffi.cdata*|Value
---@return number|string
function listing.json_whole(number)
  if type(number) == "number" and math.abs(number) < 2 ^ 53 then return number end
  return listing.whole_text(number)
end

---A number for JSON, which has no spelling for "inf", "-inf" and "nan".
---@param number number|ffi.cdata*|Value
---@return number|string
function listing.json_number(number)
  if type(number) ~= "number" then return listing.whole_text(number) end
  if number ~= number then return "nan" end
  if math.abs(number) == math.huge then return number > 0 and "inf" or "-inf" end
  return number
end

--- What all shapes have in common: "[4..40, 64]".
local function shape_range(group)
  if #group == 1 then return extents.shape(group[1].shape) end
  local low, high = { unpack(group[1].shape) }, { unpack(group[1].shape) }
  for _, row in ipairs(group) do
    for dim, extent in ipairs(row.shape) do
      if extent < low[dim] then low[dim] = extent end
      if extent > high[dim] then high[dim] = extent end
    end
  end
  for dim, extent in ipairs(low) do
    if extent ~= high[dim] then low[dim] = ("%d..%d"):format(extent, high[dim]) end
  end
  return extents.shape(low)
end

-- --- totals

---@class ListingTotals
---@field tensors integer
---@field numel integer
---@field bytes integer
---@field values integer
---@field tied integer        tensors whose bytes belong to another one already
---@field stored integer      bytes without those of tied tensors
---@field dtypes { dtype: string, tensors: integer, numel: integer, bytes: integer }[]

---@param rows LeafRow[]
---@return ListingTotals
function listing.totals(rows)
  local totals = { tensors = 0, numel = 0, bytes = 0, values = 0, tied = 0, stored = 0, dtypes = {} }
  local by_dtype = {}
  for _, row in ipairs(rows) do
    if row.shape then
      local dtype = by_dtype[row.type]
      if not dtype then
        dtype = { dtype = row.type, tensors = 0, numel = 0, bytes = 0 }
        by_dtype[row.type] = dtype
        table.insert(totals.dtypes, dtype)
      end
      for _, sum in ipairs { totals, dtype } do
        sum.tensors, sum.numel, sum.bytes = sum.tensors + 1, sum.numel + row.numel, sum.bytes + row.bytes
      end
      if row.tied_to then totals.tied = totals.tied + 1 else totals.stored = totals.stored + row.bytes end
    else
      totals.values = totals.values + 1
    end
  end
  return totals
end

---"291 tensors, 6,738,415,616 elements, 12.6 GiB (bfloat16)"
---@param totals ListingTotals
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

-- --- the tree

-- An entry of the tree is { name, rows, tensors, bytes }. Nothing is made of a part in which no two names differ: a name may
-- have a million of them.

local DEEPEST = 40 -- levels of indentation; what is below has its whole name

local function new_entry(name, rows)
  local tensors, bytes = 0, 0
  for _, row in ipairs(rows) do
    if row.shape then tensors, bytes = tensors + 1, bytes + row.bytes end
  end
  return { name = name, rows = rows, tensors = tensors, bytes = bytes }
end

local function separates_by_slash(name) return find(name, "/", 1, true) ~= nil end

--- Where the part at `from` ends, and where the next one begins; nil if there is none. The parts of "a.layers.{0..31}.w" are
--- "a", "layers", "{0..31}" and "w", for dots inside braces do not count. Those of TensorFlow's "a/b/w" are "a/", "b/" and
--- "w", for a variable and what is below it have their own lines.
local function part_end(name, from, by_slash)
  if by_slash then
    if from > #name then return nil end
    local stop = find(name, "/", from, true)
    if not stop then return #name, #name + 2 end -- "w" is no part of "w/x", whose part is "w/"
    return stop, stop + 1
  end
  if from > #name + 1 then return nil end
  local at = from
  while true do
    local stop = find(name, "[.{]", at)
    if not stop then return #name, #name + 2 end
    if byte(name, stop) == DOT then return stop - 1, stop + 1 end
    at = (find(name, "}", stop, true) or #name) + 1
  end
end

--- The last byte up to which all names are alike, at least `from` - 1.
local function common_end(entries, from)
  local first, last = entries[1].name, #entries[1].name
  for i = 2, #entries do
    local name, at = entries[i].name, from
    while at <= last and byte(name, at) == byte(first, at) do at = at + 1 end
    last = at - 1
  end
  return last
end

--- What goes on alike with the part at `from`, in the order of the first one of each, and the entries that end before it.
local function branches(entries, from)
  local ended, order, by_part = {}, {}, {}
  for _, entry in ipairs(entries) do
    local last, after = part_end(entry.name, from, separates_by_slash(entry.name))
    if not last then
      ended[#ended + 1] = entry
    else
      local part = sub(entry.name, from, last)
      local branch = by_part[part]
      if not branch then
        branch = { part = part, after = after, entries = {} }
        by_part[part], order[#order + 1] = branch, branch
      end
      branch.entries[#branch.entries + 1] = entry
    end
  end
  return ended, order
end

--- Numbers in their order, names as they came.
local function sorted(list)
  for _, branch in ipairs(list) do
    if not find(branch.part, "^[%d{]") then return list end
  end
  return natural.sort(list, function(branch) return (branch.part:gsub("^{", "")) end) -- "{0,1}" comes before "2"
end

local VALUES_WIDTH = 40

local function note_of(group)
  local row = group[1]
  if row.problem then return row.problem end
  if row.shape then
    if row.tied_to then return "= " .. fold.shown(row.tied_to) end
    if row.shares then return "shares bytes with " .. fold.shown(row.shares) end
    return row.role == "tensor" and "" or row.role
  end
  local texts, seen, width = {}, {}, 0
  for _, other in ipairs(group) do
    local text = listing.value_text(other.value)
    if not seen[text] then
      seen[text] = true
      texts[#texts + 1] = text
      width = width + #text + 2
      if width > VALUES_WIDTH and #texts > 1 then
        texts[#texts] = "…"
        break
      end
    end
  end
  return table.concat(texts, ", ")
end

--- A line of columns for one group of like leaves.
local function leaf_line(label, group)
  local row, bytes = group[1], 0
  for _, member in ipairs(group) do bytes = bytes + member.bytes end
  return { label, #group > 1 and grouped(#group) .. " ×" or "", row.type, row.shape and shape_range(group) or "",
    row.shape and cbk.format_size(bytes) or "", note_of(group) }
end

local function container_line(shown, entries)
  local tensors, bytes = 0, 0
  for _, entry in ipairs(entries) do tensors, bytes = tensors + entry.tensors, bytes + entry.bytes end
  if tensors == 0 then return { shown, "", "", "", "", "" } end
  return { shown, "", counted(tensors, "tensor"), "", cbk.format_size(bytes), "" }
end

--- The lines of entries that are alike up to `from`, where a part begins; on their lines, names begin at `start`.
local function tree_lines(entries, start, from, indent, out)
  local margin = ("  "):rep(indent)
  local function leaf_lines(list)
    for _, entry in ipairs(list) do
      local name = sub(entry.name, start)
      out[#out + 1] = leaf_line(margin .. (name == "" and fold.EMPTY or name), entry.rows)
    end
  end
  if #entries == 1 or indent == DEEPEST then return leaf_lines(entries) end

  -- A container with one entry shares the line with it.
  local first = entries[1].name
  local by_slash, alike = separates_by_slash(first), common_end(entries, from)
  while true do
    local last, after = part_end(first, from, by_slash)
    if not last or after - 1 > alike then break end
    from = after
  end
  local ended, below = branches(entries, from)
  while #ended == 0 and #below == 1 do
    from = below[1].after
    ended, below = branches(entries, from)
  end

  leaf_lines(ended)
  if #below == 0 then return end
  local is_root = from == 1
  if not is_root and #ended == 0 then
    out[#out + 1] = container_line(margin .. sub(first, start, from - (by_slash and 1 or 2)), entries)
  end
  for _, branch in ipairs(sorted(below)) do
    tree_lines(branch.entries, from, branch.after, is_root and indent or indent + 1, out)
  end
end

local ALIGN_RIGHT = { false, true, false, false, true, false }
local WIDEST = 100

--- Columns that a cell takes; next to all cells are plain.
local function width_of(cell)
  if not find(cell, "[\128-\255]") then return #cell end
  return cbk.terminal.columns(cell)
end

--- Lines of six cells, two spaces apart; sizes and counts end at one column. A cell wider than WIDEST moves nothing but its own line.
local function aligned(lines)
  local widths = { 0, 0, 0, 0, 0, 0 }
  for column = 1, 6 do
    local widest, seen = 0, nil
    for i = 1, #lines do
      local cell = lines[i][column]
      if cell ~= seen then
        local width = width_of(cell)
        if width > widest and width <= WIDEST then widest = width end
        seen = cell
      end
    end
    widths[column] = widest
  end
  local spaces = {}
  for count = 0, WIDEST do spaces[count] = (" "):rep(count) end
  local out, pieces = {}, {}
  for i = 1, #lines do
    local line, last, count = lines[i], 6, 0
    while last > 1 and line[last] == "" do last = last - 1 end
    for column = 1, last do
      local cell = line[column]
      if widths[column] > 0 or cell ~= "" then
        local padding = spaces[widths[column] - width_of(cell)] or ""
        local is_right = ALIGN_RIGHT[column]
        pieces[count + 1] = count > 0 and "  " or ""
        pieces[count + 2] = is_right and padding or cell
        pieces[count + 3] = is_right and cell or column < last and padding or ""
        count = count + 3
      end
    end
    out[i] = concat(pieces, "", 1, count)
  end
  return out
end

local function signature_of(row)
  if row.problem then return row.type .. row.problem end
  if not row.shape then return row.type end
  return row.type .. " " .. row.role .. " " .. #row.shape .. (row.tied_to and " =" or row.shares or "")
end

local FEW_SHAPES = 3

--- Makes the rows of a group that has several shapes, but few, fall apart by shape. True when it did.
local function separate_shapes(group)
  if #group.members == 1 then return false end
  local seen, count = {}, 0
  for _, member in ipairs(group.members) do
    local shape = member.entry.shape
    local text = shape and extents.joined(shape, ",") or ""
    if not seen[text] then
      seen[text] = true
      count = count + 1
      if count > FEW_SHAPES then return false end
    end
  end
  if count == 1 then return false end
  for _, member in ipairs(group.members) do
    local row = member.entry
    row.signature = row.signature .. " " .. extents.joined(row.shape, ",")
  end
  return true
end

--- Rows that differ in nothing but numbers in their keys. Where shapes vary wildly they are told as a range.
local function folded(rows)
  for _, row in ipairs(rows) do row.signature = signature_of(row) end
  local groups, again = fold.groups(rows), false
  for _, group in ipairs(groups) do again = separate_shapes(group) or again end
  return again and fold.groups(rows) or groups
end

---The rows as a tree, repeated layers folded into "layers.{0..31}".
---@param rows LeafRow[]
---@param options? { unfolded: boolean }
---@return string[] lines
function listing.tree(rows, options)
  local entries = {}
  if options and options.unfolded then
    for i, row in ipairs(rows) do entries[i] = new_entry(fold.shown(row.path), { row }) end
  else
    for i, group in ipairs(folded(rows)) do
      local members = {}
      for k, member in ipairs(group.members) do members[k] = member.entry end
      entries[i] = new_entry(group.name, members)
    end
  end
  local lines = {}
  tree_lines(entries, 1, 1, 0, lines)
  return aligned(lines)
end

---One line per leaf with its whole key.
---@param rows LeafRow[]
---@return string[] lines
function listing.flat(rows)
  local lines = {}
  for i, row in ipairs(rows) do lines[i] = leaf_line(fold.shown(row.path), { row }) end
  return aligned(lines)
end

return listing
