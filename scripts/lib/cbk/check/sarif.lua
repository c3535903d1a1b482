-- Findings as SARIF 2.1.0, which code hosts and editors show.

local cbk = require "cbk"
local errors = require "cbk.errors"
local rules = require "cbk.check.rules"

local sarif = {}

---A path as SARIF's URI: a relative path as it is, an absolute path with a scheme.
---@param path string
---@return string
function sarif.uri(path)
  local escaped = path:gsub("[^%w%-._~/]", function(c) return ("%%%02X"):format(c:byte()) end)
  if path:sub(1, 1) == "/" then return "file://" .. escaped end
  return (escaped:gsub("^%./", ""))
end

local function message(text) return cbk.dict { text = cbk.shown(text) } end

---@param rule CheckRule
local function descriptor(rule)
  local name = rule.id:gsub("^%l", string.upper):gsub("%-(%l)", function(c) return c:upper() end)
  return cbk.dict {
    { "id", rule.id }, { "name", name }, { "shortDescription", message(rule.text) }, { "help", message(rule.help) },
    { "defaultConfiguration", cbk.dict { level = rule.severity } },
  }
end

local function place(file)
  return cbk.dict { physicalLocation = cbk.dict { artifactLocation = cbk.dict { uri = sarif.uri(file) } } }
end

---@param one Finding
local function result(one)
  local location = place(one.file)
  if one.key then
    location.logicalLocations = cbk.list { cbk.dict { { "fullyQualifiedName", cbk.shown(one.key) }, { "kind", "member" } } }
  end
  local text = one.key and ("%s: %s"):format(one.key, one.text) or one.text
  return cbk.dict {
    { "ruleId", one.rule.id }, { "ruleIndex", one.rule.position - 1 }, { "level", one.severity },
    { "message", message(("%s. %s."):format(text, (one.advice:gsub("%.$", ""):gsub("^%l", string.upper)))) },
    { "locations", cbk.list { location } },
  }
end

---@param failure { file: string, message: string }
local function notification(failure)
  return cbk.dict {
    { "level", "error" }, { "message", message(errors.text(failure.problem)) }, { "locations", cbk.list { place(failure.file) } },
  }
end

---@param findings Findings
---@param failures { file: string, message: string }[]   files that could not be opened
---@return Dict
function sarif.log(findings, failures)
  local descriptors, results, notifications = cbk.list(), cbk.list(), cbk.list()
  for i, rule in ipairs(rules.list) do descriptors[i] = descriptor(rule) end
  for i, one in ipairs(findings:sorted()) do results[i] = result(one) end
  for i, failure in ipairs(failures) do notifications[i] = notification(failure) end
  local left_out = findings:left_out()
  if left_out > 0 then
    notifications[#notifications + 1] = cbk.dict { { "level", "note" },
      { "message", message(("%d further findings of the same rules are not listed."):format(left_out)) } }
  end
  local invocation = cbk.dict { { "executionSuccessful", #failures == 0 } }
  if #notifications > 0 then invocation.toolExecutionNotifications = notifications end
  return cbk.dict {
    { "$schema", "https://json.schemastore.org/sarif-2.1.0.json" }, { "version", "2.1.0" },
    { "runs", cbk.list { cbk.dict {
      { "tool", cbk.dict { driver = cbk.dict { { "name", "cbk" }, { "version", cbk.version }, { "rules", descriptors } } } },
      { "invocations", cbk.list { invocation } }, { "results", results },
    } } },
  }
end

return sarif
