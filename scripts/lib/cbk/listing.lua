-- The table of contents of a checkpoint: what `cbk ls` and the REPL's `:ls` print of the rows of `cbk.leaf_rows`.

local cbk = require "cbk"
local fold = require "cbk.fold"
local natural = require "cbk.natural"
local wrap = require "cbk.wrap"

local listing = {}

local byte, find, sub, concat = string.byte, string.find, string.sub, table.concat
local DOT, SLASH, OPEN, CLOSE = byte ".", byte "/", byte "{", byte "}"

-- --- words and numbers

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

---@param shape integer[]
function listing.shape_text(shape) return "[" .. table.concat(shape, ", ") .. "]" end

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

---A number for JSON, which has no spelling for "inf", "-inf" and "nan".
---@param number number
---@return number|string
function listing.json_number(number)
  if number ~= number then return "nan" end
  if math.abs(number) == math.huge then return number > 0 and "inf" or "-inf" end
  return number
end

--- What all shapes have in common: "[4..40, 64]".
local function shape_range(group)
  if #group == 1 then return listing.shape_text(group[1].shape) end
  local low, high = { unpack(group[1].shape) }, { unpack(group[1].shape) }
  for _, row in ipairs(group) do
    for dim, extent in ipairs(row.shape) do
      low[dim], high[dim] = math.min(low[dim], extent), math.max(high[dim], extent)
    end
  end
  for dim, extent in ipairs(low) do
    if extent ~= high[dim] then low[dim] = ("%d..%d"):format(extent, high[dim]) end
  end
  return listing.shape_text(low)
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

--- "a.layers.{0..31}.w" → { "a", "layers", "{0..31}", "w" }: dots inside braces do not count. TensorFlow's "a/b/w" →
--- { "a/", "b/", "w" }: a variable and what stands below it have their own lines.
local function parts_of(name)
  local separator, closed = DOT, 1 -- a slash ends the part that it closes
  if find(name, "/", 1, true) then separator, closed = SLASH, 0 end
  local parts, depth, start = {}, 0, 1
  for at = 1, #name do
    local c = byte(name, at)
    if c == separator and depth == 0 then
      parts[#parts + 1] = sub(name, start, at - closed)
      start = at + 1
    elseif c == OPEN and separator == DOT then
      depth = depth + 1
    elseif c == CLOSE and separator == DOT then
      depth = depth - 1
    end
  end
  if start <= #name or separator == DOT then parts[#parts + 1] = sub(name, start) end
  return parts
end

--- A node gets `children` (by name) and `order` with the first one.
local LEAF = {}
local function new_node(name) return { name = name, children = nil, order = LEAF, groups = nil, tensors = 0, bytes = 0 } end

local function insert(root, name, group)
  local node, tensors, bytes = root, 0, 0
  for _, row in ipairs(group) do
    if row.shape then tensors, bytes = tensors + 1, bytes + row.bytes end
  end
  for _, part in ipairs(parts_of(name)) do
    if not node.children then node.children, node.order = {}, {} end
    local child = node.children[part]
    if not child then
      child = new_node(part)
      node.children[part] = child
      node.order[#node.order + 1] = child
    end
    node = child
    node.tensors, node.bytes = node.tensors + tensors, node.bytes + bytes
  end
  if node.groups then node.groups[#node.groups + 1] = group else node.groups = { group } end
end

--- Numbers in their order, names as they came.
local function sorted_children(node)
  for _, child in ipairs(node.order) do
    if not child.name:find "^[%d{]" then return node.order end
  end
  return natural.sort(node.order, function(child) return child.name end)
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

local function tree_lines(node, label, indent, out)
  -- A container with one entry shares the line with it.
  while not node.groups and #node.order == 1 do
    node = node.order[1]
    local joint = (label == "" or label:sub(-1) == "/") and "" or "."
    label = label .. joint .. node.name
  end
  local is_root = label == ""
  local shown = ("  "):rep(indent) .. label
  for _, group in ipairs(node.groups or LEAF) do out[#out + 1] = leaf_line(shown, group) end
  if #node.order == 0 then return end
  if not is_root and not node.groups then
    out[#out + 1] = { shown, "", counted(node.tensors, "tensor"), "", cbk.format_size(node.bytes), "" }
    if node.tensors == 0 then out[#out][3], out[#out][5] = "", "" end
  end
  for _, child in ipairs(sorted_children(node)) do
    tree_lines(child, child.name, is_root and indent or indent + 1, out)
  end
end

local ALIGN_RIGHT = { false, true, false, false, true, false }
local WIDEST = 100

--- Columns that a cell takes; next to all cells are plain.
local function width_of(cell)
  if not find(cell, "[\128-\255]") then return #cell end
  return wrap.width(cell)
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
    local text = shape and table.concat(shape, ",") or ""
    if not seen[text] then
      seen[text] = true
      count = count + 1
      if count > FEW_SHAPES then return false end
    end
  end
  if count == 1 then return false end
  for _, member in ipairs(group.members) do
    local row = member.entry
    row.signature = row.signature .. " " .. table.concat(row.shape, ",")
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
  local root = new_node ""
  if options and options.unfolded then
    for _, row in ipairs(rows) do insert(root, fold.shown(row.path), { row }) end
  else
    for _, group in ipairs(folded(rows)) do
      local members = {}
      for i, member in ipairs(group.members) do members[i] = member.entry end
      insert(root, group.name, members)
    end
  end
  local lines = {}
  tree_lines(root, "", 0, lines)
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
