-- cbk help: print this list, the help of a command, or a page about a topic

local cbk = require "cbk"
local cli = require "cbk.cli"
local commands = require "cbk.commands"
local help = require "cbk.help"
local naming = require "cbk.naming"
local natural = require "cbk.natural"
local overview = require "cbk.cli.overview"
local wrap = require "cbk.wrap"

local parser = cli.parser("help", "Print what the commands are for, the help of one command or function, or a page about a topic.", [[
examples:
  cbk help
  cbk help convert
  cbk help cbk.create
  cbk help cstorch.optim.AdamW
  cbk help json]])
parser:argument("topic", "a command, a topic, or a name of the Lua library"):argname("TOPIC"):args "?"
parser:flag("--json", "without TOPIC: print the list as JSON")
local args = parser:parse()

local BUILT_IN_PAGES = { run = true } -- the help of a command without a script
-- The order of the commands.
local GROUPS = {
  { "explore", "ls", "show", "stats", "check", "plot", "report", "diff", "watch", "dump", "repl" },
  { "convert", "identify", "convert", "convert-config", "copy", "export", "import", "list", "list-converters", "rules", "infer", "params",
    "new", "merge", "extract-lora", "fold-lora-checkpoint", "convert-config-to-mup", "tensorflow-to-h5", "h5-to-tensorflow" },
  { "train", "train", "eval", "generate", "schedule", "make-data" },
  { "upgrade", "upgrade", "fix-checkpoint-spec", "data-iter-state-conversion" },
  { "cluster", "work", "finish", "status", "verify" },
  { "script", "run SCRIPT [ARGUMENTS]", "-e EXPRESSION", "serve", "demo", "help" },
}

--- The groups, and last what is in none of them: commands of the user's own.
local function groups()
  local is_grouped, own = {}, {}
  for name in pairs(overview.HIDDEN) do is_grouped[name] = true end
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
      local name, summary = group[i], overview.summary(group[i])
      print(wrap.text(("  %s%s%s"):format(name, (" "):rep(math.max(column - #name, 2)), summary), width))
    end
  end
  local pages = {}
  for _, topic in ipairs(overview.topics()) do
    if not BUILT_IN_PAGES[topic] then pages[#pages + 1] = ("    %-28s%s"):format(topic, overview.topic_summary(topic)) end
  end
  print(wrap.text(([[

help:
  cbk help COMMAND              options and examples of a command, as 'cbk COMMAND --help'
  cbk help cbk.create           a function of the Lua library; 'cbk help cbk' lists them
  cbk help TOPIC                a page about a topic:
%s

options:
  --traceback                   after an error, print where in the Lua code it came from
  --help, --version

environment:
  CBK_PATH                      folders of your own, searched first: commands (NAME.lua) and converters
                                (converters/NAME.lua)
  CBK_SCRIPTS                   a folder to use instead of cbk's own scripts
  CBK_TEAM, CBK_TEAM_TIMEOUT    several processes: 'cbk help cluster'
  CBK_SANDBOX_SECONDS           how long sandboxed code may run: 'cbk help safety'
  COLUMNS, NO_COLOR, PAGER      the width of help and tables; no colours; the pager]]):format(table.concat(pages, "\n")), width))
end

local function print_topic(topic)
  local page = overview.page(topic)
  if page then
    local command = overview.parser(topic)
    if command then print(command:get_help() .. "\n") end
    print((wrap.prose(overview.with_paths(page), cli.width()):gsub("%s+$", "")))
    return
  end
  local text, near_names = help.text(topic)
  if text then return print(wrap.text(text, cli.width(), 2)) end
  local names = overview.topics()
  for name in pairs(commands) do
    if not overview.HIDDEN[name] then names[#names + 1] = name end
  end
  local near = cbk.nearest(topic, names)
  if #near == 0 then near = near_names end
  cli.fail_with(2, ("help: there is no command, topic or function %s; %s"):format(cbk.quote(topic),
    naming.question(near) or "'cbk help' lists them"), "usage")
end

local function print_json()
  local list, pages = cbk.list(), cbk.list()
  for _, group in ipairs(groups()) do
    for i = 2, #group do
      list[#list + 1] = cbk.dict { { "name", group[i] }, { "group", group[1] }, { "summary", overview.summary(group[i]) } }
    end
  end
  for _, topic in ipairs(overview.topics()) do
    pages[#pages + 1] = cbk.dict { { "name", topic }, { "summary", overview.topic_summary(topic) } }
  end
  cli.print_json(cbk.dict { { "commands", list }, { "topics", pages } })
end

if args.topic then print_topic(args.topic) elseif args.json then print_json() else print_commands() end
