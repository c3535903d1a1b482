-- Tied weights: tensors that a model class has under several names. If a checkpoint has only some of the names, rules still see all that
-- they may read. Safetensors files store each tensor once; old files have null under the other names.

local cbk = require "cbk"
local kinds = require "converters.engine.kinds"
local rules = require "converters.engine.rules"

local ties = {}

---@class TieOptions
---@field each_once? boolean   the file has each tensor under one name
---@field all? boolean         all names are wanted, whatever the file has (Converter.all_names)
---@field no_nulls? boolean    null becomes the tensor of another name
---@field is_written? fun(key: string): boolean   whether a rule writes what a key has; of names without, another one is added
---@field is_watched? boolean  a dry run: values are not compared
---@field doubt fun(text: string)   gets tensors that differ though the config ties them

---The class's keys, each with its key in the checkpoint.
---@param known ClassTensors
---@param source Dict
---@return table<string, string>
local function names_there(known, source)
  local out = {}
  for key in cbk.items(source) do
    local own = type(key) == "string" and known:own_key(key)
    if own then out[own] = key end
  end
  return out
end

---The first of some names that has a tensor.
---@return string|nil   the key in the checkpoint
local function first_there(names, there, source)
  for _, name in ipairs(names) do
    local key = there[name]
    if key and source[key] ~= cbk.null then return key, name end
  end
end

---A message if tensors differ that the config ties to one; else nil.
---@param names string[]               that the class has for one tensor
---@param there table<string, string>  the checkpoint's names of them
---@param first string                 key of one of them
---@return string|nil
local function difference(names, there, source, first)
  local others = {}
  for _, name in ipairs(names) do
    local key = there[name]
    if key and key ~= first and kinds.differ(source[first], source[key]) then others[#others + 1] = "'" .. key .. "'" end
  end
  return #others > 0 and ("'%s' differs from %s, though the config ties them"):format(first, table.concat(others, " and ")) or nil
end

---Messages about tensors that the config ties but that differ in the checkpoint. Reads their values.
---@param known ClassTensors
---@param source Dict
---@return string[]
function ties.differences(known, source)
  local there, out = names_there(known, source), {}
  for _, names in ipairs(known:tied_names()) do
    local first = first_there(names, there, source)
    out[#out + 1] = first and difference(names, there, source, first)
  end
  return out
end

---A key whose tensor has further names by its class, of which the checkpoint has none; else nil.
---@param known ClassTensors
---@param source Dict
---@return string|nil
function ties.lone_name(known, source)
  local there = names_there(known, source)
  for _, names in ipairs(known:tied_names()) do
    local count = 0
    for _, name in ipairs(names) do count = count + (there[name] and 1 or 0) end
    if count == 1 and #names > 1 then return (first_there(names, there, source)) end
  end
end

---The checkpoint with those further names of its tied tensors that rules read.
---@param known ClassTensors
---@param source Dict
---@param kept table<string, string>   KeyOptions.kept
---@param options TieOptions
---@return Dict source, table<string, string> kept
function ties.spread(known, source, kept, options)
  local tied, out, out_kept = known:tied_names(), source, kept
  local there = #tied > 0 and names_there(known, source)
  for _, names in ipairs(tied) do
    local first, own = first_there(names, there, source)
    local is_idle = first ~= nil and options.is_written ~= nil -- no rule writes the tensor under the names that it has
    for _, name in ipairs(is_idle and names or {}) do is_idle = is_idle and not (there[name] and options.is_written(name)) end
    for i, name in ipairs(first and names or {}) do
      local key = there[name]
      local is_wanted = key == nil and (options.each_once or options.all or i == 1 or is_idle and options.is_written(name))
        or key and source[key] == cbk.null and options.no_nulls
      if is_wanted then
        if out == source then out, out_kept = cbk.copy(source), rules.variant(kept) end
        local place = key or first:sub(1, math.max(0, #first - #own)) .. name
        out[place] = source[first]
        if not key then out_kept[place] = kept[first] or first end
      end
    end
    local problem = first and not options.is_watched and difference(names, there, source, first)
    if problem then options.doubt(problem .. "; the values are not changed") end
  end
  return out, out_kept
end

return ties
