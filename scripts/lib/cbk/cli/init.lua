-- Command lines of cbk's commands: lua-argparse with one style of help, one set of common options, and the exit codes of cbk
-- (0 done, 1 findings or failure, 2 wrong usage). Results go to stdout; progress and messages to stderr.

local argparse = require "argparse"
local cbk = require "cbk"
local colour = require "cbk.colour"
local errors = require "cbk.errors"
local folders_inside = require "cbk.cli.folders_inside"
local job = require "cbk.job"
local limits = require "cbk.limits"
local mistyped = require "cbk.cli.mistyped"
local naming = require "cbk.naming"
local parts = require "cbk.parts"
local python_int = require "cbk.python_int"
local training_files = require "cbk.training_files"
local warnings = require "cbk.warnings"
local words = require "cbk.cli.words"
local wrap = require "cbk.wrap"

local cli = {}

---Ends the command with a message and an exit code of its own.
---@param exit_code integer
---@param problem string
---@param code? string   "usage", …
---@param advice? string
function cli.fail_with(exit_code, problem, code, advice)
  local _, raised = pcall(cbk.fail, code or "failure", problem, { advice = advice })
  raised.exit_code, raised.where = exit_code, nil
  error(raised, 0)
end

--- The command line with which the user called this command or script: "cbk ls", or "cbk run tools/mine.lua".
local function call_of(name)
  local typed = arg and arg[0] or name
  return (typed:find "%.lua$" or typed:find("/", 1, true)) and "cbk run " .. typed or "cbk " .. typed
end

---Raises a usage error: one line, a hint, exit code 2.
---@param name string     the command
---@param message string
function cli.usage_error(name, message)
  cli.fail_with(2, ("%s: %s"):format(name, message), "usage", ("see '%s --help'"):format(call_of(name)))
end

