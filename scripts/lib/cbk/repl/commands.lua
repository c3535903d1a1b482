-- The commands of the prompt, which begin with ':'.

local cbk = require "cbk"
local chunk = require "cbk.repl.chunk"
local colour = require "cbk.colour"
local drawn = require "cbk.cli.drawn"
local extents = require "cbk.extents"
local fold = require "cbk.fold"
local help = require "cbk.help"
local listing = require "cbk.listing"
local naming = require "cbk.naming"
local natural = require "cbk.natural"
local near_keys = require "cbk.cli.near_keys"
local numbers = require "cbk.numbers"
local pager = require "cbk.repl.pager"
local plot = require "cbk.plot"
local progress = require "cbk.progress"
local state_stats = require "cbk.state_stats"
local stats_table = require "cbk.stats_table"
local text_table = require "cbk.text_table"
local unpaired = require "cbk.unpaired"
local wrap = require "cbk.wrap"

---@class ReplCommand
---@field usage string
---@field text string
---@field argument "file"|"key"|"name"|"lua"|nil  what completion suggests
---@field run fun(session: Session, rest: string): boolean|nil

---@type table<string, ReplCommand>
local commands = {}

local ORDER = { "help", "ls", "stats", "plot", "diff", "who", "open", "time", "mem", "save", "save!", "traceback", "quit" }

local function width() return cbk.terminal.width() end

--- Prints text for people, broken between words at the terminal's width.
local function print_text(text) pager.print(wrap.text(text, width())) end

local function print_lines(lines) pager.print(table.concat(lines, "\n")) end

-- --- help

commands.help = {
  usage = ":help [NAME]",
  text = "what there is, or what NAME is; ?NAME is the same",
  argument = "name",
  run = function(session, rest)
    if rest == "" then
      print_text(session:overview())
      return
    end
    local text, near = help.text(rest)
    local command = commands[rest:match(text and "^:(%a+!?)$" or "^:?(%a+!?)$")]
    if command then
      print_text(("%s\n  %s"):format(command.usage, command.text))
      return
    end
    if not text then text = session:help_of_value(rest) end
    if not text then
      cbk.fail("key", ("there is no help for %s; %s"):format(cbk.quote(rest), naming.question(near) or ":help lists what there is"))
    end
    print_text(text)
  end,
}

-- --- checkpoints

