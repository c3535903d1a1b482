-- Checks the direction of `require` in scripts/ and converters/: lua5.1 tests/requires.lua
-- README.md ("Where things are") has the same order for readers.

local requires = {}

--- From below to above. A file may require its own layer and earlier ones. The first layer with a fitting pattern has the file.
local LAYERS = {
  { "the library cbk.X", "^scripts/lib/cbk/[%w_]+%.lua$",
    except = { ["scripts/lib/cbk/classes.lua"] = true, ["scripts/lib/cbk/help.lua"] = true } },
  { "cbk.tokens", "^scripts/lib/cbk/tokens/" },
  { "what cstorch is made of", "^scripts/lib/cstorch/[%w_]+%.lua$",
    except = { ["scripts/lib/cstorch/init.lua"] = true, ["scripts/lib/cstorch/help.lua"] = true } },
  { "cstorch.nn", "^scripts/lib/cstorch/nn/" },
  { "cstorch.run and cstorch.utils", "^scripts/lib/cstorch/run/", "^scripts/lib/cstorch/utils/" },
  { "cstorch.optim", "^scripts/lib/cstorch/optim/" },
  { "cstorch.amp, .metrics and .sparse", "^scripts/lib/cstorch/amp/", "^scripts/lib/cstorch/metrics/", "^scripts/lib/cstorch/sparse/" },
  { "cstorch", "^scripts/lib/cstorch/init%.lua$", "^scripts/lib/cstorch/help%.lua$" },
  { "cbtorch", "^scripts/lib/cbtorch%.lua$" },
  { "cbk.help", "^scripts/lib/cbk/help%.lua$" },
  { "cbk.plot", "^scripts/lib/cbk/plot/" },
  { "cbk.page", "^scripts/lib/cbk/page/" },
  { "cbk.peft", "^scripts/lib/cbk/peft/" },
  { "cbk.cli and cbk.repl", "^scripts/lib/cbk/cli/", "^scripts/lib/cbk/repl/" },
  { "converters/notation", "^converters/notation/" },
  { "converters/engine", "^converters/engine/" },
  { "converters/modelzoo", "^converters/modelzoo/" },
  { "converters/conversion", "^converters/conversion/" },
  { "converters/vocabulary", "^converters/vocabulary/" },
  { "converters/classes", "^converters/classes/" },
  { "the families", "^converters/shared/", "^converters/[%w_]+%.lua$" },
  { "converters/authoring", "^converters/authoring/" },
  { "cbk.converters and cbk.classes", "^scripts/lib/cbk/converters/", "^scripts/lib/cbk/classes%.lua$" },
  { "cstorch.models", "^scripts/lib/cstorch/models/" },
  { "cbk.logits", "^scripts/lib/cbk/logits/" },
  { "cbk.recognise", "^scripts/lib/cbk/recognise/" },
  { "cbk.infer", "^scripts/lib/cbk/infer/" },
  { "cbk.upgrade", "^scripts/lib/cbk/upgrade/" },
  { "cbk.check and cbk.diff", "^scripts/lib/cbk/check/", "^scripts/lib/cbk/diff/" },
  { "cbk.watch", "^scripts/lib/cbk/watch/" },
  { "cbk.round_trip", "^scripts/lib/cbk/round_trip/" },
  { "cbk.merge", "^scripts/lib/cbk/merge/" },
  { "cbk.serve", "^scripts/lib/cbk/serve/" },
  { "cbk.training", "^scripts/lib/cbk/training/" },
  { "the commands", "^scripts/[%w_-]+%.lua$" },
  { "examples and packaging", "^scripts/examples/", "^scripts/packaging/" },
}

--- Modules of the program itself and of the system.
local OUTSIDE = { ["cbk.native"] = true, ["cbk.commands"] = true, ["cbk.editor"] = true, ["cbk.limits"] = true, argparse = true,
  ffi = true, ["jit.util"] = true, ["string.buffer"] = true }

