-- What a pickle names that is not plain data, all at once. Nothing of it is executed.

local cbk = require "cbk"
local fold = require "cbk.fold"
local numbers = require "cbk.numbers"

local pickles = {}

---@param path string
---@param error_message string   why the file was refused
---@param found Findings
---@return boolean is_found         a pickle is why
---@return boolean only_records   all of them are classes that may be read as records
function pickles.check(path, error_message, found)
  local fine, globals = pcall(cbk.pickle.globals, path)
  local only_records, count = true, 0
  for _, global in ipairs(fine and globals or {}) do
    if global.kind ~= "plain" then
      count = count + 1
      only_records = only_records and global.kind == "record"
      local text = global.name == "?" and "it names a function that it puts together while it is read"
        or global.kind == "record" and ("it asks for the class %s"):format(fold.shown(global.name))
        or ("it asks for %s, which can run code or touch files"):format(fold.shown(global.name))
      found:add("unsafe-global", path, nil, ("%s (byte %s of the pickle)"):format(text, numbers.grouped(global.offset)), {
        advice = global.kind == "record" and "If you trust the author, read its instances as their attributes with --allow-records" or nil,
      })
    end
  end
  if count == 0 and error_message:find("the pickle asks for", 1, true) then -- one inside of another format
    found:add("unsafe-global", path, nil, error_message)
    return true, false
  end
  return count > 0, count > 0 and only_records
end

return pickles
