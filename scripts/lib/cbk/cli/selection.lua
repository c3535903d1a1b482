-- The keys of a checkpoint that a command works on: --include and --exclude.

local cbk = require "cbk"
local near_keys = require "cbk.cli.near_keys"

---@class Selection
local Selection = {}
Selection.__index = Selection

--- A glob as tests; a plain name also means everything below it (TensorFlow has "/" where others have ".").
local function tests_of(globs)
  local tests = {}
  for i, glob in ipairs(globs or {}) do
    tests[i] = { glob = glob, hits = 0, matches = cbk.glob(glob), below = cbk.glob(glob .. "[./]*") }
  end
  return tests
end

--- Whether one of the tests matches. Every matching test is counted.
local function any(tests, key)
  local found = false
  for _, test in ipairs(tests) do
    if test.matches(key) or test.below(key) then
      test.hits = test.hits + 1
      found = true
    end
  end
  return found
end

---Whether a key is selected. Without `include` all keys are, except those in `exclude`.
---@param key string
---@return boolean
function Selection:has(key)
  if #self.include > 0 and not any(self.include, key) then return false end
  return not any(self.exclude, key)
end

---A message for each glob that matched nothing, which is usually a mistake.
---@return string[]
function Selection:idle()
  local idle = {}
  for _, tests in ipairs { self.include, self.exclude } do
    for _, test in ipairs(tests) do
      if test.hits == 0 then idle[#idle + 1] = ("no key matches %s"):format(cbk.quote(test.glob)) end
    end
  end
  return idle
end

---Fails if no key is selected: names the --include that matches nothing, with suggestions.
---@param path string
---@param tree Dict|List
function Selection:fail_empty(path, tree)
  local test = self.include[1]
  if not test or test.hits > 0 then cbk.fail("key", ("no key of '%s' is left: --exclude leaves out all of them"):format(path)) end
  cbk.fail("key", ("no key of '%s' matches --include %s%s"):format(path, cbk.quote(test.glob),
    near_keys(cbk.leaf_rows(tree), test.glob)))
end

local selection = {}

---@param include? string[]
---@param exclude? string[]
---@return Selection
function selection.new(include, exclude)
  return setmetatable({ include = tests_of(include), exclude = tests_of(exclude) }, Selection)
end

return selection