--- Joins "--threads -1" to "--threads=-1" and "-s -1" to "-s-1", so that argparse does not read the number as an option.
local function join_negative_numbers(line)
  local out = {}
  for _, word in ipairs(line) do
    local before = out[#out] or ""
    if word:find "^%-%d" and before:find "^%-%-%a[%w_-]*$" then
      out[#out] = before .. "=" .. word
    elseif word:find "^%-%d" and before:find "^%-%a$" then
      out[#out] = before .. word
    else
      out[#out + 1] = word
    end
  end
  return out
end

--- Refuses unknown long options with the nearest names, and spells "-s=3", which Python's argparse accepts, as "-s3".
local function spelt_out(parser, command, line)
  local out, is_plain = {}, false
  for _, word in ipairs(line) do
    is_plain = is_plain or word == "--"
    local long = word:match "^%-%-[^=]+"
    local short, short_value = word:match "^(%-%a)=(.*)$"
    if not is_plain and long and not words.option(parser, long) then cli.usage_error(command, mistyped.option(parser, long)) end
    local option = not is_plain and short and words.option(parser, short)
    if option and option._maxargs > 0 then
      out[#out + 1] = short .. short_value
      if short_value == "" then out[#out + 1] = "" end
    else
      out[#out + 1] = word
    end
  end
  return out
end

-- --- help

local NARROWEST, WIDEST, NARROW = 40, 100, 72
local IN_A_FILE = 80

---Columns of the terminal, or the value of COLUMNS; nil if results go to a file or another program.
---@return integer?
function cli.columns() return tonumber(os.getenv "COLUMNS") or cbk.terminal.width "stdout" end

---Columns for help: as wide as the terminal, within bounds that are easy to read; 80 in a file or a pipe.
---@return integer
function cli.width() return math.min(math.max(cli.columns() or IN_A_FILE, NARROWEST), WIDEST) end

---A function that prints a result, with lines broken between words if the terminal is narrower.
---@param paint? fun(text: string): string   puts colours into a text; used where the terminal has them
---@return fun(text: string)
function cli.printer(paint)
  local columns = cli.columns()
  if not paint or not colour.enabled() then paint = function(text) return text end end
  return function(text) io.stdout:write(paint(wrap.text(text, columns, 2)), "\n") end
end

--- "-o DIR, --output-dir DIR" on one line, as in Python's argparse, if it fits.
local function label_of(width)
  return function(option)
    local arguments, names = table.concat(option:_get_argument_list(), " "), {}
    for i, name in ipairs(option._public_aliases) do names[i] = arguments == "" and name or name .. " " .. arguments end
    local line = table.concat(names, ", ")
    if #line <= width - 3 then return { line } end
    for i = 1, #names - 1 do names[i] = names[i] .. "," end
    return names
  end
end

--- Names arguments in messages as the usage does: "missing argument CHECKPOINT".
local function with_shown_names(parser, message)
  for _, argument in ipairs(parser._arguments) do
    local first, last = message:find(("argument '%s'"):format(argument._name), 1, true)
    if first then return message:sub(1, first - 1) .. "argument " .. argument:_get_argname(1) .. message:sub(last + 1) end
  end
  return message
end

---A description as the end of a message, without defaults and conditions.
local function after_colon(description)
  local text = (description or ""):gsub("%s*%(default.*", ""):gsub(";.*", "")
  return text == "" and "" or ": " .. text
end

--- Explains what is missing: "missing option '--to' (--tgt-fmt): the format wanted, such as cs-2.5 or hf".
local function with_description(parser, message)
  local name = message:match "^missing option '([^']*)'$" or message:match "^option '([^']*)' requires an argument$"
  for _, option in ipairs(name and parser._options or {}) do
    local others, is_meant = {}, false
    for _, alias in ipairs(option._aliases) do is_meant = is_meant or alias == name end
    for _, alias in ipairs(option._public_aliases) do others[#others + 1] = alias ~= name and alias or nil end
    if is_meant then
      local also = #others > 0 and (" (%s)"):format(table.concat(others, ", ")) or ""
      return message .. also .. after_colon(option._description)
    end
  end
  local missing = message:match "^missing argument '([^']*)'$"
  for _, argument in ipairs(missing and parser._arguments or {}) do
    if argument._name == missing then return message .. after_colon(argument._description) end
  end
  return message
end

-- --- warnings

local function silent() end

local function warn_in_json(message)
  io.stdout:flush()
  io.stderr:write(cbk.json(cbk.dict { warning = cbk.dict { message = message } }, { shown = true }), "\n")
end

-- --- parsers

---Called with a parser that is about to parse (`overview.parser`).
---@type fun(parser: table)|nil
cli.on_parse = nil

--- Makes every commit of the command a step of the job that its options ask for.
local function begin_job(name, args)
  if args.plan and args.resume then
    cli.usage_error(name, "--plan and --resume exclude each other: a planned job can always be continued")
  end
  job.report = args
  local command = job.command_of { arg[0], unpack(arg) }
  if args.plan then job.plan(command, args.plan) elseif args.resume then job.resume(command) end
end

---Puts the common options into a block of their own, after the command's, and leaves them out of the usage.
local function separate_common(parser)
  rawset(parser, "common", {})
  local get_usage, get_help = parser.get_usage, parser.get_help
  rawset(parser, "get_usage", function(self)
    for option in pairs(self.common) do option._hidden = true end
    local usage = get_usage(self)
    for option in pairs(self.common) do option._hidden = nil end
    return usage
  end)
  rawset(parser, "get_help", function(self)
    local own, common = {}, {}
    for _, option in ipairs(self._options) do table.insert(self.common[option] and common or own, option) end
    self._groups = {}
    self:group("Options", unpack(own))
    if #common > 0 then self:group("Options of many commands", unpack(common)) end
    return get_help(self)
  end)
end

---A parser for `cbk NAME`; in a script that `cbk run` runs, help names the script. Add arguments and options as in argparse,
---then call `parser:parse()`.
---@param name string
---@param description string
---@param epilog? string
function cli.parser(name, description, epilog)
  collectgarbage("setpause", 125) -- thousands of rows are kept: the same amount of garbage would double the memory
  local width = cli.width()
  local parser = argparse(call_of(name), wrap.prose(description, width), epilog and wrap.prose(epilog, width))
  rawset(parser, "texts", { description = description, epilog = epilog or "" })
  parser:help_max_width(width):usage_max_width(width)
  if width < NARROW then parser:help_description_margin(8):usage_margin(2) end
  local labels = { option = label_of(width), argument = function(argument) return { argument:_get_argname(1) } end }
  for kind, label in pairs(labels) do
    local add = parser[kind]
    rawset(parser, kind, function(self, ...)
      local element = add(self, ...)
      rawset(element, "_get_label_lines", label)
      if kind == "argument" then element:argname(element._name:upper()) end
      return element
    end)
  end
  separate_common(parser)
  parser:add_help { name = "-h --help", description = "print this help" }
  rawset(parser, "error", function(self, message)
    local said = message:gsub("^(unknown option '%-%a')\nDid you.*", "%1") -- all one-letter options are similar
    if said == "too many arguments" then said = mistyped.argument(self, self.typed) end
    cli.usage_error(name, with_shown_names(self, with_description(self, said)))
  end)
  local parse = parser.parse
  rawset(parser, "parse", function(self, line)
    if cli.on_parse then cli.on_parse(self) end
    local typed = spelt_out(self, name, join_negative_numbers(line or arg))
    rawset(self, "typed", typed)
    local args = parse(self, typed)
    warnings.main.is_once = true
    if args.quiet then warnings.main.print = silent elseif args.json then warnings.main.print = warn_in_json end
    local can_overwrite = words.option(self, "--overwrite") ~= nil
    if not args.dry_run then begin_job(name, args) end
    cbk.advise_overwrite("remove it" .. (can_overwrite and ", choose another name or add --overwrite" or " or choose another name"))
    return args
  end)
  return parser
end

---Allows old command lines with one dash before a long option name. argparse would read these as several options.
---@param parser table
---@param names table<string, string>   "-d_base" to "--base_layer_width"
function cli.single_dash(parser, names)
  local parse = parser.parse
  rawset(parser, "parse", function(self, args)
    local out = {}
    for i, word in ipairs(args or arg) do
      local name, value = word:match "^(%-[^-=][^=]*)(.*)$"
      out[i] = names[name] and names[name] .. value or word
    end
    return parse(self, out)
  end)
end

---A converter for the option `name`: a whole number, at least `least` (default: 0).
---@param name string
---@param least? integer   default: 0
---@param bits? integer    it is below 2^bits (default: 53)
local function whole_number(name, least, bits)
  bits = bits or 53
  return function(text)
    local number = tonumber(text)
    if number and number % 1 == 0 and number >= (least or 0) and number < 2 ^ bits then return number end
    local wanted = number and number >= 2 ^ bits and ("below 2^%d"):format(bits) or ("of at least %d"):format(least or 0)
    return nil, ("%s '%s': expected a whole number %s"):format(name, text, wanted)
  end
end

---A converter for the option `name`: bytes from "10GB" or "512MiB", at least one.
---@param name string
local function size(name)
  return function(text)
    local ok, value = pcall(cbk.parse_size, text)
    if ok and value >= 1 then return value end
    return nil, ("%s '%s': expected a whole number with a unit, such as 512MiB or 10GB"):format(name, text)
  end
end

-- Options that several commands share, with one name and one meaning everywhere.
local common = {
  threads = function(p)
    p:option("--threads", "worker threads (default: as many as the machine has, at most 4)"):argname("N")
      :convert(whole_number("--threads", 1))
  end,
  memory = function(p)
    p:option("--memory", "limit the memory for blocks in flight (default: 96MiB)"):argname("SIZE"):convert(size "--memory")
  end,
  overwrite = function(p) p:flag("--overwrite", "replace an existing output") end,
  ["dry-run"] = function(p) p:flag("--dry-run", "print what would be read and written, and write nothing") end,
  ["no-progress-bar"] = function(p) p:flag("--no-progress-bar", "print no progress on stderr") end,
  quiet = function(p) p:flag("-q --quiet", "print neither progress nor warnings") end,
  json = function(p) p:flag("--json", "print the result, errors and warnings as JSON; see 'cbk help json'") end,
  ["allow-records"] = function(p)
    p:flag("--allow-records", "take instances of Python classes, such as argparse.Namespace: write them as they were read, read them in H5")
  end,
  ["allow-external"] = function(p)
    p:option("--allow-external", "also read files that the checkpoint names in this folder; may be repeated"):argname("DIR"):count "*"
      :convert(function(path)
        if cbk.fs.is_dir(path) then return path end
        return nil, ("--allow-external %s is not a folder"):format(cbk.quote(path))
      end)
  end,
  io = function(p)
    p:option("--io", "how scattered elements are read: pread or mmap (default: pread on file systems of a network, else mmap)")
      :argname("HOW"):choices { "pread", "mmap" }:action(function(args, name, how) args[name] = how; cbk.read_by(how) end)
  end,
  salvage = function(p) p:flag("--salvage", "open a file that is cut short; tensors that are not whole are named and left out") end,
  sync = function(p) p:flag("--sync", "wait until the output is on the disk") end,
  provenance = function(p)
    p:flag("--provenance", "also write OUTPUT.provenance.json: command, sources, and digests of all bytes, for `cbk verify`")
  end,
  resume = function(p)
    p:flag("--resume", "if it was killed before, continue where it was; what is written so far is kept in OUTPUT.job (`cbk help cluster`)")
  end,
  plan = function(p)
    p:option("--plan", "write nothing yet: make a job in this folder, for `cbk work` on many machines (`cbk help cluster`)")
      :argname "FOLDER"
  end,
  ["allow-overflow"] = function(p)
    p:flag("--allow-overflow", "write values that the target's dtype cannot hold as infinite, NaN or the nearest integer, with a warning")
  end,
  ["max-expansion"] = function(p)
    p:option("--max-expansion", "limit for data that is larger than the bytes stored for it (compressed, repeated or never written), "
      .. "such as 100GB (default: 1GiB for reading; for writing, the larger of 16GiB and 1,000 times the input)")
      :argname("SIZE"):convert(size "--max-expansion")
  end,
}

---Adds common options by name, except those that the parser has already.
---@param parser table
---@param ... "threads"|"memory"|"overwrite"|"dry-run"|"no-progress-bar"|"quiet"|"json"|"allow-records"|"sync"|"allow-overflow"
---|"resume"|"plan"|"provenance"|"max-expansion"|"allow-external"|"salvage"|"io"
function cli.options(parser, ...)
  local added = {}
  for _, option in ipairs(parser._options) do added[option._name] = true end
  for _, name in ipairs { ... } do
    local add = common[name] or cbk.fail("usage", ("cli.options: there is no common option '%s'"):format(name))
    local first = #parser._options + 1
    if not added["--" .. name] then add(parser) end
    for i = first, #parser._options do parser.common[parser._options[i]] = true end
  end
  return parser
end

---Adds the options of every command that reads a checkpoint (see `cli.reading`).
function cli.input_options(parser) return cli.options(parser, "allow-records", "allow-external", "max-expansion", "salvage", "io") end

---Adds the options of every command that accepts a user's converter.
function cli.converter_options(parser)
  parser:option("--converter", "a converter file of your own: a Lua program that runs with all your rights, unless --sandbox is given")
    :argname "FILE"
  parser:flag("--sandbox", "run the converter file in a sandbox: tables, arithmetic and rules; no files, no programs")
end

---With --sandbox: from here on, the kernel lets the program write below these folders alone, and closes the network, whatever the
---converter file finds to do. Call it before anything is opened.
---@param args table
---@param ... string   folders; missing ones are made, and removed again if they stay empty
function cli.confine(args, ...)
  if args.sandbox and not limits.confine(args.dry_run and {} or { ... }) then
    cbk.warn "the kernel has no Landlock (Linux 5.19), so that the sandbox of Lua is the only wall around the converter file's writing"
  end
end

---The options of `cbk.open` from the command line.
---@param args table
function cli.reading(args)
  return {
    allow_records = args.allow_records, allow_external = args.allow_external, max_expansion = args.max_expansion,
    salvage = args.salvage or nil,
  }
end

---Adds the options of every command that writes a checkpoint (see `cli.commit`).
function cli.output_options(parser)
  return cli.options(parser, "overwrite", "allow-overflow", "max-expansion", "dry-run", "threads", "memory", "sync", "no-progress-bar",
    "quiet", "json", "resume", "plan", "provenance")
end

---Adds --from and --to, with the Model Zoo's names for them. Case does not matter.
---@param parser table
---@param what { from: string|nil, to: string|nil, from_default: string|nil, to_default: string|nil, needs_to: boolean|nil }   texts
---@return table from   the option
function cli.format_options(parser, what)
  local function add(names, target, text, default)
    return parser:option(names, text, default):target(target):argname("FORMAT"):convert(string.lower)
  end
  local from = what.from and add("--from --src-fmt", "src_fmt", what.from, what.from_default)
  local to = what.to and add("--to --tgt-fmt", "tgt_fmt", what.to, what.to_default)
  if what.needs_to then to:count(1) end
  return from
end

local FORMAT_OPTIONS = { src_fmt = { "--from", "--src-fmt", "--src_fmt" }, tgt_fmt = { "--to", "--tgt-fmt", "--tgt_fmt" } }

---A format option for messages: the name that the user typed, else the first.
---@param target "src_fmt"|"tgt_fmt"
---@return string   "--from"
function cli.typed_format(target)
  for _, word in ipairs(arg) do
    for _, name in ipairs(FORMAT_OPTIONS[target]) do
      if word:match "^[^=]*" == name then return name end
    end
  end
  return FORMAT_OPTIONS[target][1]
end

---Adds --key to a command whose keys are arguments, for those who know it from other commands.
---@param parser table
---@param target string     the argument
---@param is_list? boolean  there may be several
function cli.key_option(parser, target, is_list)
  parser:option("--key", "the same as the argument" .. (is_list and "; may be repeated" or "")):argname("GLOB")
    :target("given_keys"):count(is_list and "*" or "?")
  local parse = parser.parse
  rawset(parser, "parse", function(self, line)
    local args = parse(self, line)
    if not is_list and args[target] and args.given_keys then
      self:error(("both '%s' and --key '%s' are given, which mean the same; keep one of them"):format(args[target], args.given_keys))
    end
    if not is_list then args[target] = args[target] or args.given_keys end
    for _, key in ipairs(is_list and args.given_keys or {}) do table.insert(args[target], key) end
    return args
  end)
end

---Sets the completions of an option or argument, if argparse's choices would be too strict.
---@param element table      of argparse
---@param names string[]|fun(): string[]   a function where it takes time to find them out
---@return table element
function cli.candidates(element, names)
  element.candidates = names
  return element
end

---Adds --format, for an output of any format that has suffixes of its own.
---@param parser table
---@param target string   the argument whose suffix says the format without the option: "OUT"
function cli.format_option(parser, target)
  local names, texts = {}, {}
  for _, format in ipairs(cbk.formats()) do
    if format.written and #format.suffixes > 0 then
      names[#names + 1] = format.name
      texts[#texts + 1] = format.prefix and ("%s (%s is then a prefix)"):format(format.name, target) or format.name
    end
  end
  local text = ("%s or %s (default: from %s)"):format(table.concat(texts, ", ", 1, #texts - 1), texts[#texts], target)
  cli.candidates(parser:option("--format", text):argname "FORMAT", names)
end

---For `:convert(cli.dtype)`: the name of a dtype.
function cli.dtype(text)
  local ok, dtype = pcall(cbk.dtype, text)
  if ok then return dtype.name end
  return nil, errors.text(dtype)
end

---The option of commands that write a map loader's state; it accepts the whole numbers that Python accepts.
---@param names string   "-s --shuffle_seed"
---@return table option
function cli.shuffle_seed(parser, names, description, default)
  return parser:option(names, description, default):hidden_name("--shuffle-seed"):argname("SEED"):convert(function(text)
    local seed, problem = python_int(text, true)
    if not seed then return nil, ("--shuffle_seed %s %s"):format(cbk.quote(text), problem) end
    return seed
  end)
end

---Fails if an option's value is not a folder.
---@param name string     the command
function cli.folder(name, option, path)
  if path == "" then cli.usage_error(name, option .. ": expected the name of a folder, found an empty text") end
  if not cbk.fs.is_dir(path) then cbk.fail("io", ("%s: '%s' is not a folder"):format(option, path)) end
end

---For `:convert(cli.size "--shard-size")`.
cli.size = size
---For `:convert(cli.whole_number "--seed")`.
cli.whole_number = whole_number

---Prints warnings on stderr.
---@param list string[]
function cli.warn(list)
  for _, warning in ipairs(list) do cbk.warn(warning) end
end

local LONGEST_MESSAGE = 500 -- bytes

---Prints an error on stderr, if the program ends without raising one.
---@param args table   of the command
---@param problem table   an error of cbk
function cli.print_error(args, problem)
  problem = errors.with(problem, {})
  problem.where = nil -- a place in cbk's own code
  local text = errors.text(problem)
  if #text > LONGEST_MESSAGE then text = text:sub(1, LONGEST_MESSAGE):gsub("[\192-\255]?[\128-\191]*$", "") .. "…" end
  if args.json then io.stderr:write(cbk.error_json(problem), "\n") else cbk.terminal.error(cbk.shown(text)) end
end

local MOST_NAMES = 5 -- of files in a message

---Raises the error of a file that cannot be opened, with advice if a part of it can be read.
local function fail_to_open(problem, path, args)
  local code = type(problem) == "table" and problem.code
  local part = code == "ambiguous" and parts.in_folder(path)
  if part then
    cbk.fail("unsupported", ("cannot open %s: the folder holds the %d parts of one checkpoint, %s, which are not joined"):format(
      cbk.quote(path), part.count, part.what))
  end
  local states = code == "ambiguous" and training_files.in_folder(path, cli.reading(args))
  if states then
    cbk.fail("ambiguous", ("cannot open %s: the folder has no weights of a model, but %s"):format(cbk.quote(path),
      naming.listed(states, MOST_NAMES)), { advice = "name one of these files" })
  end
  local advice = code == "missing" and not problem.advice and folders_inside(path)
  if advice then error(errors.with(problem, { advice = advice }), 0) end
  local reading = cli.reading(args)
  local may_be_cut = (code == "format" or code == "missing") and not reading.salvage and not problem.advice
  reading.salvage = true
  if not may_be_cut or not pcall(cbk.open, path, reading) then error(problem, 0) end
  error(errors.with(problem, { advice = "'cbk copy --salvage' takes the tensors that are whole" }), 0)
end

---Opens a checkpoint and prints the reader's warnings.
---@param path string
---@param args table
function cli.open(path, args)
  if path == "" then cbk.fail("io", "cannot open '': the path is empty") end
  local fine, checkpoint = pcall(cbk.open, path, cli.reading(args))
  if not fine then fail_to_open(checkpoint, path, args) end
  cli.warn(checkpoint.warnings)
  cli.warn(checkpoint.unreadable)
  local part = parts.of(checkpoint)
  if part then cbk.warn(("%s is not a whole checkpoint, but %s"):format(cbk.quote(checkpoint.path), parts.text(part))) end
  return checkpoint
end

---Fails if an output exists, or, with --overwrite, if it is also an input.
---@param path string
---@param inputs string[]
---@param args table
function cli.check_output(path, inputs, args)
  for _, input in ipairs(inputs) do
    if cbk.fs.exists(path) and cbk.fs.absolute(path) == cbk.fs.absolute(input) then
      cbk.fail("usage", ("cannot write %s: it is also an input; choose another name"):format(cbk.quote(path)))
    end
  end
  if args.overwrite or cbk.has_job() then return end -- the commit looks again
  if cbk.fs.exists(path) then cbk.fail("exists", ("%s exists already"):format(cbk.quote(path))) end
end

---Declares that the output depends on a file beside the checkpoint: a commit fails if another program changes it in the meantime.
---Call this before the file is read.
---@param path string
---@param args table
function cli.depend_on(path, args)
  args.sources = args.sources or {}
  table.insert(args.sources, cbk.source_file(path))
end

---Whether progress is drawn.
---@param args table
function cli.has_progress(args) return not (args.quiet or args.no_progress_bar or args.json) end

---One plan for several outputs.
local function plan_of(plans)
  local all = { bytes_read = 0, bytes_written = 0, peak_memory = 0, lossy = {}, lost = {} }
  for _, plan in ipairs(plans) do
    all.bytes_read, all.bytes_written = all.bytes_read + plan.bytes_read, all.bytes_written + plan.bytes_written
    all.peak_memory = math.max(all.peak_memory, plan.peak_memory)
    for _, key in ipairs(plan.lossy) do all.lossy[#all.lossy + 1] = key end
    for _, values in ipairs(plan.lost or {}) do all.lost[#all.lost + 1] = values end -- a forecast has none
  end
  return #plans == 1 and plans[1] or all
end

---Commits outputs according to the common options, all of them or none. With --dry-run it only prints the plans.
---@param outputs Output|Output[]
---@param args table
---@return boolean written, table plan   of all of them
function cli.commit(outputs, args)
  if type(outputs) ~= "table" then outputs = { outputs } end
  local bounds = {
    threads = args.threads, memory = args.memory, sync = args.sync,
    allow_overflow = args.allow_overflow, max_expansion = args.max_expansion,
  }
  local plans = {}
  if args.dry_run then
    for i, output in ipairs(outputs) do
      plans[i] = output:plan(bounds)
      cli.say(args, tostring(plans[i]))
    end
    return false, plan_of(plans)
  end
  limits.write(type(args.memory) == "string" and cbk.parse_size(args.memory) or args.memory)
  bounds.provenance = args.provenance and job.command_of { arg[0], unpack(arg) } or nil
  bounds.progress, bounds.sources = cli.has_progress(args), args.sources
  plans = cbk.commit(outputs, bounds)
  for _, plan in ipairs(plans) do cli.warn(plan.warnings) end
  return true, plan_of(plans)
end

---Asks before a change that cannot be undone. It is an error if it cannot ask.
---@param args table       of an option --yes
---@param question string
---@return boolean
function cli.confirmed(args, question)
  if args.yes then return true end
  if args.json then cbk.fail("usage", "cannot ask for confirmation with --json; pass --yes (nothing was written)") end
  io.stdout:write(question, " [y/N]: ")
  io.stdout:flush()
  local answer = cbk.team_place() == 0 and io.read "*l" or nil
  answer = cbk.team_exchange(answer and "=" .. answer or "")[1] -- rank 0 is asked
  if answer ~= "" then return answer:find "^=[yY]\r?$" ~= nil end
  print()
  cbk.fail("usage", "cannot ask for confirmation without a terminal; pass --yes (nothing was written)")
end

-- --- results

---Prints a line for people; with --json only the result is printed.
---@param args table
---@param line string
function cli.say(args, line)
  if not args.json then print(wrap.text(line, cli.columns(), 2)) end
end

---Prints a value as JSON, with control characters escaped for terminals.
function cli.print_json(value) print(cli.json_text(value)) end

---A value as JSON text: rows take less memory as text.
---@param value any
---@return { json: string }
function cli.as_json(value) return { json = cli.json_text(value) } end

---The text that `cli.print_json` prints.
---@param value any
---@return string
function cli.json_text(value)
  if type(value) == "table" and value.json then return value.json end
  return cbk.json(value, { indent = 2, shown = true })
end

--- Writes a list as `cli.print_json` would, one item after the other; `margin` is the line break before an item.
local function write_json_list(count, item, margin)
  io.stdout:write "["
  for i = 1, count do
    local text = cli.json_text(item(i))
    io.stdout:write(i > 1 and "," or "", margin, (text:gsub("\n", margin)))
  end
  io.stdout:write(count > 0 and margin:sub(1, -3) or "", "]")
end

---Prints a list. Each item is made only when it is printed.
---@param count integer
---@param item fun(i: integer): any
function cli.print_json_list(count, item)
  write_json_list(count, item, "\n  ")
  print()
end

---Prints an object. Items of long lists are made only when they are printed.
---@param members ({ [1]: string, [2]: any } | { [1]: string, count: integer, item: fun(i: integer): any })[]
function cli.print_json_object(members)
  for i, member in ipairs(members) do
    io.stdout:write(i == 1 and "{" or ",", "\n  ", cbk.json(member[1]), ": ")
    if member.item then
      write_json_list(member.count, member.item, "\n    ")
    else
      io.stdout:write((cli.json_text(member[2]):gsub("\n", "\n  ")))
    end
  end
  print "\n}"
end

---Adds --dry-run to a command with a small output: it does all its work except writing.
---@param parser table
function cli.dry_run_option(parser) parser:flag("--dry-run", "write nothing, and print what would be written") end

---"Config saved to x.yaml", or "would be saved" with --dry-run.
---@param args table    of the command
---@param what string   "Config"
---@param path string
---@return string
function cli.saved_text(args, what, path) return ("%s %s to %s"):format(what, args.dry_run and "would be saved" or "saved", path) end

---With --json, prints what a command has written, or would write with --dry-run.
---@param args table
---@param written boolean
---@param result { [1]: string, [2]: any }[]   the command's own entries, such as { "checkpoint", path }
---@param plan? table                          of Output:plan
function cli.print_result(args, written, result, plan)
  if not args.json then return end
  local out = cbk.dict { { "written", written } }
  for _, entry in ipairs(result) do out[entry[1]] = entry[2] end
  if plan then
    for _, name in ipairs { "bytes_read", "bytes_written", "peak_memory" } do out[name] = plan[name] end
    out.lossy = cbk.list(plan.lossy)
    if written then out.lost = cbk.list(plan.lost) end
  end
  cli.print_json(out)
end

return cli
