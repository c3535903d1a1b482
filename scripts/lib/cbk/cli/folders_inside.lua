-- The checkpoints in the folders of a folder that holds none itself, such as the output of `cbk convert -o`.

local cbk = require "cbk"
local links = require "cbk.links"
local naming = require "cbk.naming"

local MOST_NAMES = 3       -- in a message
local MOST_FOLDERS = 100 -- that are opened

---Whether a folder is a checkpoint.
---@param folder string
---@return boolean
local function opens(folder)
  local fine, problem = pcall(cbk.open, folder)
  if not fine and type(problem) == "table" and problem.code == "interrupted" then error(problem, 0) end
  return fine
end

---For a path that is not a checkpoint: names the checkpoints in its folders, or nil.
---@param path string
---@return string|nil   "name the one in it: 'back/new_to_hf'"
return function(path)
  if not cbk.fs.is_dir(path) then return nil end
  local found = {}
  for i, name in ipairs(cbk.fs.list(path)) do
    if i > MOST_FOLDERS then break end
    local full = cbk.fs.join(path, name)
    if cbk.fs.is_dir(full) and pcall(links.folder, path, name) and opens(full) then found[#found + 1] = cbk.quote(full) end
  end
  if #found == 0 then return nil end
  return (#found == 1 and "name the one in it: " or "name one of those in it: ") .. naming.listed(found, MOST_NAMES)
end
