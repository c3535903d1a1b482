-- The checkpoints in the folder of a run: which names are checkpoints, their steps, and what shows that a file is still being written.

local cbk = require "cbk"
local leftovers = require "cbk.check.leftovers"
local links = require "cbk.links"
local natural = require "cbk.natural"
local parts = require "cbk.parts"
local shards = require "cbk.check.shards"

local folder = {}

-- The words before a step, in the order of preference. "ba" is Composer's batch.
local WORDS = { { "step", "checkpoint" }, { "iteration", "iter", "batch", "ba" } }
-- In names of files that trainers keep beside the weights.
local BESIDE = { "optim", "sched", "scaler", "rng_state", "dataloader" }
local DEEPEST = 3 -- folders inside a checkpoint's

-- --- steps

---The number behind the last of these words: "epoch=1-step=2000" has 2000.
local function behind(name, words)
  local last, number = 0, nil
  for _, word in ipairs(words) do
    for place, digits in name:gmatch("%f[%a]()" .. word .. "s?[%s=_.:-]*(%d+)") do
      if place > last then last, number = place, digits end
    end
  end
  return number
end

---The step in the name of a checkpoint; nil if there is none, or if it may be one of several numbers.
---@param name string   "checkpoint_1000.mdl"
---@return number|nil
function folder.step_of(name)
  local text = name:lower():gsub("%.index$", "")
  if cbk.format_of_name(text) then text = text:gsub("%.[^.]*$", "") end
  text = text:gsub("global_?step", "step")
  for _, words in ipairs(WORDS) do
    local number = behind(text, words)
    if number then return tonumber(number) end
  end
  local only, others = text:match "(%d+)(.*)$"
  if only and not others:find "%d" then return tonumber(only) end
  return tonumber((behind(text, { "epoch" })))
end

-- --- files

---Whether a file is one of those with the tensors, by its name.
local function is_file_of_tensors(name)
  return cbk.format_of_name(name) ~= nil or name:find "%.distcp$" ~= nil or name == ".metadata" or parts.is_index(name)
end

local function is_hidden(name) return name:find "^%." ~= nil and name ~= ".metadata" end

---Adds the files with tensors in a folder. Links out of it are not followed: `cbk.open` says what it refuses.
local function add_files(path, depth, out)
  for _, name in ipairs(cbk.fs.list(path)) do
    local inner = cbk.fs.join(path, name)
    if not is_hidden(name) and not cbk.fs.is_dir(inner) and is_file_of_tensors(name) then
      out[#out + 1] = inner
    elseif not is_hidden(name) and depth < DEEPEST and cbk.fs.is_dir(inner) and pcall(links.folder, path, name) then
      add_files(inner, depth + 1, out)
    end
  end
end

---The files of a TensorFlow checkpoint: its index, and those with the data.
local function add_tensorflow(path, out)
  local top, stem = cbk.fs.dirname(path), cbk.fs.basename(path):gsub("%.index$", "") .. ".data-"
  for _, name in ipairs(cbk.fs.list(top)) do
    if name:sub(1, #stem) == stem then out[#out + 1] = cbk.fs.join(top, name) end
  end
end

---@param path string
---@return string[]
local function files_of(path)
  local out = {}
  if cbk.fs.is_dir(path) then
    add_files(path, 1, out)
  else
    out[1] = path
    if path:find "%.index$" then add_tensorflow(path, out) end
  end
  return out
end

---What changes while a checkpoint is written: names, sizes and times of its files; nil if it has none (yet, or any more).
---@param path string
---@return string|nil mark
---@return number|nil time   of the last change, in seconds since 1970
function folder.mark(path)
  local texts, newest = {}, 0
  local fine, problem = pcall(function()
    for i, file in ipairs(files_of(path)) do
      local time = cbk.fs.modified(file)
      texts[i], newest = ("%s %.0f %.7f"):format(file, cbk.fs.size(file), time), math.max(newest, time)
    end
  end)
  if not fine and type(problem) == "table" and problem.code == "io" then return nil end -- it disappeared
  if not fine then error(problem, 0) end
  if #texts == 0 then return nil end
  return table.concat(texts, "\n"), newest
end

-- --- checkpoints

---@class WatchedCheckpoint
---@field path string
---@field name string
---@field step number
---@field mark string     of `folder.mark`
---@field time number     of the last change
---@field problem? table  why it is not read: a link out of the folder

---Whether a name may be that of a finished checkpoint.
local function is_candidate(top, name, known)
  if is_hidden(name) or leftovers.is_temporary(name) or name:find "^tmp[-_]" then return false end
  if cbk.fs.is_dir(cbk.fs.join(top, name)) then return true end
  if not cbk.format_of_name(name) or shards.parts(name) or parts.named(cbk.fs.join(top, name), known) then return false end
  for _, word in ipairs(BESIDE) do
    if name:lower():find(word, 1, true) then return false end
  end
  return true
end

---Why an entry may not be read: it is a link out of the folder; nil if it may.
local function link_problem(top, name, allowed)
  local is_dir = cbk.fs.is_dir(cbk.fs.join(top, name))
  local fine, problem = pcall(is_dir and links.folder or cbk.fs.beside, top, name, allowed)
  if fine then return nil end
  if type(problem) == "table" and problem.code ~= "interrupted" then return problem end
  return error(problem, 0)
end

---The checkpoints of a folder, by their steps. Those of which only names like "model.ckpt.tmp" exist are not among them.
---@param top string
---@param allowed? string[]   folders that links may lead to
---@return WatchedCheckpoint[]
function folder.checkpoints(top, allowed)
  local out, seen, known = {}, {}, {}
  for _, name in ipairs(cbk.fs.list(top)) do
    local step = is_candidate(top, name, known) and folder.step_of(name)
    local path = cbk.fs.join(top, name)
    local mark, time = nil, nil
    if step then mark, time = folder.mark(path) end
    local real = mark and cbk.fs.real(path)
    if mark and not seen[real] then -- a link to another checkpoint of the folder is the same one
      seen[real] = true
      out[#out + 1] = { path = path, name = name, step = step, mark = mark, time = time, problem = link_problem(top, name, allowed) }
    end
  end
  out = natural.sort(out, function(one) return ("%.0f/%s"):format(one.step, one.name) end)
  return out
end

return folder
