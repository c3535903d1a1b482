-- The topics of help: the commands and their parsers, and the pages of scripts/help.

local cbk = require "cbk"
local cli = require "cbk.cli"
local commands = require "cbk.commands"

local overview = {}

local scripts = debug.getinfo(1, "S").source:match "^@(.*)lib/cbk/cli/overview%.lua$"
local pages = scripts .. "help"

-- Uses of `cbk` that are not a script of that name.
overview.BUILT_IN = {
  ["run SCRIPT [ARGUMENTS]"] = "run a Lua script, which has all your rights; '-' reads it from standard input",
  ["-e EXPRESSION"] = "evaluate Lua and print the result",
}
-- Commands that other programs call; lists for people leave them out.
overview.HIDDEN = { complete = true }

---A script's summary, from its first line: "-- cbk NAME: words". Other scripts may have any text there.
---@param name string
---@return string
function overview.summary(name)
  if overview.BUILT_IN[name] then return overview.BUILT_IN[name] end
  local line = cbk.fs.read(commands[name]):match "^[^\n]*"
  local text = line:match "^%-%-+%s*cbk%s+[%w_-]+%s*:%s*(.+)" or line:match "^%-%-+%s*(.+)" or ""
  return cbk.shown((text:gsub("%.$", "")))
end

---Names of the pages, sorted.
---@return string[]
function overview.topics()
  local out = {}
  for _, name in ipairs(cbk.fs.is_dir(pages) and cbk.fs.list(pages) or {}) do out[#out + 1] = name:match "^(.+)%.md$" end
  return out
end

---The text of a page, or nil.
---@param topic string
---@return string|nil
function overview.page(topic)
  local path = cbk.fs.join(pages, topic .. ".md")
  if not topic:find "/" and cbk.fs.exists(path) then return cbk.fs.read(path) end
end

---A page's text, where the names of cbk's own files ("converters/README.md") are their paths.
---@param text string
---@return string
function overview.with_paths(text)
  local root = cbk.fs.dirname(cbk.fs.absolute(pages:match "^(.*)/help$"))
  return (text:gsub("%f[%w/](%l+/[%w_/-]+%.%l+)", function(name)
    local path = cbk.fs.join(root, name)
    return cbk.fs.exists(path) and path or nil
  end))
end

---The subject of a page: its first sentence.
---@param topic string
---@return string
function overview.topic_summary(topic)
  local text = overview.page(topic):match "^#[^\n]*\n\n(.-)%.%s"
  return (text:gsub("%s+", " "):gsub("^%u%l", string.lower))
end

---The parser of a bundled command, without running the command. A user's own command has none: its script would have to run to
---define it.
---@param name string
---@return table|nil
function overview.parser(name)
  local path = commands[name]
  if not path or path ~= scripts .. name .. ".lua" and path ~= scripts .. name:gsub("-", "_") .. ".lua" then return nil end
  local found
  local caller_arg, marker = arg, {}
  cli.on_parse = function(parser)
    found = parser
    error(marker, 0)
  end
  arg = { [0] = name } -- luacheck: ignore 121
  local ok, problem = pcall(dofile, path)
  arg = caller_arg -- luacheck: ignore 121
  cli.on_parse = nil
  if not ok and problem ~= marker then error(problem, 0) end
  return found
end

return overview
