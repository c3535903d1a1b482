-- The prompt: reads statements and expressions one after the other, and commands that begin with ':'.
--
-- The session has its own globals over Lua's (`_G`, `print` and `require` stay untouched). Its input runs in the
-- interpreter, so that Ctrl-C can stop it; files that it calls are compiled as usual.

local cbk = require "cbk"
local chunk = require "cbk.repl.chunk"
local colour = require "cbk.colour"
local colours = require "cbk.repl.colours"
local commands = require "cbk.repl.commands"
local complete = require "cbk.repl.complete"
local editor = require "cbk.editor"
local ending = require "cbk.ending"
local help = require "cbk.help"
local inspect = require "cbk.inspect"
local listing = require "cbk.listing"
local mistakes = require "cbk.mistakes"
local naming = require "cbk.naming"
local natural = require "cbk.natural"
local pager = require "cbk.repl.pager"
local typed_mistakes = require "cbk.typed_mistakes"
local wrap = require "cbk.wrap"

local repl = {}

---@class Session
---@field env table           the globals
---@field checkpoints Checkpoint[]
---@field log string[]        input that ran without errors, for :save
---@field interactive boolean
---@field line integer        of the input, where the statement begins; without a terminal only
---@field traceback string|nil of the last error
local Session = {}
Session.__index = Session

local NO_CHECKPOINT = "no checkpoint is open; say :open FILE"

---@param reading table   options of `cbk.open`
local function new_session(interactive, reading)
  local env = { cbk = cbk, cstorch = require "cstorch", print = inspect.print_line }
  env._G = env
  setmetatable(env, { __index = function(_, name)
    if name == "ckpt" then cbk.fail("usage", NO_CHECKPOINT) end
    return rawget(_G, name)
  end })
  return setmetatable({ env = env, checkpoints = {}, log = {}, interactive = interactive, reading = reading }, Session)
end

---@param code? string   what was typed
local function message_of(err, code, env)
  local text = type(err) == "string" and mistakes(err, code, env) or tostring(err)
  return (text:gsub('^%[string "%(input%)"%]:%d+: ', ""):gsub("^%(input%):1: ", ""))
end

---@param code? string   what was typed
function Session:report(err, code)
  local text = cbk.shown(message_of(err, code, self.env), true)
  io.stdout:flush()
  if self.interactive then text = wrap.text(text, cbk.terminal.width "stderr", 2) end
  if not self.interactive then
    io.stderr:write(("cbk: line %d: %s\n"):format(self.line, text))
  elseif text == "interrupted" then
    io.stderr:write "\ninterrupted\n"
  elseif colour.enabled() then
    io.stderr:write(colour.text("red", text), "\n")
  else
    io.stderr:write(text, "\n")
  end
end

-- --- Lua

--- Whether more lines may complete the text. A string cannot continue on the next line, unless its line ends with a backslash.
local function is_incomplete(message, text)
  if message:find("unfinished string", 1, true) then return text:find "\\$" ~= nil end
  return message:find "near '<eof>'" ~= nil
end

--- A function for the text, whether it is an expression, and the text that has its values; or nil, the error, and whether more lines may
--- complete it.
function Session:compile(text)
  local expression = text:gsub("^%s*=", "")
  local compiled, expression_error = load("return " .. expression, "=(input)", "t", self.env)
  local is_expression = compiled ~= nil
  if not compiled then
    local with_return = chunk.with_return(text)
    if with_return then return load(with_return, "=(input)", "t", self.env), true, with_return end
    local statement_error
    compiled, statement_error = load(chunk.with_globals(text), "=(input)", "t", self.env)
    if not compiled then
      return nil, statement_error, is_incomplete(statement_error, text) or is_incomplete(expression_error, text)
    end
  end
  return compiled, is_expression
end

local LINES, PAGED_LINES = 100, 10000 -- of a value