--- What takes the name of a module from elsewhere, and why.
local COMPUTED = {
  ["scripts/lib/cbk/init.lua"] = "cbk.X loads the module of that name",
  ["scripts/lib/cstorch/namespace.lua"] = "loads a part when it is first used",
  ["scripts/lib/cstorch/nn/init.lua"] = "gathers the classes of its files",
  ["scripts/lib/cstorch/optim/init.lua"] = "gathers the classes of its files",
  ["scripts/lib/cstorch/optim/schedules/family.lua"] = "makes the classes of every schedule's file",
  ["converters/engine/catalogue.lua"] = "loads every family of a folder",
  ["converters/notation/sandbox.lua"] = "is the `require` of a sandboxed converter",
}

local function layer_of(path)
  for rank, layer in ipairs(LAYERS) do
    for i = 2, #layer do
      if path:find(layer[i]) and not (layer.except and layer.except[path]) then return rank end
    end
  end
end

---Why a file may not require another; nil if it may.
---@param path string
---@param target string   a path, too
---@return string|nil
function requires.why_not(path, target)
  local own, other = layer_of(path), layer_of(target)
  if not own then return "its own file is in no layer of tests/requires.lua" end
  if not other then return "that file is in no layer of tests/requires.lua" end
  if other > own then return ("but %s is above %s"):format(LAYERS[other][1], LAYERS[own][1]) end
end

---The modules that a file requires, and whether it requires one whose name is not written there.
---@param text string
---@return string[] names, boolean is_computed
function requires.modules(text)
  local names, is_computed = {}, false
  for line in (text .. "\n"):gmatch "(.-)\n" do
    local code = line:gsub("%-%-.*$", ""):gsub("'[^']*'", "")
    local rest = code:gsub('%f[%w_]require%s*%(?%s*"([%w_.]+)"%s*(%.?%.?)', function(name, joined)
      if joined == ".." then is_computed = true else names[#names + 1] = name end
      return ""
    end):gsub('"[^"]*"', '""'):gsub("%b[]", "")
    if rest:find "%f[%w_.]require%s*[%(,]" or rest:find "[%(,=]%s*require%f[^%w_]" then is_computed = true end
  end
  return names, is_computed
end

---The file of a module; nil if it is none of `texts`.
local function path_of(module, texts)
  local stem = module:gsub("%.", "/")
  for _, path in ipairs { stem .. ".lua", "scripts/lib/" .. stem .. ".lua", "scripts/lib/" .. stem .. "/init.lua" } do
    if texts[path] then return path end
  end
end

---Adds the first cycle through each file.
local function add_cycles(graph, paths, out)
  local state = {}
  local function visit(path, trail)
    if state[path] == "done" then return end
    trail[#trail + 1] = path
    if state[path] == "open" then
      out[#out + 1] = "a cycle: " .. table.concat(trail, " -> ")
      return
    end
    state[path] = "open"
    for _, target in ipairs(graph[path]) do visit(target, { unpack(trail) }) end
    state[path] = "done"
  end
  for _, path in ipairs(paths) do visit(path, {}) end
end

---What is wrong with a set of files.
---@param texts table<string, string>   by path
---@return string[]
function requires.problems(texts)
  local paths, graph, out = {}, {}, {}
  local function broken(path, target, why) out[#out + 1] = ("%s requires %s, %s"):format(path, target, why) end
  for path in pairs(texts) do paths[#paths + 1] = path end
  table.sort(paths)
  for _, path in ipairs(paths) do
    local names, is_computed = requires.modules(texts[path])
    graph[path] = {}
    if is_computed and not COMPUTED[path] then broken(path, "a computed name", "which no check can follow") end
    for _, name in ipairs(names) do
      local target = path_of(name, texts)
      local why = target and requires.why_not(path, target)
      if why then
        broken(path, name, why)
      elseif target then
        table.insert(graph[path], target)
      elseif not OUTSIDE[name] then
        out[#out + 1] = ("%s requires %s, which does not exist"):format(path, name)
      end
    end
  end
  add_cycles(graph, paths, out)
  return out
end

if ... then return requires end -- in a test

local texts, list = {}, assert(io.popen "git ls-files --cached --others --exclude-standard 'scripts/*.lua' 'converters/*.lua'")
for path in list:lines() do
  local file = not path:find "/meta%.lua$" and io.open(path) -- meta.lua never runs
  if file then
    texts[path] = file:read "*a"
    file:close()
  end
end
list:close()
local problems = requires.problems(texts)
for _, problem in ipairs(problems) do io.stderr:write(problem, "\n") end
os.exit(#problems == 0 and 0 or 1)
