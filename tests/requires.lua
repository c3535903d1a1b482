-- Checks the direction of `require` in scripts/ and converters/: lua5.1 tests/requires.lua
-- README.md ("Where things are") has the same order for readers.

--- From below to above: a file may require its own layer and earlier ones. The first layer with a fitting pattern has the file.
local LAYERS = {
  { "the library cbk.X", "^scripts/lib/cbk/[%w_]+%.lua$", except = "scripts/lib/cbk/classes.lua" },
  { "cbk.cli and cbk.repl", "^scripts/lib/cbk/cli/", "^scripts/lib/cbk/repl/" },
  { "converters/notation", "^converters/notation/" },
  { "converters/engine", "^converters/engine/" },
  { "converters/modelzoo", "^converters/modelzoo/" },
  { "converters/vocabulary", "^converters/vocabulary/" },
  { "converters/classes", "^converters/classes/" },
  { "the families", "^converters/shared/", "^converters/[%w_]+%.lua$" },
  { "converters/diagnosis and bench", "^converters/diagnosis/", "^converters/bench/" },
  { "cbk.converters and cbk.classes", "^scripts/lib/cbk/converters/", "^scripts/lib/cbk/classes%.lua$" },
  { "cbk.identify", "^scripts/lib/cbk/identify/" },
  { "cbk.upgrade", "^scripts/lib/cbk/upgrade/" },
  { "the commands", "^scripts/[%w_-]+%.lua$" },
}

--- Modules of the program itself and of the system.
local OUTSIDE = { ["cbk.native"] = true, ["cbk.commands"] = true, ["cbk.editor"] = true, argparse = true, ffi = true }

--- What takes the name of a module from elsewhere, and why.
local COMPUTED = {
  ["scripts/lib/cbk/init.lua"] = "cbk.X loads the module of that name",
  ["converters/engine/catalogue.lua"] = "loads every family of a folder",
  ["converters/notation/sandbox.lua"] = "is the `require` of a sandboxed converter",
}

--- Known breaks of the order. This list only gets shorter: an entry that is not needed any more is an error.
local KNOWN = {
  ["converters/engine/catalogue.lua -> converters.modelzoo.releases"] = true,
  ["converters/engine/class.lua -> converters.modelzoo.releases"] = true,
  ["converters/engine/convert.lua -> converters.modelzoo.checkpoint"] = true,
  ["converters/engine/convert.lua -> converters.modelzoo.file"] = true,
  ["converters/engine/convert.lua -> converters.modelzoo.hf_config"] = true,
  ["converters/engine/convert.lua -> converters.modelzoo.mup"] = true,
  ["converters/engine/convert.lua -> converters.modelzoo.releases"] = true,
  ["converters/engine/convert.lua -> converters.modelzoo.since"] = true,
  ["converters/engine/convert.lua -> converters.modelzoo.trainer"] = true,
  ["converters/engine/rules.lua -> a computed name"] = true,
  ["converters/notation/entries.lua -> converters.engine.choices"] = true,
  ["converters/notation/entries.lua -> converters.engine.naming"] = true,
  ["converters/notation/files.lua -> converters.engine.catalogue"] = true,
  ["converters/notation/files.lua -> converters.engine.class"] = true,
  ["converters/notation/files.lua -> converters.modelzoo.releases"] = true,
}

local failures = 0

local function report(...)
  io.stderr:write(string.format(...), "\n")
  failures = failures + 1
end

local function files()
  local out, list = {}, assert(io.popen "git ls-files --cached --others --exclude-standard 'scripts/*.lua' 'converters/*.lua'")
  for path in list:lines() do
    if not path:find "^scripts/examples/" and not path:find "/meta%.lua$" then out[#out + 1] = path end
  end
  list:close()
  return out
end

local function layer_of(path)
  for rank, layer in ipairs(LAYERS) do
    for _, pattern in ipairs(layer) do
      if path:find(pattern) and path ~= layer.except then return rank end
    end
  end
end

--- The modules that a file requires, and whether it requires one whose name is not written there.
local function required(path)
  local names, is_computed = {}, false
  for line in io.lines(path) do
    local code = line:gsub("%-%-.*$", ""):gsub("'[^']*'", "")
    local rest = code:gsub('%f[%w_]require%s*%(?%s*"([%w_.]+)"%s*(%.?%.?)', function(name, joined)
      if joined == ".." then is_computed = true else names[#names + 1] = name end
      return ""
    end):gsub('"[^"]*"', '""'):gsub("%b[]", "")
    if rest:find "%f[%w_.]require%s*[%(,]" or rest:find "[%(,=]%s*require%f[^%w_]" then is_computed = true end
  end
  return names, is_computed
end

local function path_of(module, exists)
  local stem = module:gsub("%.", "/")
  for _, path in ipairs { stem .. ".lua", "scripts/lib/" .. stem .. ".lua", "scripts/lib/" .. stem .. "/init.lua" } do
    if exists[path] then return path end
  end
end

local paths, exists, graph, used = files(), {}, {}, {}
for _, path in ipairs(paths) do exists[path] = true end

--- A break of the order: reported, unless it is known.
local function broken(path, target, why)
  local one = path .. " -> " .. target
  used[one] = true
  if not KNOWN[one] then report("%s requires %s, %s", path, target, why) end
end

for _, path in ipairs(paths) do
  local rank, names, is_computed = layer_of(path), required(path)
  graph[path] = {}
  if not rank then report("%s is in no layer of tests/requires.lua", path) end
  if is_computed and not COMPUTED[path] then broken(path, "a computed name", "which no check can follow") end
  for _, name in ipairs(names) do
    local target = path_of(name, exists)
    local above = target and rank and layer_of(target)
    if above and above > rank then
      broken(path, name, ("but %s is above %s"):format(LAYERS[above][1], LAYERS[rank][1]))
    elseif target then
      table.insert(graph[path], target)
    elseif not OUTSIDE[name] then
      report("%s requires %s, which does not exist", path, name)
    end
  end
end

for one in pairs(KNOWN) do
  if not used[one] then report("the known break '%s' is gone; remove its line from tests/requires.lua", one) end
end

--- Cycles inside a layer.
local state = {}
local function visit(path, trail)
  if state[path] == "done" then return end
  trail[#trail + 1] = path
  if state[path] == "open" then return report("a cycle: %s", table.concat(trail, " -> ")) end
  state[path] = "open"
  for _, target in ipairs(graph[path]) do visit(target, { unpack(trail) }) end
  state[path] = "done"
end
for _, path in ipairs(paths) do visit(path, {}) end

os.exit(failures == 0 and 0 or 1)
