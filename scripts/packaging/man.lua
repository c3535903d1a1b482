-- Man pages of all commands and topics: cbk run scripts/packaging/man.lua FOLDER. They say what `cbk help` says.

local cbk = require "cbk"
local cli = require "cbk.cli"
local overview = require "cbk.cli.overview"

local folder = arg[1] or cli.usage_error("scripts/packaging/man.lua", "missing argument FOLDER")

-- --- roff

--- Text as roff reads it: `code` is bold, hyphens can be copied as they are.
local function inline(text)
  text = text:gsub("\\", "\\e"):gsub("%-", "\\-"):gsub("`([^`]+)`", "\\fB%1\\fR")
  return (text:gsub("^([.'])", "\\&%1"))
end

local function header(out, name, section)
  out[#out + 1] = ('.TH "%s" %d "" "cbk %s" "cbk"\n.ad l\n.nh'):format(inline(name:upper()), section, cbk.version)
end

local function name_section(out, name, summary)
  out[#out + 1] = ".SH NAME"
  out[#out + 1] = ("%s \\- %s"):format(inline(name), inline(summary))
end

--- Lines as they are, indented.
local function verbatim(out, lines)
  out[#out + 1] = ".PP\n.nf\n.RS 4"
  for _, line in ipairs(lines) do out[#out + 1] = line == "" and "" or inline(line) end
  out[#out + 1] = ".RE\n.fi"
end

local function definition(out, term, text)
  out[#out + 1] = ".TP\n\\fB" .. inline(term) .. "\\fR"
  out[#out + 1] = inline(text)
end

-- --- pages: paragraphs, indented blocks, lists with "-", headings that are a short line alone

local function is_heading(block)
  return #block == 1 and #block[1] <= 45 and block[1]:find "^%u" and not block[1]:find "[.,:;]"
end

--- Blocks between empty lines and where the indentation changes. An empty line in a script does not end it.
local function blocks_of(text)
  local out, last_was_empty = {}, true
  for line in (text .. "\n"):gmatch "(.-)\n" do
    local indented, last = line:find "^  " ~= nil, out[#out]
    if line == "" then
      last_was_empty = true
    elseif last and indented and last[1]:find "^%- " and not last_was_empty then
      last[#last] = last[#last] .. " " .. line:match "^ *(.*)"
    elseif last and indented and last.indented then
      if last_was_empty then last[#last + 1] = "" end
      last[#last + 1] = line:sub(3)
      last_was_empty = false
    elseif last and not last_was_empty and not indented and not last.indented then
      last[#last + 1] = line
    else
      out[#out + 1] = { indented and line:sub(3) or line, indented = indented }
      last_was_empty = false
    end
  end
  return out
end

--- The rows of a block of two columns, or nil.
local function columns_of(block)
  local rows = {}
  for i, line in ipairs(block) do
    local left, right = line:match "^(%S.-)   *(%S.*)$"
    if right and right:find "   " then return nil end -- three columns
    if not left then
      local continued = i > 1 and line:match "^    +(%S.*)$"
      if not continued then return nil end
      rows[#rows][2] = rows[#rows][2] .. " " .. continued
    else
      rows[#rows + 1] = { left, right }
    end
  end
  return rows
end

local function list(out, block)
  local item
  local function flush()
    if item then out[#out + 1] = ".IP \\(bu 2\n" .. inline(item) end
  end
  for _, line in ipairs(block) do
    if line:find "^%- " then
      flush()
      item = line:sub(3)
    else
      item = item .. " " .. line
    end
  end
  flush()
end

--- A page's text, or what stands below a command's options.
local function prose(out, text)
  for _, block in ipairs(blocks_of(text)) do
    local rows = block.indented and columns_of(block)
    if rows then
      for _, row in ipairs(rows) do definition(out, row[1], row[2]) end
    elseif block.indented then
      verbatim(out, block)
    elseif block[1] == "examples:" then
      out[#out + 1] = ".SH EXAMPLES"
    elseif block[1]:find "^%- " then
      list(out, block)
    elseif is_heading(block) then
      out[#out + 1] = ".SS " .. inline(block[1])
    else
      out[#out + 1] = ".PP\n" .. inline(table.concat(block, " "))
    end
  end
end

-- --- files

local function write(out, name, section)
  cbk.fs.write(cbk.fs.join(folder, ("%s.%d"):format(name, section)), table.concat(out, "\n") .. "\n", { overwrite = true })
end

local function see_also(out, others)
  for i, name in ipairs(others) do others[i] = "\\fB" .. inline(name):gsub("%((%d)%)$", "\\fR(%1)") end
  out[#out + 1] = ".SH SEE ALSO"
  out[#out + 1] = table.concat(others, ",\n")
end

local function exit_status(out)
  out[#out + 1] = ".SH EXIT STATUS"
  for _, row in ipairs { { "0", "done" }, { "1", "findings (`diff`, `rules` and others that compare or check), or failure" },
    { "2", "a wrong command line" }, { "130", "interrupted" } } do
    definition(out, row[1], row[2])
  end
end

local function synopsis(out, parser)
  parser:usage_max_width(72)
  out[#out + 1] = ".SH SYNOPSIS"
  local lines = {}
  for line in (parser:get_usage():gsub("^Usage: ", "") .. "\n"):gmatch "(.-)\n" do
    lines[#lines + 1] = inline((line:gsub("^       ", "")))
  end
  out[#out + 1] = ".nf\n" .. table.concat(lines, "\n") .. "\n.fi"
end

local function elements(out, title, list_of_elements)
  local has_title
  for _, element in ipairs(list_of_elements) do
    if not element._hidden then
      if not has_title then out[#out + 1] = ".SH " .. title end
      has_title = true
      definition(out, table.concat(element:_get_label_lines(), " "), element:_get_description())
    end
  end
end

local function command_page(name, summary)
  local parser = overview.parser(name)
  local out = {}
  header(out, "cbk-" .. name, 1)
  name_section(out, "cbk-" .. name, summary)
  synopsis(out, parser)
  out[#out + 1] = ".SH DESCRIPTION"
  prose(out, parser.texts.description)
  local before, examples = parser.texts.epilog:match "^(.-)(examples:.*)$"
  prose(out, before or parser.texts.epilog)
  elements(out, "ARGUMENTS", parser._arguments)
  elements(out, "OPTIONS", parser._options)
  exit_status(out)
  prose(out, examples or "")
  see_also(out, { "cbk(1)" })
  write(out, "cbk-" .. name, 1)
end

local function topic_page(name, summary, section)
  local out = {}
  header(out, "cbk-" .. name, section)
  name_section(out, "cbk-" .. name, summary)
  local text = overview.page(name):gsub("^#[^\n]*\n", "")
  local usage, rest = text:match "^\n*(Usage: .-)\n\n(.*)$"
  if usage then
    out[#out + 1] = ".SH SYNOPSIS\n.nf\n" .. inline((usage:gsub("Usage: ", ""):gsub("\n +", "\n"))) .. "\n.fi"
  end
  out[#out + 1] = ".SH DESCRIPTION"
  prose(out, rest or text)
  see_also(out, { "cbk(1)" })
  write(out, "cbk-" .. name, section)
end

--- cbk(1), from the list that `cbk help` prints.
local function main_page(all)
  local out, others, group = {}, {}, nil
  header(out, "cbk", 1)
  name_section(out, "cbk", "look into, convert and upgrade checkpoints of deep-learning models")
  out[#out + 1] = ".SH SYNOPSIS\n.nf\n" .. inline "cbk [--traceback] COMMAND [ARGUMENTS]\ncbk" .. "\n.fi"
  out[#out + 1] = ".SH DESCRIPTION"
  prose(out, [[
`cbk` opens checkpoints of any size as one lazy tree: Cerebras H5 of every release, PyTorch pickles, safetensors, TensorFlow bundles and
others, in one file or many shards. It converts between Hugging Face and Cerebras Model Zoo layouts, and between releases. A pickle is
read as data: nothing in it is executed.

Without a command, on a terminal, it is a prompt to explore checkpoints in Lua.]])
  out[#out + 1] = ".SH COMMANDS"
  for _, command in ipairs(all.commands) do
    if command.group ~= group then out[#out + 1] = ".SS " .. inline(command.group) end
    group = command.group
    definition(out, command.name, command.summary)
    if not command.name:find "^%-" then others[#others + 1] = ("cbk-%s(1)"):format(command.name:match "^%S+") end
  end
  out[#out + 1] = ".SH OPTIONS"
  definition(out, "--help", "print the list of commands; `cbk help` NAME explains a command or a topic")
  definition(out, "--version", "print the version, and those of the libraries")
  definition(out, "--traceback", "after an error, print where in the Lua code it came from")
  out[#out + 1] = ".SH ENVIRONMENT"
  definition(out, "CBK_PATH", "folders with commands of your own (NAME.lua), separated by colons, searched first")
  definition(out, "CBK_SCRIPTS", "a folder to use instead of cbk's own scripts")
  definition(out, "COLUMNS", "the width of help and tables")
  definition(out, "NO_COLOR", "print without colour")
  exit_status(out)
  prose(out, [[
examples:
  cbk ls model.safetensors
  cbk stats model.mdl --sort norm --top 10
  cbk convert llama --to cs-2.4 --output-dir new]])
  for _, topic in ipairs(all.topics) do
    if topic.section == 7 then others[#others + 1] = ("cbk-%s(7)"):format(topic.name) end
  end
  see_also(out, others)
  write(out, "cbk", 1)
end

--- The bundled commands and pages. A page with the name of a command is a page about that command.
local function everything()
  local stream = io.popen(("CBK_PATH= '%s' help --json"):format(cbk.fs.program():gsub("'", "'\\''")))
  local text = stream:read "*a"
  stream:close()
  local all = cbk.totable(cbk.config.parse(text, "json"))
  local full_name = {}
  for _, command in ipairs(all.commands) do full_name[command.name:match "^%S+"] = command.name end
  for _, topic in ipairs(all.topics) do
    local summary = overview.BUILT_IN[full_name[topic.name] or ""]
    topic.section, topic.summary = summary and 1 or 7, summary or topic.summary
  end
  return all
end

cbk.fs.mkdir(folder)
local all = everything()
main_page(all)
for _, command in ipairs(all.commands) do
  if not overview.BUILT_IN[command.name] then command_page(command.name, command.summary) end
end
for _, topic in ipairs(all.topics) do topic_page(topic.name, topic.summary, topic.section) end
