-- cbk help: print this list, the help of a command, or a page about a topic

local cbk = require "cbk"
local cli = require "cbk.cli"
local commands = require "cbk.commands"
local natural = require "cbk.natural"
local wrap = require "cbk.wrap"

local parser = cli.parser("help", "Print what the commands are for, the help of one command, or a page about a topic.", [[
examples:
  cbk help
  cbk help convert
  cbk help json]])
parser:argument("topic", "a command or a topic"):argname("TOPIC"):args "?"
local args = parser:parse()

local folder = debug.getinfo(1, "S").source:match "^@(.*)%.lua$"

-- What `cbk` does without a script of that name, and the order of the others.
local BUILT_IN = {
  ["run SCRIPT [ARGUMENTS]"] = "run a Lua script, which has all your rights; '-' reads it from standard input",
  ["-e EXPRESSION"] = "evaluate Lua and print the result",
}
local BUILT_IN_PAGES = { run = true } -- the help of such a command
local GROUPS = {
  { "explore", "ls", "show", "stats", "plot", "report", "diff", "dump", "repl" },
  { "convert", "identify", "convert", "convert-config", "copy", "list", "list-converters", "rules", "params", "new", "fold-lora-checkpoint",
    "convert-config-to-mup", "tensorflow-to-h5", "h5-to-tensorflow" },
  { "upgrade", "upgrade", "fix-checkpoint-spec", "data-iter-state-conversion" },
  { "script", "run SCRIPT [ARGUMENTS]", "-e EXPRESSION", "demo", "help" },
}

---The first line of a script, which says what it is for: "-- cbk NAME: words"; other scripts may say anything.
local function summary_of(name)
  if BUILT_IN[name] then return BUILT_IN[name] end
  local line = cbk.fs.read(commands[name]):match "^[^\n]*"
  local text = line:match "^%-%-+%s*cbk%s+[%w_-]+%s*:%s*(.+)" or line:match "^%-%-+%s*(.+)" or ""
  return cbk.shown((text:gsub("%.$", "")))
end

local function topics()
  local out = {}
  for _, name in ipairs(cbk.fs.is_dir(folder) and cbk.fs.list(folder) or {}) do out[#out + 1] = name:match "^(.+)%.md$" end
  return out
end

---What a page is about: its first sentence.
local function summary_of_topic(topic)
  local text = cbk.fs.read(cbk.fs.join(folder, topic .. ".md")):match "^#[^\n]*\n\n(.-)%.%s"
  return (text:gsub("%s+", " "):gsub("^%u%l", string.lower))
end

--- The groups, and last what is in none of them: commands of the user's own.
local function groups()
  local is_grouped, own = {}, {}
  for _, group in ipairs(GROUPS) do
    for _, name in ipairs(group) do is_grouped[name] = true end
  end
  for name in pairs(commands) do
    if not is_grouped[name] then own[#own + 1] = name end
  end
  local out = { unpack(GROUPS) }
  if #own > 0 then out[#out + 1] = { "your own (CBK_PATH)", unpack(natural.sort(own)) } end
  return out
end

local function print_commands()
  local width, column = cli.width(), 28
  print(wrap.text([[
Usage: cbk [--traceback] COMMAND [ARGUMENTS]
       cbk                       explore checkpoints at a prompt (on a terminal)]], width))
  for _, group in ipairs(groups()) do
    print(("\n%s:"):format(group[1]))
    for i = 2, #group do
      local name, summary = group[i], summary_of(group[i])
      print(wrap.text(("  %s%s%s"):format(name, (" "):rep(math.max(column - #name, 2)), summary), width))
    end
  end
  local pages = {}
  for _, topic in ipairs(topics()) do
    if not BUILT_IN_PAGES[topic] then pages[#pages + 1] = ("    %-28s%s"):format(topic, summary_of_topic(topic)) end
  end
  print(wrap.text(([[

help:
  cbk help COMMAND              options and examples of a command, as 'cbk COMMAND --help'
  cbk help TOPIC                a page about a topic:
%s

options:
  --traceback                   after an error, print where in the Lua code it came from
  --help, --version

environment:
  CBK_PATH                      folders with commands of your own (NAME.lua), searched first
  CBK_SCRIPTS                   another script library
  COLUMNS                       the width of help]]):format(table.concat(pages, "\n")), width))
end

local function print_topic(topic)
  local page = cbk.fs.join(folder, topic .. ".md")
  if not topic:find "/" and cbk.fs.exists(page) then
    print((wrap.prose(cbk.fs.read(page), cli.width()):gsub("%s+$", "")))
    return
  end
  local names = topics()
  for name in pairs(commands) do names[#names + 1] = name end
  local near = cbk.nearest(topic, names)
  cli.fail_with(2, ("help: there is no command or topic %s; %s"):format(cbk.quote(topic),
    #near > 0 and ("did you mean %s?"):format(table.concat(near, " or ")) or "'cbk help' lists them"), "usage")
end

if args.topic then print_topic(args.topic) else print_commands() end