commands.ls = {
  usage = ":ls [GLOB]",
  text = "what is in ckpt; GLOB as in 'cbk ls'",
  argument = "key",
  run = function(session, rest)
    local checkpoint = session:checkpoint()
    local rows = cbk.leaf_rows(checkpoint:raw_root(), rest ~= "" and rest or nil)
    if #rows == 0 and rest ~= "" then
      cbk.fail("key", ("no key matches %s%s"):format(cbk.quote(rest), near_keys(cbk.leaf_rows(checkpoint:raw_root()), rest)))
    end
    local lines = {}
    listing.tree(rows, function(line) lines[#lines + 1] = wrap.text(line, width(), 2) end, width())
    lines[#lines + 1] = listing.totals_text(rows:totals())
    print_lines(lines)
  end,
}

commands.open = {
  usage = ":open FILE",
  text = "open a checkpoint as ckpt (and ckpt1, ckpt2, …)",
  argument = "file",
  run = function(session, rest) print(wrap.text(session:open_named(rest:gsub("^~/", (os.getenv "HOME" or "~") .. "/")), width())) end,
}

--- The native type of a value, or Lua's.
local function type_of(value)
  if type(value) ~= "userdata" then return type(value) end
  local meta = debug.getmetatable(value)
  return type(meta) == "table" and rawget(meta, "__name") or "userdata"
end

--- A tensor of a checkpoint or of cstorch; nil for anything else.
local function as_tensor(value)
  if cbk.compute.is_tensor(value) then return cbk.compute.to_lazy(value) end
  return type_of(value) == "Tensor" and value or nil
end

--- The tensor of a key of ckpt, or of a Lua expression, and its name; nil for anything else.
local function tensor_of(session, text)
  local checkpoint = rawget(session.env, "ckpt")
  local of_key = as_tensor(checkpoint and checkpoint:has(text) and checkpoint:get(text) or nil)
  if of_key then return of_key, fold.shown(text) end
  local compiled = load("return " .. text, "=(input)", "t", session.env)
  local ok, result = pcall(compiled or error)
  local tensor = ok and as_tensor(result)
  if tensor then return tensor, text end
end

--- The end of a message about a name that is no key of ckpt.
local function advice_on_key(checkpoint, text)
  local near = checkpoint and near_keys(cbk.leaf_rows(checkpoint:raw_root()), text) or ""
  return near ~= "" and near or "; :ls lists the keys"
end

--- Fails for what is not a tensor: a key of another value, or nothing that is known.
local function fail_no_tensor(session, text)
  local checkpoint = rawget(session.env, "ckpt")
  local value = checkpoint and cbk.find(checkpoint:raw_root(), text)
  if value ~= nil then cbk.fail("key", ("%s is not a tensor (%s)"):format(cbk.quote(text), cbk.kind(value))) end
  cbk.fail("key", ("%s is neither a key nor a tensor%s"):format(cbk.quote(text), advice_on_key(checkpoint, text)))
end

local function stats_row(key, tensor)
  return { file = "", key = key, dtype = tensor.dtype, shape = tensor:shape(), bytes = tensor:nbytes(), stats = tensor:stats() }
end

--- A function that shows how much has been read, on a terminal.
local function progress_over(total) return cbk.terminal.is_tty "stderr" and progress.reading(total) or function() end end

commands.stats = {
  usage = ":stats [KEY]",
  text = "statistics of the tensors of ckpt that match (without KEY all, an optimizer's summed up), or of a tensor that Lua gives",
  argument = "key",
  run = function(session, rest)
    local tensor, name = nil, nil
    if rest ~= "" then tensor, name = tensor_of(session, rest) end
    local found = {}
    if tensor then
      found[1] = stats_row(name, tensor)
    else
      local root = session:checkpoint():raw_root()
      local rows, states = cbk.leaf_rows(root, rest ~= "" and rest or nil):in_natural_order(), state_stats.new(root)
      local show = progress_over(rows:totals().bytes)
      for i = 1, #rows do
        local row = rows[i]
        if row.shape and not row.problem and not row.type:find "^complex" then
          local own = stats_row(row.path, rows:value(i))
          own.parameter_key = states:named(row.path)
          if rest ~= "" or not states:add(own) then found[#found + 1] = own end
          show(row.path, row.bytes)
        end
      end
      for _, sum in ipairs(states:rows()) do found[#found + 1] = sum end
      if #found == 0 then fail_no_tensor(session, rest) end
    end
    print_lines(stats_table.lines(found, { width = width() }))
  end,
}

commands.plot = {
  usage = ":plot KEY",
  text = "a histogram of a tensor of ckpt (a key, glob or part), or of one that Lua gives; of a matrix also blocks; 'cbk plot' has more",
  argument = "key",
  run = function(session, rest)
    local tensor, name = tensor_of(session, rest)
    local checkpoint = not tensor and rawget(session.env, "ckpt")
    local function advice(key) return "name one of them, such as " .. cbk.shown(key) end
    local one = checkpoint and drawn.one(cbk.leaf_rows(checkpoint:raw_root()), rest, advice)
    if one then tensor, name = one.tensor, fold.shown(one.key) end
    if not tensor then fail_no_tensor(session, rest) end
    local title = ("%s  %s %s"):format(name, tensor.dtype, extents.shape(tensor:shape()))
    print_lines(plot.lines(tensor, { title = title, width = width() or 80, colour = colour.enabled() }))
  end,
}

local function quoted(word) return "'" .. word:gsub("'", "'\\''") .. "'" end

--- The meaning of a word of :diff: the path of a checkpoint, or a tensor.
local function side_of(session, word)
  local value = rawget(session.env, word)
  if type(value) == "userdata" and cbk.kind(value) == "Checkpoint" then return value.path end
  local tensor = tensor_of(session, word)
  if tensor then return nil, tensor end
  return (word:gsub("^~/", (os.getenv "HOME" or "~") .. "/"))
end

--- Integers beyond 2^53 have all their digits.
local function number_text(number) return type(number) == "number" and ("%.6g"):format(number) or tostring(number) end

local function tensor_difference(a, b)
  local d = a:compare(b)
  if d.different == 0 then return ("the same: %s"):format(numbers.counted(d.numel, "element")) end
  local text = ("%s of %s differ (%s), max abs %s, max rel %s"):format(numbers.grouped(d.different), numbers.counted(d.numel, "element"),
    numbers.percent(d.different, d.numel), number_text(d.max_abs), number_text(d.max_rel))
  local others = unpaired(d)
  return others == "" and text or text .. ", " .. others
end

commands.diff = {
  usage = ":diff [A] [B]",
  text = "how two checkpoints differ (variables or files; by themselves ckpt1 and ckpt2; with A alone ckpt and A), or two tensors",
  argument = "file",
  run = function(session, rest)
    local words = {}
    for word in rest:gmatch "%S+" do words[#words + 1] = word end
    if #words < 2 then session:checkpoint() end
    if #words == 0 and not rawget(session.env, "ckpt2") then
      cbk.fail("usage", "no second checkpoint is open; say :open FILE, or :diff FILE")
    end
    if #words == 0 then words = { "ckpt1", "ckpt2" } elseif #words == 1 then words = { "ckpt", words[1] } end
    if #words > 2 then cbk.fail("usage", "expected at most two names: :diff [A] [B]") end
    local path_a, a = side_of(session, words[1])
    local path_b, b = side_of(session, words[2])
    if a and b then return print(wrap.text(tensor_difference(a, b), width())) end
    local path, word = path_a or path_b, words[path_a and 1 or 2]
    if (a or b) and not cbk.fs.exists(path) then
      local advice = advice_on_key(rawget(session.env, "ckpt"), word)
      cbk.fail("key", ("%s is neither a key, a tensor nor a file%s"):format(cbk.quote(word), advice))
    end
    if a or b then cbk.fail("usage", "cannot compare a tensor with a checkpoint; name two of a kind") end
    session:run_program { cbk.fs.program(), "diff", path_a, path_b }
  end,
}

-- --- the session

--- A value on one line, for :who.
local function text_of(value)
  if type(value) == "function" then return "" end
  local ok, text = pcall(listing.value_text, value)
  return ok and cbk.shown(text) or ""
end

local NARROWEST = 20 -- of a value
local IS_GIVEN = { _G = true, cbk = true, cstorch = true, print = true }

commands.who = {
  usage = ":who",
  text = "the variables of the session",
  run = function(session)
    local names, rows = {}, {}
    for name in pairs(session.env) do
      if type(name) == "string" and not IS_GIVEN[name] and not name:find "^_%d*$" then names[#names + 1] = name end
    end
    local longest = math.max(NARROWEST, (width() or 100) - 40)
    for i, name in ipairs(natural.sort(names)) do
      local value = rawget(session.env, name)
      local text = text_of(value)
      if cbk.terminal.columns(text) > longest then text = text:sub(1, longest - 1):gsub("[\192-\255]?[\128-\191]*$", "") .. "…" end
      rows[i] = { cbk.shown(name), type_of(value), text }
    end
    if #rows == 0 then return print "no variables yet" end
    print_lines(text_table.lines({ { title = "name" }, { title = "type", weight = 2 }, { title = "value", weight = 1 } }, rows, width()))
  end,
}

commands.time = {
  usage = ":time EXPRESSION",
  text = "evaluate, and say how long it took",
  argument = "lua",
  run = function(session, rest)
    local start = cbk.clock()
    if not session:evaluate(rest) then return false end
    print(("%.3f s"):format(cbk.clock() - start))
  end,
}

--- A line of /proc/self/status in bytes.
local function process_memory(field)
  for line in io.lines "/proc/self/status" do
    local kilobytes = line:match("^" .. field .. ":%s*(%d+) kB")
    if kilobytes then return tonumber(kilobytes) * 1024 end
  end
  return 0
end

commands.mem = {
  usage = ":mem",
  text = "memory in use",
  run = function(session)
    collectgarbage()
    print(("Lua %s, process %s, mapped files %s"):format(cbk.format_size(math.floor(collectgarbage "count" * 1024)),
      cbk.format_size(process_memory "RssAnon"), cbk.format_size(process_memory "RssFile")))
    for i, checkpoint in ipairs(session.checkpoints) do print(("ckpt%d  %s"):format(i, cbk.shown(checkpoint.path))) end
  end,
}

local function save(session, path)
  cbk.fs.write(path, chunk.header .. "\n" .. table.concat(session.log, "\n") .. "\n", { overwrite = true })
  print(("%s: %s written"):format(cbk.shown(path), numbers.counted(#session.log, "statement")))
end

commands.save = {
  usage = ":save FILE",
  text = "write what was typed (and worked) as a script",
  argument = "file",
  run = function(session, rest)
    if cbk.fs.exists(rest) then
      cbk.fail("value", ("cannot save to %s: it exists already; ':save! FILE' replaces it"):format(cbk.quote(rest)))
    end
    save(session, rest)
  end,
}

commands["save!"] = {
  usage = ":save! FILE",
  text = "the same, in place of an existing file",
  argument = "file",
  run = function(session, rest) save(session, rest) end,
}

commands.traceback = {
  usage = ":traceback",
  text = "where the last error came from",
  run = function(session) print(cbk.shown(session.traceback or "there was no error", true)) end,
}

commands.quit = {
  usage = ":quit",
  text = "leave; so does Ctrl-D",
  run = function(session) session.finished = true end,
}

return { all = commands, order = ORDER, quoted = quoted }