---Prints values: texts unchanged, others in colours. Output longer than the terminal goes through a pager.
function Session:print_values(values)
  if not self.interactive then
    for i = 1, values.n do inspect.print(values[i]) end
    return
  end
  local out, with_colours = {}, colour.enabled()
  local lines = pager.program() and PAGED_LINES or LINES
  for i = 1, values.n do
    local value = values[i]
    if type(value) == "string" then
      out[i] = cbk.shown(value, true)
    else
      local text = inspect.text(value, { lines = lines, columns = cbk.terminal.width "stdout" })
      out[i] = with_colours and colours.value(text) or text
    end
  end
  pager.print(table.concat(out, "\n"))
end

--- Runs the function of what was typed. Its values become _, _1, _2, … and are printed unless `muted`. Returns their number, or nil if
--- something failed.
function Session:run(compiled, muted, code)
  local function pack(ok, ...) return ok, { n = select("#", ...), ... } end
  local ok, values = pack(editor.call(compiled))
  if not ok then
    local failure = values[1]
    self.traceback = failure[2]
    self:report(failure[1], code)
    return nil
  end
  if values.n == 0 then return 0 end
  self.env._ = values[1]
  for i = 1, values.n do self.env["_" .. i] = values[i] end
  if muted then return values.n end
  local printed, failure = editor.call(self.print_values, self, values)
  if not printed then self:report(failure[1]) end
  io.stdout:flush()
  local hint = type(values[1]) == "boolean" and typed_mistakes.identity(code, self.env)
  if hint then cbk.warn(hint) end
  return printed and values.n or nil
end

