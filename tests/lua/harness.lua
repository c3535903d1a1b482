-- A small test harness: describe / it, equality with the first difference, raises, temporary folders.
-- A test that checks nothing fails. A full garbage collection follows every file.

local cbk = require "cbk"

local harness = {}

local suites, current = {}, nil
local temporary = {}
local checks = 0 -- of the test that runs

---@param name string
---@param body fun()
function harness.describe(name, body)
  current = { name = name, tests = {} }
  suites[#suites + 1] = current
  body()
end

---@param name string
---@param body fun()
function harness.it(name, body)
  table.insert(current.tests, { name = name, body = body })
end

-- --- counting

---Counts a check that a test makes in its own way.
function harness.checked() checks = checks + 1 end

local plain_assert = assert

---`assert`, which counts where a test or a helper beside it calls it, and not the library.
rawset(_G, "assert", function(...)
  local source = debug.getinfo(2, "S").source
  if not (source:find("scripts/lib/", 1, true) or source:find("converters/", 1, true)) then checks = checks + 1 end
  return plain_assert(...)
end)

---Ends a test that cannot be made here.
---@param reason string
function harness.skip(reason) error({ skipped = reason }, 0) end

-- --- samples of exhaustive tests

local all_cases = os.getenv "CBK_TESTS" == "all"
---Another sample each day; CBK_TESTS_DAY=N repeats the one of a day.
harness.day = tonumber(os.getenv "CBK_TESTS_DAY" or math.floor(os.time() / 86400))

local function hash_of(text)
  local hash = 5381
  for i = 1, #text do hash = (hash * 33 + text:byte(i)) % 2 ^ 32 end
  return hash
end

---Whether a case is among those of this run: one of `share` cases. CBK_TESTS=all runs each.
---@param case string
---@param share integer
---@return boolean
function harness.is_sampled(case, share) return all_cases or hash_of(("%d %s"):format(harness.day, case)) % share == 0 end

-- --- comparisons

local function is_container(value)
  if type(value) == "table" then
    local meta = getmetatable(value)
    return meta == nil or meta.__name == "Shape"
  end
  local kind = type(value) == "userdata" and cbk.kind(value)
  return kind and (kind:find "dict" or kind == "list" or kind == "tuple" or kind == "set") and true or false
end

local function shown(value)
  return type(value) == "string" and ("%q"):format(value) or tostring(value)
end

--- Where and how two values differ first; nil when they are equal. A Dict equals a table with the same content.
local function difference(actual, expected, place)
  if is_container(actual) and is_container(expected) then
    local seen = {}
    for key, value in cbk.items(expected) do
      seen[key] = true
      local inner = difference(actual[key], value, place .. "[" .. shown(key) .. "]")
      if inner then return inner end
    end
    for key, value in cbk.items(actual) do
      if not seen[key] then return ("%s[%s] is %s, expected nothing"):format(place, shown(key), shown(value)) end
    end
    return nil
  end
  local both_nan = actual ~= actual and expected ~= expected
  if actual == expected or both_nan then return nil end
  if type(actual) == "userdata" and type(expected) == "userdata" and cbk.equal(actual, expected) then return nil end
  return ("%s is %s, expected %s"):format(place, shown(actual), shown(expected))
end

---Fails with the first difference.
function harness.equal(actual, expected, what)
  checks = checks + 1
  local text = difference(actual, expected, what or "value")
  if text then error(text, 2) end
end

---Numbers that differ by at most `tolerance`.
function harness.near(actual, expected, tolerance)
  checks = checks + 1
  local distance = math.abs(actual - expected)
  if distance ~= distance or distance > tolerance then
    error(("%s is not within %s of %s"):format(actual, tolerance, expected), 2)
  end
end

function harness.is_true(value, what)
  checks = checks + 1
  if not value then error((what or "value") .. " is " .. shown(value), 2) end
end

---A text that contains `part` (plain).
---@param text string
---@param part string
function harness.has(text, part)
  checks = checks + 1
  if not text:find(part, 1, true) then error(("no %q in\n%s"):format(part, text), 2) end
end

---A text that does not contain `part` (plain).
---@param text string
---@param part string
function harness.lacks(text, part)
  checks = checks + 1
  if text:find(part, 1, true) then error(("%q in\n%s"):format(part, text), 2) end
end

---Runs `body`, which must raise an error whose message contains `text` (plain), and whose code (or kind) is `code` when that is given.
---@param text string
---@param body fun()
---@param code? string
function harness.raises(text, body, code)
  checks = checks + 1
  local ok, problem = pcall(body)
  if ok then error(("no error; expected one with %q"):format(text), 2) end
  local message = tostring(problem)
  if not message:find(text, 1, true) then error(("the error is %q, expected one with %q"):format(message, text), 2) end
  local found = type(problem) == "table" and (problem.code or problem.kind) or "none"
  if code and found ~= code then error(("the code of the error %q is %s, expected %s"):format(message, found, code), 2) end
end

---A new folder, removed after the test.
function harness.temp_dir()
  local path = cbk.fs.temp_dir()
  temporary[#temporary + 1] = path
  return path
end

local function quoted(word) return "'" .. word:gsub("'", "'\\''") .. "'" end

---Runs `cbk …` in a folder: exit code, stdout, stderr.
function harness.cbk(folder, ...) return harness.cbk_with("", folder, ...) end

---The same with variables of the environment: "HOME=/x".
---@param environment string
function harness.cbk_with(environment, folder, ...)
  local words = { quoted(cbk.fs.program()) }
  for _, word in ipairs { ... } do words[#words + 1] = quoted(word) end
  local out, err = folder .. "/.out", folder .. "/.err"
  local status = os.execute(("cd %s && %s %s >%s 2>%s </dev/null"):format(quoted(folder), environment, table.concat(words, " "), out, err))
  local stdout, stderr = cbk.fs.read(out), cbk.fs.read(err)
  cbk.fs.remove(out)
  cbk.fs.remove(err)
  return status / 256, stdout, stderr
end

-- --- running

---@return "passed"|"failed"|"skipped"
---@return string|nil why
local function outcome(test)
  checks = 0
  local ok, problem = xpcall(test.body, function(problem)
    if type(problem) == "table" and problem.skipped then return problem end
    local place = type(problem) == "table" and problem.where and (" (" .. problem.where .. ")") or ""
    return tostring(problem) .. place
  end)
  if ok and checks == 0 then return "failed", "it checks nothing" end
  if ok then return "passed" end
  if type(problem) == "table" then return "skipped", problem.skipped end
  return "failed", problem
end

local function run_once(test)
  local result, why = outcome(test)
  for _, path in ipairs(temporary) do cbk.fs.remove(path, { recursive = true }) end
  temporary = {}
  return result, why
end

local function run_test(test, with_busy_collector)
  local pause = collectgarbage("setpause", with_busy_collector and 0 or 200)
  local multiplier = collectgarbage("setstepmul", with_busy_collector and 100000 or 200)
  local result, why = run_once(test)
  collectgarbage("setpause", pause)
  collectgarbage("setstepmul", multiplier)
  return result, why
end

---Runs what was described since the last call; names contain `filter` (plain) if given. Prints failures, and what was skipped.
---@param filter? string
---@param with_busy_collector? boolean   under a collector that never rests: mistakes of ownership show there
---@return table<"passed"|"failed"|"skipped", integer>
function harness.run(filter, with_busy_collector)
  local counts = { passed = 0, failed = 0, skipped = 0 }
  for _, suite in ipairs(suites) do
    for _, test in ipairs(suite.tests) do
      local name = suite.name .. ": " .. test.name
      if not filter or name:find(filter, 1, true) then
        local result, why = run_test(test, with_busy_collector)
        counts[result] = counts[result] + 1
        if result == "failed" then print(("FAILED %s\n  %s"):format(name, why)) end
        if result == "skipped" then print(("skipped %s: %s"):format(name, why)) end
      end
    end
  end
  suites = {}
  collectgarbage()
  collectgarbage()
  return counts
end

return harness
