-- Checks the direction of `#include` in host/ and bindings/: lua5.1 tests/includes.lua
-- README.md ("Where things are") has the same order for readers.

local includes = {}

--- From below to above. A file may include its own folder and the folders of earlier rows, not those of its own row.
local ROWS = {
  { "host/base" },
  { "host/tensor", "host/mpi" },
  { "host/value", "host/compute" },
  { "host/formats" }, -- what all formats share: the files directly in it
  { "host/formats/hdf5", "host/formats/pickle", "host/formats/zip" },
  { "host/formats/gguf", "host/formats/npy", "host/formats/safetensors", "host/formats/tensorflow", "host/formats/torch" },
  { "host/formats/dcp", "host/formats/h5", "host/formats/nemo", "host/formats/ranks" },
  { "host/checkpoint", "host/config", "host/streaming" },
  { "bindings" },
  { "host/app" },
}

local rank_of, parts_of = {}, {}
for rank, row in ipairs(ROWS) do
  for _, folder in ipairs(row) do rank_of[folder] = rank end
end
for folder in pairs(rank_of) do
  if folder:find("/", 6, true) then parts_of[folder:match "^(.*)/"] = true end
end

--- The longest folder of ROWS that holds the file. A new folder below one that has rows of its own, as host/formats, needs a row.
local function folder_of(path)
  local folder = path:match "^(.*)/"
  local is_direct = true
  while folder do
    if rank_of[folder] and (is_direct or not parts_of[folder]) then return folder end
    folder, is_direct = folder:match "^(.*)/", false
  end
end

--- Why the file at `path` may not include `target`; nil: it may.
---@param path string
---@param target string
---@return string?
function includes.why_not(path, target)
  local from, to = folder_of(path), folder_of(target)
  if not from then return "its own folder is in no row of tests/includes.lua" end
  if not to then return "that folder is in no row of tests/includes.lua" end
  if from == to or rank_of[to] < rank_of[from] then return nil end
  if rank_of[to] == rank_of[from] then return ("but %s and %s do not include each other"):format(to, from) end
  return ("but %s is above %s"):format(to, from)
end

--- The wrong includes of one file, as messages.
---@param path string
---@param text string
---@return string[]
function includes.problems(path, text)
  local out, number = {}, 0
  for line in text:gmatch "([^\n]*)\n?" do
    number = number + 1
    local target = line:match '^%s*#%s*include%s*["<]([^">]+)[">]'
    local is_own = target and (target:find "^host/" or target:find "^bindings/")
    local why = is_own and includes.why_not(path, target)
    if why then out[#out + 1] = ("%s:%d: includes %s, %s"):format(path, number, target, why) end
  end
  return out
end

if ... then return includes end -- required by a test

dofile "tests/sources.lua"("'host/*pp' 'bindings/*pp'", includes.problems)
