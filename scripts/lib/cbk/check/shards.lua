-- Checks a folder of shards: the index against the shards, and which shard has which keys.

local cbk = require "cbk"
local errors = require "cbk.errors"
local fold = require "cbk.fold"
local kinds = require "converters.engine.kinds"
local numbers = require "cbk.numbers"
local parts = require "cbk.parts"
local small_items = require "cbk.small_items"

local shards = {}

local SHARD = "^(.*)%-(%d%d%d%d%d)%-of%-(%d%d%d%d%d)(%.[%w_]+)$"

---The parts of a shard's name: "model", 1, 3, ".safetensors"; nil for other names.
---@param name string
function shards.parts(name)
  local stem, number, count, suffix = name:match(SHARD)
  if stem then return stem, tonumber(number), tonumber(count), suffix end
end

---The index that a path refers to, and the names of shards in a folder without one.
---@param path string
---@return string|nil index
---@return string[]|nil loose
function shards.find(path)
  if not cbk.fs.is_dir(path) then
    return cbk.fs.exists(path) and cbk.container(path) == "index" and path or nil
  end
  local indexes, loose, others = {}, {}, false
  for _, name in ipairs(cbk.fs.list(path)) do
    if parts.is_index(name) then
      indexes[#indexes + 1] = cbk.fs.join(path, name)
    elseif shards.parts(name) and not name:find "%.gguf$" then -- a GGUF model in several files has no index
      loose[#loose + 1] = name
    else
      others = others or cbk.format_of_name(name) ~= nil
    end
  end
  if #indexes == 1 and not others then return indexes[1] end
  if #indexes == 0 and #loose > 0 and not others then return nil, loose end
end

---@class Shard
---@field path string
---@field checkpoint? Checkpoint   nil: it cannot be opened

---@param index table
---@param path string   of the index
---@return table<string, string[]>|nil keys by shard, string[]|string   the shards' names, or the problem
local function keys_by_shard(index, path)
  local map = kinds.is_dict(index) and kinds.is_dict(index, "weight_map") and index.weight_map
  if not map then return nil, ("'%s' has no 'weight_map', a table of keys and their files"):format(path) end
  if cbk.count(map) == 0 then return nil, ("the 'weight_map' of '%s' is empty: no tensor of the shards beside it is read"):format(path) end
  small_items.check(cbk.count(map), { { files = { path } } }, 1100, "check an index of them", "check its shards one by one")
  local out, order = {}, {}
  for key, name in cbk.items(map) do
    if type(name) ~= "string" then return nil, ("'weight_map' does not name a file for %s"):format(cbk.quote(tostring(key))) end
    if not out[name] then out[name], order[#order + 1] = {}, name end
    table.insert(out[name], key)
  end
  table.sort(order)
  return out, order
end

---Reports keys that the shard lacks, and keys that the index does not list.
---@param by_key table<string, string>   shards
local function compare_keys(path, index_path, root, listed, by_key, found)
  local has = {}
  for _, key in ipairs(listed) do
    has[key] = true
    if root[key] == nil then found:add("shard-key-missing", path, key, "the index lists it, but the shard does not have it") end
  end
  for key in cbk.items(root) do
    if not has[key] then
      local other = by_key[key] and ("; it lists that key for '%s'"):format(by_key[key]) or ""
      found:add("unlisted-key", path, tostring(key), ("the index '%s' does not list it for this shard%s"):format(
        cbk.fs.basename(index_path), other), { advice = by_key[key] and ("Leave it out of the shard that should not have it, with `cbk "
        .. "copy --exclude`: programs differ in which one they load") or nil })
    end
  end
end

---@param open fun(path: string): Checkpoint|nil   adds a finding if a file is damaged
---@param found Findings
---@return Shard[]
local function open_shards(folder, index_path, by_shard, order, open, found, allowed)
  local out, by_key = {}, {}
  for name, keys in pairs(by_shard) do
    for _, key in ipairs(keys) do by_key[key] = name end
  end
  for _, name in ipairs(order) do
    local is_outside = name == "" or name:find "^/" or name:find "%z" or ("/" .. name .. "/"):find("/../", 1, true)
    local path = is_outside and index_path or cbk.fs.join(folder, name)
    if is_outside then
      found:add("shard-missing", index_path, by_shard[name][1], ("it is in %s, which is not a file in the folder"):format(cbk.quote(name)))
    elseif not cbk.fs.exists(path) then
      found:add("shard-missing", path, nil, ("the shard is missing, with %s such as %s"):format(
        numbers.counted(#by_shard[name], "tensor"), fold.shown(by_shard[name][1])))
    else
      local checkpoint = open(cbk.fs.beside(folder, name, allowed) or path)
      if checkpoint and kinds.is_dict(checkpoint.root) then
        compare_keys(path, index_path, checkpoint.root, by_shard[name], by_key, found)
      end
      out[#out + 1] = { path = path, checkpoint = checkpoint }
    end
  end
  return out
end

local function check_total(index, index_path, opened, found)
  local stated = kinds.is_dict(index, "metadata") and index.metadata.total_size
  if type(stated) ~= "number" then return end
  local bytes, stored = 0, 0
  for _, shard in ipairs(opened) do
    if not shard.checkpoint then return end
    local totals = cbk.leaf_rows(shard.checkpoint:raw_root()):totals()
    bytes, stored = bytes + totals.bytes, stored + totals.stored
  end
  if stated == bytes or stated == stored then return end
  found:add("total-size", index_path, nil, ("metadata.total_size is %s, but the tensors have %s"):format(numbers.grouped(stated),
    numbers.counted(bytes, "byte")))
end

---Opens all shards of an index, and checks it against them.
---@param index_path string
---@param open fun(path: string): Checkpoint|nil
---@param found Findings
---@param allowed? string[]   folders that links may lead to
---@return Shard[]
function shards.check(index_path, open, found, allowed)
  local inside = cbk.fs.beside(cbk.fs.dirname(index_path), cbk.fs.basename(index_path), allowed) -- a link out of it is an error
  local fine, index = pcall(cbk.config.parse, cbk.fs.read(inside or index_path), "json")
  local by_shard, order
  if fine then by_shard, order = keys_by_shard(index, index_path) end
  if not by_shard then
    found:add("damaged", index_path, nil, fine and order or ("the index is not valid JSON: %s"):format(errors.text(index)))
    return {}
  end
  local folder, before = cbk.fs.dirname(index_path), #found.list
  local opened = open_shards(folder, index_path, by_shard, order, open, found, allowed)
  if #found.list == before then check_total(index, index_path, opened, found) end
  return opened
end

return shards
