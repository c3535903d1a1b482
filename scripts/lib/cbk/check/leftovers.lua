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

---Whether a name is one that programs give to unfinished files.
---@param name string
function leftovers.is_temporary(name)
  for _, pattern in ipairs(TEMPORARY) do
    if name:lower():find(pattern) then return true end
  end
  return #name > 13 and name:match(REPLACED) ~= nil
end

---Whether a name is that of a checkpoint's file with something added, as in the names of unfinished files: "model.mdl.1f3a9c04.tmp".
---@param own table<string, true>
local function is_beside(name, own)
  for length = 1, #name - 1 do
    if own[name:sub(1, length)] then return true end
  end
  return false
end

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
---@param own table<string, true>   names of the checkpoints' files
---@param owns_folder boolean       the folder holds one checkpoint and nothing else
---@param found Findings
local function check_names(folder, own, owns_folder, found)
  local listed = owns_folder and listed_shards(folder) or nil
  for _, name in ipairs(cbk.fs.list(folder)) do
    local path = cbk.fs.join(folder, name)
    local stem, _, count = shards.parts(name)
    if leftovers.is_temporary(name) and (owns_folder or is_beside(name, own)) then
      found:add("leftover-file", path, nil, "the name is that of an unfinished file")
    elseif owns_folder and stem and not own[name] then
      local text = ("the shard, of %d, belongs to no index here"):format(count)
      if listed and not listed[name] then found:add("leftover-file", path, nil, text) end
    end
  end
end

---Checks each folder once, however many checkpoints are in it.
---@param subjects CheckSubject[]
---@param found Findings
function leftovers.check(subjects, found)
  local folders, own, owns = {}, {}, {}
  for _, subject in ipairs(subjects) do
    local folder = cbk.fs.folder_of(subject.path)
    if not own[folder] then folders[#folders + 1], own[folder] = folder, {} end
    for _, file in ipairs(subject.files) do own[folder][cbk.fs.basename(file)] = true end
    owns[folder] = owns[folder] or cbk.fs.is_dir(subject.path) or #subject.files > 1
  end
  for _, folder in ipairs(folders) do
    if cbk.fs.is_dir(folder) then check_names(folder, own[folder], owns[folder], found) end
  end
end

return leftovers