function Session:evaluate(text)
  local compiled, what, with_return = self:compile(text)
  if not compiled then
    self:report(what, text)
    return false
  end
  local muted = text:find ";%s*$" ~= nil
  local values = self:run(compiled, muted, text)
  if not values then return false end
  self.log[#self.log + 1] = chunk.statement { text = with_return or text, is_expression = what, values = values, muted = muted }
  return true
end

-- --- checkpoints

--- The statement that opens a checkpoint again, for :save.
function Session:open_text(path)
  local options = {}
  if self.reading.allow_records then options[1] = "allow_records = true" end
  local folders = {}
  for i, folder in ipairs(self.reading.allow_external) do folders[i] = ("%q"):format(folder) end
  if #folders > 0 then options[#options + 1] = ("allow_external = { %s }"):format(table.concat(folders, ", ")) end
  if self.reading.max_expansion then options[#options + 1] = ("max_expansion = %.0f"):format(self.reading.max_expansion) end
  local text = #options > 0 and (", { %s }"):format(table.concat(options, ", ")) or ""
  return ("cbk.open(%q%s)"):format(path, text)
end

---Opens a checkpoint as `ckpt` and `ckpt<n>`.
function Session:open(path)
  local checkpoint = cbk.open(path, self.reading)
  for _, warning in ipairs(checkpoint.warnings) do cbk.warn(warning) end
  for _, warning in ipairs(checkpoint.unreadable) do cbk.warn(warning) end
  table.insert(self.checkpoints, checkpoint)
  local name = "ckpt" .. #self.checkpoints
  self.env[name] = checkpoint
  return checkpoint, name
end

--- One line about a checkpoint that has just been opened.
local function opened_text(names, checkpoint)
  return ("%s = %s: %s, %s"):format(names, cbk.shown(checkpoint.path), listing.format_text(checkpoint),
    listing.totals_text(cbk.leaf_rows(checkpoint:raw_root()):totals()))
end

-- --- commands

--- The checkpoint that commands use.
function Session:checkpoint() return rawget(self.env, "ckpt") or cbk.fail("usage", NO_CHECKPOINT) end

---Opens a checkpoint as `ckpt`, and returns a line about it.
function Session:open_named(path)
  local checkpoint, name = self:open(path)
  self.env.ckpt = checkpoint
  self.log[#self.log + 1] = ("ckpt = %s\n%s = ckpt"):format(self:open_text(path), name)
  return opened_text("ckpt, " .. name, checkpoint)
end

---Runs another program on the terminal. Returns false if it could not be started or failed badly.
---@param words string[]
function Session:run_program(words) -- luacheck: no self
  local quoted = {}
  for i, word in ipairs(words) do quoted[i] = commands.quoted(word) end
  io.stdout:flush()
  os.execute(table.concat(quoted, " "))
end

--- Runs "!words" in a shell. Returns true on success.
function Session:shell(text)
  io.stdout:flush()
  local status = os.execute((text:gsub("^%s*!", "")))
  if status == 0 then return true end
  self:report(status % 256 ~= 0 and "interrupted" or ("exit status %d"):format(status / 256))
  return false
end

function Session:overview()
  local out = { "Type Lua: an expression is evaluated and printed, unless a ';' ends it. _ is the last value (_1, _2, … all of them).",
    "Tab completes names, files and the keys of tensors (ckpt[\"…); Ctrl-C stops what runs; Ctrl-R searches the history.", "" }
  local widest = 0
  for _, name in ipairs(commands.order) do widest = math.max(widest, #commands.all[name].usage) end
  for _, name in ipairs(commands.order) do
    out[#out + 1] = ("  %-" .. widest .. "s  %s"):format(commands.all[name].usage, commands.all[name].text)
  end
  out[#out + 1] = ("  %-" .. widest .. "s  %s"):format("!COMMAND", "run a command of the shell")
  local known = {}
  for _, name in ipairs(help.names()) do
    if name:find "^cbk%.[%w_]+$" or name:find "^%u%w+$" then known[#known + 1] = name end
  end
  out[#out + 1] = ""
  out[#out + 1] = "There is help on"
  out[#out + 1] = "  " .. table.concat(known, " ")
  if #self.checkpoints == 0 then
    out[#out + 1] = ""
    out[#out + 1] = "To begin: :open FILE, then :ls"
  end
  return table.concat(out, "\n")
end

--- Help about the type of a variable's value.
function Session:help_of_value(name)
  local value = rawget(self.env, name)
  local class = type(value) == "userdata" and rawget(debug.getmetatable(value), "__name")
  return class and help.text(class) or nil
end

--- Runs ":name rest" or "?name". Returns true if nothing failed.
function Session:command(text)
  if text:find "^%s*!" then return self:shell(text) end
  local name, rest = text:match "^%s*:(%a+!?)%s*(.-)%s*$"
  if not name then name, rest = "help", text:match "^%s*%?%s*(.-)%s*$" end
  if text:find "^%s*:%s*$" or text:find "^%s*:[^%a]" then name, rest = "", "" end
  local command = commands.all[name]
  if not command then
    local near = cbk.nearest(name, commands.order, 1)[1]
    self:report(("there is no command :%s; %s"):format(name, naming.question(near and ":" .. near) or ":help lists them"))
    return false
  end
  if rest == "" and command.usage:find " %u" then
    self:report(("missing argument: %s"):format(command.usage))
    return false
  end
  local ok, result = editor.call(command.run, self, rest)
  if not ok then
    self.traceback = result[2]
    self:report(result[1])
  end
  io.stdout:flush()
  return ok and result ~= false
end

local function is_command(text) return text:find "^%s*[:?!]" ~= nil end

-- --- reading

local function history_file()
  local state, home = os.getenv "XDG_STATE_HOME", os.getenv "HOME"
  if not state or state:sub(1, 1) ~= "/" then
    if not home or home == "" then return "" end
    state = home .. "/.local/state"
  end
  return state .. "/cbk/history"
end

local function remember(input, text)
  if text:find "%S" then input:remember(text) end
end

--- A prompt. Text between bytes 1 takes no columns.
local function prompt(text)
  if not colour.enabled() then return text .. " " end
  return ("\1\27[1;32m\1%s\1\27[0m\1 "):format(text)
end

--- Reads until the text is complete. Returns nil at the end of the input.
function Session:read(input)
  local lines = {}
  while true do
    local line, why = input:read(prompt(#lines == 0 and "cbk>" or "...>"))
    if not line then
      if why == "end" and #lines == 0 then return nil end
      if why == "end" then print() end
      return "" -- Ctrl-C, or Ctrl-D in the middle: the text is discarded
    end
    lines[#lines + 1] = line
    local text = table.concat(lines, "\n")
    if #lines == 1 and is_command(text) then
      remember(input, text)
      return text
    end
    local compiled, _, incomplete = self:compile(text)
    if compiled or not incomplete then
      remember(input, text)
      return text
    end
  end
end

---The command in a text that was typed like Lua, such as "ls layers", "help" or "exit()"; nil if the text has a meaning in Lua.
function Session:meant_command(text)
  local name, rest = text:match "^%s*(%a+)%s*(.-)%s*$"
  local command = (name == "exit" or name == "q") and "quit" or name
  if not commands.all[command] or self.env[name] ~= nil then return nil end
  local is_call = rest == "" or rest:find "^[%(\"']"
  if not is_call and self:compile(text) then return nil end
  return (":%s %s"):format(command, (rest:gsub("[%(%)\"']", ""))):gsub(" $", "")
end

---Names like a single one that is nil; nil if no name is similar.
---@return string[]|nil
function Session:meant_names(text)
  local name = text:match "^%s*([%a_][%w_]*)%s*$"
  if not name or #name < 4 or name == "ckpt" or self.env[name] ~= nil then return nil end
  local all = {}
  for known in pairs(self.env) do all[#all + 1] = known end
  for known in pairs(_G) do
    if rawget(self.env, known) == nil then all[#all + 1] = known end -- the prompt has a print of its own
  end
  local near = cbk.nearest(name, natural.sort(all), 2)
  return near[1] and near
end

function Session:handle(text)
  if not text:find "%S" then return true end
  if is_command(text) then return self:command(text) end
  local meant = self:meant_command(text)
  if meant then
    self:report(("%s means nothing in Lua%s"):format(cbk.quote(text), naming.suggestion(meant)))
    return false
  end
  local names = self.interactive and self:meant_names(text)
  if not names then return self:evaluate(text) end
  self:report(("%s is nil%s"):format(cbk.quote(text), naming.suggestion(names)))
  return true
end

function Session:interact()
  local input = editor.open {
    history = history_file(),
    complete = function(line, cursor) return complete.at(line, cursor, self.env, commands.all) end,
  }
  while not self.finished do
    -- A Ctrl-C between two steps must not end the session.
    local ok, text = editor.call(self.read, self, input)
    if ok and text == nil then
      print()
      break
    end
    if ok then self:handle(text) end
  end
  input:close()
end

--- Runs statements from a pipe. The first error ends the run.
function Session:batch(lines)
  local pending, count = {}, 0
  for line in lines do
    count = count + 1
    if #pending == 0 then self.line = count end
    pending[#pending + 1] = line
    local text = table.concat(pending, "\n")
    local is_whole = #pending == 1 and is_command(text)
    if not is_whole then
      local compiled, _, incomplete = self:compile(text)
      is_whole = compiled ~= nil or not incomplete
    end
    if is_whole then
      pending = {}
      if not self:handle(text) then return 1 end
      if self.finished then return 0 end
    end
  end
  if #pending > 0 and not self:handle(table.concat(pending, "\n")) then return 1 end
  return 0
end

---Runs a session over the given checkpoints until its end.
---@param paths string[]
---@param reading { allow_records: boolean, allow_external: string[], max_expansion: integer }   options of `cbk.open`
---@return integer exit_code
function repl.run(paths, reading)
  cbk.advise_overwrite "remove it, choose another name or pass overwrite = true" -- the input is Lua, not a command line
  local interactive = cbk.terminal.is_tty "stdin" and cbk.terminal.is_tty "stdout"
  local session = new_session(interactive, reading)
  local opened = {}
  for i, path in ipairs(paths) do
    local checkpoint, name = session:open(path)
    if i == 1 then session.env.ckpt = checkpoint end
    opened[i] = opened_text(i > 1 and name or #paths > 1 and "ckpt, ckpt1" or "ckpt", checkpoint)
    session.log[#session.log + 1] = ("%s = %s"):format(name, session:open_text(path))
    if i == 1 then session.log[#session.log + 1] = "ckpt = ckpt1" end
  end
  if not interactive then return session:batch(io.lines()) end
  local function print_text(text) print(wrap.text(text, cbk.terminal.width())) end
  print_text(("cbk %s with %s. :help shows what there is, Ctrl-D leaves."):format(cbk.version, jit.version))
  for _, line in ipairs(opened) do print_text(line) end
  session:interact()
  ending.forget()
  return 0
end

return repl
