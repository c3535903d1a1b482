-- Command lines of the bundled scripts: argparse with the exit codes of cbk (usage errors end with 2).

local argparse = require "argparse"

local cli = {}

---A parser for `cbk NAME`. Give it arguments and options as argparse has them, then call `parser:parse()`.
---@param name string
---@param description string
---@param epilog? string
function cli.parser(name, description, epilog)
  local parser = argparse("cbk " .. name, description, epilog)
  parser:add_help "-h --help"
  function parser:error(message)
    io.stderr:write(("%s\n\ncbk %s: %s\n"):format(self:get_usage(), name, message))
    os.exit(2)
  end
  return parser
end

---For `:convert(cli.choice { "a", "b" })`: refuses other words.
function cli.choice(words)
  return function(text)
    for _, word in ipairs(words) do
      if word == text then return text end
    end
    return nil, ("'%s' is not one of %s"):format(text, table.concat(words, ", "))
  end
end

return cli
