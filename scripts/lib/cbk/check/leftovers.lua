-- Files beside a checkpoint that interrupted programs left there, and shards that belong to no index.

local cbk = require "cbk"
local kinds = require "converters.engine.kinds"
local parts = require "cbk.parts"
local shards = require "cbk.check.shards"

local leftovers = {}

-- Names that programs give to unfinished files.
local TEMPORARY = { "%.tmp$", "%.temp$", "%.part$", "%.partial$", "%.incomplete$", "%.crdownload$", "%.download$", "%.aria2$",
  "%.tmp%-?%d+$", "%.tempstate%d+$" }
local REPLACED = "%.[0-9a-f]+%.old$" -- cbk's name for the old file while a new one replaces it

---@param name string
local function is_temporary(name)
  for _, pattern in ipairs(TEMPORARY) do
    if name:lower():find(pattern) then return true end
  end
  return #name > 13 and name:match(REPLACED) ~= nil
end

---Whether a name is a file's own name with something added, as in the names of unfinished files: "model.mdl.1f3a9c04.tmp".
local function is_beside(name, own) return name:sub(1, #own) == own and name ~= own end

---The shards that any index of a folder lists; nil if an index is damaged, so that this is not known.
---@param folder string
---@return table<string, true>|nil
local function listed_shards(folder)
  local out = {}
  for _, name in ipairs(cbk.fs.list(folder)) do
    local map = cbk.dict()
    if parts.is_index(name) then
      local fine, index = pcall(cbk.config.load, cbk.fs.join(folder, name))
      if not (fine and kinds.is_dict(index) and kinds.is_dict(index, "weight_map")) then return nil end
      map = index.weight_map
      if cbk.count(map) == 0 then return nil end
    end
    for _, shard in cbk.items(map) do
      if type(shard) == "string" then out[shard] = true end
    end
  end
  return out
end

---@param folder string
---@param files string[]   the checkpoint's
---@param owns_folder boolean   the folder holds this checkpoint and nothing else
---@param found Findings
local function check_names(folder, files, owns_folder, found)
  local own, listed = {}, owns_folder and listed_shards(folder) or nil
  for _, file in ipairs(files) do own[cbk.fs.basename(file)] = true end
  for _, name in ipairs(cbk.fs.list(folder)) do
    local path = cbk.fs.join(folder, name)
    local belongs = owns_folder
    for file in pairs(own) do belongs = belongs or is_beside(name, file) end
    local stem, _, count = shards.parts(name)
    if belongs and is_temporary(name) then
      found:add("leftover-file", path, nil, "the name is that of an unfinished file")
    elseif owns_folder and stem and not own[name] then
      local text = ("the shard, of %d, belongs to no index here"):format(count)
      if listed and not listed[name] then found:add("leftover-file", path, nil, text) end
    end
  end
end

---@param path string       as the user has named it
---@param files string[]    of the checkpoint
---@param found Findings
function leftovers.check(path, files, found)
  local owns_folder = cbk.fs.is_dir(path) or #files > 1
  local folder = cbk.fs.folder_of(path)
  if cbk.fs.is_dir(folder) then check_names(folder, files, owns_folder, found) end
end

return leftovers
