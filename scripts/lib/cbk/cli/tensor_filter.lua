-- The tensors that a command shows, and their order: --shape, --dtype, --sort, --top.

local cbk = require "cbk"
local cli = require "cbk.cli"
local naming = require "cbk.naming"

local tensor_filter = {}

--- A function that tests shapes: "*,4096" has two dims, the last one of 4096.
local function shape_test(text)
  local extents = {}
  for extent in (text .. ","):gmatch "([^,]*)," do
    extent = extent:match "^%s*(.-)%s*$"
    local number = extent:match "^%d+$" and tonumber(extent)
    if not number and extent ~= "*" then
      return nil, ("--shape '%s': expected extents such as '*,4096', where * is any extent"):format(text)
    end
    extents[#extents + 1] = number or false
  end
  return function(shape)
    if #shape ~= #extents then return false end
    for dim, extent in ipairs(extents) do
      if extent and shape[dim] ~= extent then return false end
    end
    return true
  end
end

---Adds the options.
---@param parser table
---@param sorts string[]   what --sort takes; in `beyond`, where other orders are; in `least`, what has the least first
function tensor_filter.options(parser, sorts)
  parser:option("--shape", "only tensors of this shape, such as '*,4096'"):argname("SHAPE"):convert(shape_test)
  parser:option("--dtype", "only tensors of this dtype, or of this type of quantised blocks (Q4_K)"):argname("DTYPE")
    :convert(function(text)
      local upper = text:upper()
      if upper:find "^[IT]?Q%d" or upper == "MXFP4" then return upper end
      return cli.dtype(text)
    end)
  local least = sorts.least and "; " .. sorts.least or ""
  local sort = parser:option("--sort", ("the largest first (keys: in alphabetical order%s): "):format(least) .. table.concat(sorts, ", "))
    :argname("BY"):convert(function(text)
      for _, name in ipairs(sorts) do
        if name == text then return text end
      end
      local advice = naming.question(cbk.nearest(text, sorts, 1)) or sorts.beyond
      return nil, ("--sort '%s': expected one of %s%s"):format(text, table.concat(sorts, ", "), advice and "; " .. advice or "")
    end)
  cli.candidates(sort, sorts)
  parser:option("--top", "only the first N"):argname("N"):convert(cli.whole_number("--top", 1))
end

---Whether a row counts as having this dtype. For quantised elements it is the type of the blocks.
---@param row LeafRow
---@param dtype string
function tensor_filter.has_dtype(row, dtype) return (row.encoding or row.type) == dtype end

---The indices of the rows that pass --shape and --dtype.
---@param rows LeafRows
---@param args table
---@param is_wanted? fun(row: LeafRow): boolean   a further condition
---@return integer[]
function tensor_filter.matching(rows, args, is_wanted)
  local out = {}
  for i = 1, #rows do
    local row = rows[i]
    local fits = not (args.shape or args.dtype)
      or row.shape ~= nil and (not args.shape or args.shape(row.shape)) and (not args.dtype or tensor_filter.has_dtype(row, args.dtype))
    if fits and (not is_wanted or is_wanted(row)) then out[#out + 1] = i end
  end
  return out
end

---A function that returns whether a row passes --key, --shape and --dtype.
---@param args table
---@param tensors_only? boolean
---@return fun(rows: LeafRows, i: integer): boolean
function tensor_filter.wanted(args, tensors_only)
  if not (args.key or args.shape or args.dtype or tensors_only) then return function() return true end end
  local matches, below = cbk.glob(args.key or "*"), cbk.glob((args.key or "*") .. ".*")
  return function(rows, i)
    local path = rows:path(i)
    if args.key and not (matches(path) or below(path)) then return false end
    if not (args.shape or args.dtype or tensors_only) then return true end
    local row = rows[i]
    return row.shape ~= nil and (not args.shape or args.shape(row.shape)) and (not args.dtype or tensor_filter.has_dtype(row, args.dtype))
  end
end

---Sorts a list by --sort and cuts it to --top. Items without a value come last; otherwise the order is kept.
---@generic T
---@param list T[]
---@param args table
---@param value_of fun(item: T, by: string): any   a number or, for "key", a text
---@return T[]
function tensor_filter.sorted(list, args, value_of)
  if args.sort then
    local keyed = {}
    for i, item in ipairs(list) do keyed[i] = { item, value_of(item, args.sort), i } end
    table.sort(keyed, function(a, b)
      local x, y = a[2], b[2]
      if x == y or x == nil and y == nil then return a[3] < b[3] end
      if x == nil or y == nil then return y == nil end
      if type(x) == "string" then return x < y end
      return x > y
    end)
    for i, entry in ipairs(keyed) do list[i] = entry[1] end
  end
  if args.top then
    for i = #list, args.top + 1, -1 do list[i] = nil end
  end
  return list
end

return tensor_filter
