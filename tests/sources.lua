-- What the checks of sources share: goes over the files that git knows, prints what is wrong, and ends the program.

---@param patterns string   of git ls-files
---@param problems fun(path: string, text: string): string[]
return function(patterns, problems)
  local failures = 0
  local list = assert(io.popen("git ls-files --cached --others --exclude-standard " .. patterns))
  for path in list:lines() do
    local file = io.open(path)
    if file then -- not one that was removed
      for _, problem in ipairs(problems(path, file:read "*a")) do
        io.stderr:write(problem, "\n")
        failures = failures + 1
      end
      file:close()
    end
  end
  list:close()
  os.exit(failures == 0 and 0 or 1)
end
