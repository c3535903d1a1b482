-- Folders inside a folder that the user named. (For files, cbk.fs.beside checks where links may lead.)

local cbk = require "cbk"
local errors = require "cbk.errors"

local links = {}

local function is_below(path, folder) return path == folder or path:sub(1, #folder + 1) == (folder == "/" and "/" or folder .. "/") end

---The path of a folder inside another one. A symbolic link out of that folder is an error, unless it ends below one of `allowed`.
---@param top string
---@param name string
---@param allowed? string[]
---@return string
function links.folder(top, name, allowed)
  local path = cbk.fs.join(top, name)
  local real = cbk.fs.real(path)
  for _, folder in ipairs { top, unpack(allowed or {}) } do
    if is_below(real, cbk.fs.real(folder)) then return path end
  end
  return cbk.fail("external", ("'%s' is a symbolic link to '%s', outside '%s'"):format(path, real, top), { file = path,
    advice = "--allow-external DIR allows it, where DIR is a folder that you trust" })
end

---A file in a folder that the user named; nil if it is missing. A link out of the folder is an error, with advice if no option allows
---it.
---@param folder string
---@param name string
---@param advice string
---@return string|nil
function links.file(folder, name, advice)
  local fine, found = pcall(cbk.fs.beside, folder, name)
  if fine then return found end
  if type(found) == "table" and found.code == "external" then found = errors.with(found, { advice = advice }) end
  return error(found, 0)
end

return links
