-- The checkpoints in a run's folder: their names, the last one, and which are removed. Source: trainer/callbacks/checkpoint.py of the
-- Model Zoo 2.9.

local cbk = require "cbk"

local checkpoints = {}

---@class SavedCheckpoint
---@field path string
---@field step integer
---@field time string   "" or "20260102_030405": of one that was saved again

--- A pattern for names that a format such as "checkpoint_{step}.mdl" makes.
local function pattern_of(name)
  local before, after = name:match "^(.*){step}(.*)$"
  local function escaped(text) return (text:gsub("%p", "%%%0")) end
  return "^" .. escaped(before) .. "(%d+)(_?[%d_]*)" .. escaped(after) .. "$"
end

---The checkpoints in a folder, in the order of their steps and times.
---@param dir string
---@param name string   with {step}
---@return SavedCheckpoint[]
function checkpoints.list(dir, name)
  local out, pattern = {}, pattern_of(name)
  for _, file in ipairs(cbk.fs.is_dir(dir) and cbk.fs.list(dir) or {}) do
    local step, time = file:match(pattern)
    local is_time = time and time:find "^_%d%d%d%d%d%d%d%d_%d%d%d%d%d%d$"
    if step and (time == "" or is_time) then
      out[#out + 1] = { path = cbk.fs.join(dir, file), step = tonumber(step), time = time }
    end
  end
  table.sort(out, function(a, b)
    if a.step ~= b.step then return a.step < b.step end
    return a.time < b.time
  end)
  return out
end

---The path for a checkpoint of a step; one that exists is not replaced.
---@param dir string
---@param name string
---@param step integer
---@return string
function checkpoints.path(dir, name, step)
  local function path_of(text) return cbk.fs.join(dir, (name:gsub("{step}", text))) end
  local plain = path_of(("%d"):format(step))
  if not cbk.fs.exists(plain) then return plain end
  return path_of(("%d_%s"):format(step, os.date "%Y%m%d_%H%M%S"))
end

---Removes all but the last checkpoints that a run saved.
---@param dir string
---@param name string
---@param count integer   to keep
---@param others table<string, boolean>   paths of those that it did not save
function checkpoints.keep(dir, name, count, others)
  local own = {}
  for _, one in ipairs(checkpoints.list(dir, name)) do own[#own + 1] = not others[one.path] and one or nil end
  for i = 1, #own - count do cbk.fs.remove(own[i].path) end
end

return checkpoints
