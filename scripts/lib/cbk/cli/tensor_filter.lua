-- Which tensors a command shows, and in which order: --shape, --dtype, --sort, --top.

local cbk = require "cbk"
local cli = require "cbk.cli"

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
---@param sorts string[]   what --sort takes
function tensor_filter.options(parser, sorts)
  parser:option("--shape", "only tensors of this shape, such as '*,4096'"):argname("SHAPE"):convert(shape_test)
  parser:option("--dtype", "only tensors of this dtype, or of this type of quantised blocks (Q4_K)"):argname("DTYPE")
    :convert(function(text)
      if text:find "^[IT]?Q%d" or text == "MXFP4" then return text end
      return cli.dtype(text)
    end)
  local sort = parser:option("--sort", "the largest first (keys: in alphabetical order): " .. table.concat(sorts, ", ")):argname("BY")
    :convert(function(text)
      for _, name in ipairs(sorts) do
        if name == text then return text end
      end
      local near = cbk.nearest(text, sorts, 1)[1]
      return nil, ("--sort '%s': expected one of %s%s"):format(text, table.concat(sorts, ", "),
        near and (". Did you mean %s?"):format(near) or "")
    end)
  cli.candidates(sort, sorts)
  parser:option("--top", "only the first N"):argname("N"):convert(cli.whole_number("--top", 1))
end

local function has_dtype(row, dtype) return row.type == dtype or row.encoding == dtype end

---The numbers of the rows that --shape and --dtype leave.
---@param rows LeafRows
---@param args table
---@param is_wanted? fun(row: LeafRow): boolean   what else a row must be
---@return integer[]
function tensor_filter.matching(rows, args, is_wanted)
  local out = {}
  for i = 1, #rows do
    local row = rows[i]
    local fits = not (args.shape or args.dtype)
      or row.shape ~= nil and (not args.shape or args.shape(row.shape)) and (not args.dtype or has_dtype(row, args.dtype))
    if fits and (not is_wanted or is_wanted(row)) then out[#out + 1] = i end
  end
  return out
end

---Sorts a list as --sort says and cuts it as --top says. What has no value comes last; else the order stays.
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
