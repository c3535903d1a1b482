-- Models of several parts: in Hugging Face's format a folder with one folder for each part, in the Model Zoo's one checkpoint and one
-- config.

local cbk = require "cbk"
local cli = require "cbk.cli"
local catalogue = require "converters.engine.catalogue"
local kinds = require "converters.engine.kinds"
local links = require "cbk.links"
local sections = require "converters.engine.sections"
local jobs = require "cbk.converters.job"

local composite = {}

---The parts of a route's model; nil if the model has no parts.
---@param route Route
---@return Component[]|nil
function composite.parts(route) return route.path[route.tgt == "hf" and #route.path or 1].converter.components end

---The config.json of a part's folder. It may be a link only to where links of checkpoints may lead.
---@param folder string
---@param allowed? string[]   folders that links may lead to
---@return string
local function config_of(folder, allowed)
  return cbk.fs.beside(folder, "config.json", allowed) or cbk.fs.join(folder, "config.json")
end

---Whether the configs in the folders of a composite's parts name the models of these parts.
---@param path string
---@param parts Component[]
local function says_parts(path, parts)
  for _, part in ipairs(parts) do
    local wanted = sections.constants(part, "left").model_type
    local fine, config = pcall(function() return cbk.config.load(config_of(links.folder(path, part.left))) end)
    if not fine or not kinds.is_dict(config) or config.model_type ~= wanted then return false end
  end
  return true
end

---The composite model in a folder, such as Hugging Face's LLaVA, and its parts; nil for other folders. DPR and DRAGON have folders with
---the same names, so the configs decide.
---@param path string
---@return Model|nil model, Component[]|nil parts
function composite.model_in(path)
  local first
  for _, name in ipairs(cbk.fs.is_dir(path) and catalogue.names() or {}) do
    local model = catalogue.find(name)
    for _, converter in ipairs(model) do
      local has_all = converter.components ~= nil
      for _, part in ipairs(converter.components or {}) do
        has_all = has_all and cbk.fs.is_dir(cbk.fs.join(path, part.left))
      end
      if has_all and says_parts(path, converter.components) then return model, converter.components end
      first = first or has_all and { model, converter.components } or nil
    end
  end
  return unpack(first or {})
end

---Advice on getting one config of a composite in the Model Zoo's format.
---@param name string     the model
---@param folder string   of its Hugging Face files
---@return string
function composite.config_advice(name, folder)
  return ("make its config for the Model Zoo with `cbk convert-config %s --model %s --src-fmt hf --tgt-fmt cs-current`, and use that")
    :format(folder, name)
end

local function folder_of(top, part, allowed)
  local folder = links.folder(top, part.left, allowed)
  if not cbk.fs.is_dir(folder) then
    cbk.fail("io", ("'%s' has no folder '%s': expected a folder for each part of the model"):format(top, part.left))
  end
  return folder
end

---The config of each part, by the names of the parts.
---@param top string
---@param parts Component[]
---@param args table   of the command
---@return Dict
function composite.load_configs(top, parts, args)
  local out = cbk.dict()
  for _, part in ipairs(parts) do
    local path = config_of(folder_of(top, part, args.allow_external), args.allow_external)
    cli.depend_on(path, args)
    out[part.left] = cbk.config.load(path)
  end
  return out
end

---The part of each checkpoint that a job reads, by the names of the composite's parts.
---@return JobInput
function composite.open(top, parts, args)
  local out, deduplicated = cbk.dict(), {}
  for _, part in ipairs(parts) do
    local input = jobs.input(cli.open(folder_of(top, part, args.allow_external), args))
    out[part.left], deduplicated[part.left] = input.source, input.deduplicated
  end
  return { source = out, deduplicated = deduplicated }
end

---The folder that a part is written to.
---@param top string
---@param part Component
---@return string
function composite.output_folder(top, part) return cbk.fs.inside(top, part.left) end

---The JSON files beside the tensors of a part, by name.
---@param part Component
---@param config Dict   of all parts
---@param top string    the folder with the folders of the parts
---@return table<string, string>
function composite.files(part, config, top)
  local folder = composite.output_folder(top, part)
  local own = cbk.copy(config[part.left])
  for field, other in pairs(part.folders or {}) do own[field] = cbk.fs.join(top, other) end
  local out = { ["config.json"] = cbk.config.dump(own, "json", { indent = 4 }) }
  for name, make in pairs(part.files or {}) do
    cbk.fs.inside(folder, name)
    out[name] = cbk.config.dump(cbk.dict(make(own)), "json", { indent = 4, sort = true })
  end
  return out
end

return composite
