-- Recognises the model, format and release of a checkpoint, and finds the config that belongs to it.

local adapters = require "cbk.recognise.adapters"
local cbk = require "cbk"
local architectures = require "cbk.recognise.architectures"
local candidates = require "cbk.recognise.candidates"
local config_beside = require "cbk.recognise.config_beside"
local configs = require "cbk.recognise.configs"
local contents = require "converters.conversion.contents"
local converters = require "cbk.converters"
local errors = require "cbk.errors"
local fit = require "converters.engine.fit"
local guess = require "cbk.recognise.guess"
local hf_config = require "converters.modelzoo.hf_config"
local inexpressible = require "converters.shared.inexpressible"
local kept_config = require "cbk.recognise.kept_config"
local kinds = require "converters.engine.kinds"
local listing = require "cbk.listing"
local names = require "cbk.recognise.names"
local patterns = require "converters.engine.patterns"
local quantised = require "cbk.quantised"
local release = require "cbk.recognise.release"
local releases = require "converters.engine.releases"
local spec_tree = require "cbk.spec_tree"
local trainer = require "converters.modelzoo.trainer"
local training_files = require "cbk.training_files"
local unfit = require "cbk.recognise.unfit"
local weights = require "converters.conversion.weights"
local zoo_checkpoint = require "converters.modelzoo.checkpoint"

local catalogue = converters.catalogue
local recognise = {}

-- --- the result

---@class Identity
---@field model? string     the base name: "llama"
---@field format string     "hf", "cs-X.Y", or a layout of the user's own ("a"); if several releases fit, the first
---@field last? string       the last of several releases that fit as well: "cs-X.Y"
---@field layouts string[]   further layouts of the user's own that fit as well
---@field container? string    the file's format, if nothing but its dict 'model' says that it is one of the Model Zoo; or of `holds`
---@field holds? string        what is in a file of a trainer without weights: "the states of an optimizer"
---@field class? string
---@field release? string   "2.4"
---@field config? string    a path
---@field why string[]
---@field others string[]   models that fit as well
---@field problem? string   why no config beside the checkpoint is used
---@field is_broken? boolean   because it cannot be read
---@field quantised Quantised
---@field unused? string    why a config beside the checkpoint is not used, though it has another one
---@field foreign? string            the class that the config names, if it is not supported; the tensors are those of `class`
---@field keys string[]     of the model's tensors, without those of quantisation
---@field contents Contents
---@field fit? Fit          with the class, by the config
---@field adapter? { reason: string, advice: string }   of one beside the model
---@field reason? string    why there is no model
---@field cause? any         the error of a config that says which model it is
---@field advice? string    what to do about it, if something else than another config or model will help
---@field lacks_head? boolean   the config names the class with a head, and the tensors are those of its body
---@field is_other_kind? boolean   the config is not one of the checkpoint's format
---@field is_config_wrong? boolean   that is, since its config cannot be that of a known model, whatever --model says

---Whether an H5 checkpoint has exactly the model's tensors, under flat keys with dots.
---@param checkpoint Checkpoint
local function has_flat_model(checkpoint)
  if checkpoint.format ~= "cerebras-h5" then return false end
  local count = 0
  for key, value in cbk.items(checkpoint.root) do
    if kinds.is_tensor(value) and not tostring(key):find "^model%." then return false end
    count = count + (kinds.is_tensor(value) and 1 or 0)
  end
  return count > 0
end

---@param checkpoint Checkpoint
---@param is_hf boolean
---@param config Dict|nil
---@param config_path string|nil
---@param given RecogniseGiven
---@return string[] formats, string|nil release, string[] why
local function formats_of(checkpoint, is_hf, config, config_path, given)
  if is_hf then
    if config and has_flat_model(checkpoint) and (kinds.is_dict(config, "model") or kinds.is_dict(config, "trainer")) then
      cbk.fail("format", zoo_checkpoint.flat_text(cbk.quote(checkpoint.path)))
    end
    local is_inside = kinds.is_dict(checkpoint.root, "model")
    local at_top = weights.place(checkpoint.root) == "" and "the tensors are at the top level, as in Hugging Face's files"
      or "the tensors are not in a dict 'model', as they are in the Model Zoo's files"
    local in_dict = config and "the config is one of Hugging Face"
      or "the tensors in the dict 'model' have the names of Hugging Face's files"
    return { "hf", unpack(catalogue.own_layouts()) }, nil, { is_inside and in_dict or at_top }
  end
  local old = spec_tree.old_file(checkpoint)
  local evidence, formats = release.evidence(checkpoint, config, old.has_scalar_dicts), {}
  local possible = release.candidates(evidence)
  local release_named = given.format and catalogue.release(given.format)
  if releases.place[release_named] then possible = { release_named } end
  if #possible == 0 then
    local problem, what_to_do = release.contradiction(evidence, { checkpoint = checkpoint.path, config = config_path,
      option = given.option })
    cbk.fail("format", problem, { advice = what_to_do })
  end
  for i, one in ipairs(possible) do formats[i] = "cs-" .. one end
  return formats, #possible == 1 and possible[1] or nil, release.lines(evidence)
end

---Keys of the model, and their shapes. Quantised weights have the keys of the weights before quantisation, if these are known.
---@param root Dict         of the model, or with the model below "model"
---@param is_hf boolean
---@param found Quantised   in the model's part of the tree
local function keys_of(root, is_hf, found)
  local model = is_hf and root or root.model
  local keys, by_key = found:names(names.keys_of(is_hf and root or cbk.dict { model = model }))
  local function shape_of(key)
    if by_key[key] then return by_key[key].shape end
    local value = model[key]
    if value == nil then return nil end
    return kinds.is_tensor(value) and value:shape()
  end
  return keys, shape_of
end

---How the tensors of a checkpoint fit a model as which they were not recognised.
---@param found Identity
---@param known ClassTensors
---@return Fit
function recognise.fit(found, known)
  local is_hf, tree = not catalogue.release(found.format), found.contents.root
  return fit.of(known, keys_of(tree, is_hf, found.quantised))
end

local MOST_OTHERS = 8

---Records the models that are as likely as the first. Without a config, these are all models with these names.
---@param found Identity
---@param list Candidate[]
local function add_others(found, list)
  local best, others = list[1], found.others
  for i = 2, #list do
    local is_tie = candidates.is_tie(list[i], best, best.fit ~= nil)
    if is_tie and #others < MOST_OTHERS then others[#others + 1] = list[i].model.model end
  end
end

---@param found Identity
---@param list Candidate[]
---@param count integer   of all keys
local function take(found, list, count)
  local best = list[1]
  found.model, found.class = best.model.model, best.class.name
  add_others(found, list)
  local one = best.fit
  found.fit = one
  found.why[#found.why + 1] = ("%d of %d keys are tensors of %s, with the shapes of the config"):format(one.matched, count,
    best.class.name)
  for _, what in ipairs { "missing", "unknown" } do
    if #one[what] > 0 then found.why[#found.why + 1] = ("%d %s: %s"):format(#one[what], what, names.shown(one[what])) end
  end
  if #one.wrong > 0 then
    found.why[#found.why + 1] = ("'%s': %s"):format(one.wrong[1].key, one.wrong[1].why)
  end
end

---The names of the models that have these tensor names.
---@param list Candidate[]
---@return string[]   three at most
local function names_of(list)
  local out = {}
  for i = 1, math.min(#list, 3) do out[i] = list[i].model.model end
  return out
end

local KNOWN_MODELS = "`cbk list` lists the models that can be converted"

---Why no model was found by the config.
---@param list Candidate[]
---@param problems UnfitConfig[]
---@param stated string|nil   "model_type='llama'"
---@param keys string[]
---@param shape_of fun(key: string): integer[]|nil
---@param formats string[]
---@return string reason, string|nil advice   nil: another config, or the name of the model, may help
local function reason_of(list, problems, stated, keys, shape_of, formats)
  local best, like = list[1], names_of((candidates.of_names(formats, keys, shape_of)))
  if best and best.fit.matched + #best.fit.wrong == 0 and problems[1] then return problems[1].text end -- nothing is known about the others
  if best and #best.fit.wrong > 0 and #best.fit.wrong >= #best.fit.unknown then
    return ("the config does not fit the tensors: '%s': %s"):format(best.fit.wrong[1].key, best.fit.wrong[1].why)
  end
  local others = #like > 0 and ("; the tensor names are those of %s"):format(table.concat(like, " or ")) or ""
  if not stated then return "no model that fits the config has these tensors" .. others end
  local why = inexpressible.why(stated:match "^model_type=(.*)")
  if why then return why, KNOWN_MODELS end
  if best and best.fit.matched == 0 then
    return ("the config says %s, but no tensor is one of %s: %s%s"):format(stated, architectures.classes_of(list),
      names.shown(best.fit.unknown), others)
  elseif best then
    return ("the config says %s, but %d of %d keys are not tensors of %s: %s%s"):format(stated, #best.fit.unknown, #keys,
      best.class.name, names.shown(best.fit.unknown), others)
  end
  local own, named = stated:match "=(.*)", stated:match "^name=(.*)"
  local suspect = like[1] or catalogue.is_own(own) and own
  local lacking = #problems == 0 and suspect and converters.lacking_class(suspect, formats[1])
  if not problems[1] and not lacking and named and catalogue.find(named) then
    return ("the config says %s, for which --model %s and --src-fmt (such as %s) are needed"):format(stated, named,
      catalogue.format_at(catalogue.find(named), releases.newest))
  end
  if problems[1] or lacking then return problems[1] and problems[1].text or lacking end
  local what_to_do = #like > 0 and "if it is one of these, name it with --model, and a config of that model with --config" or KNOWN_MODELS
  return ("the config says %s, which is not a known model%s"):format(stated, others), what_to_do
end

---Why the best class is not that of the checkpoint, and what to do: the names differ, or the config names another class.
---@param root Dict
---@param config Dict   of Hugging Face
---@param list Candidate[]
---@param count integer   of keys
---@return string|nil reason, string|nil advice, boolean|nil lacks_head
local function why_unfit(root, config, list, count)
  local best, foreign = list[1], architectures.foreign(config)
  if not best or not foreign and #best.fit.wrong > 0 then return nil end
  local has_names = #best.fit.missing == 0 and #best.fit.unknown == 0
  local is_unclear = #best.fit.wrong > 0 or list[2] and candidates.is_tie(list[2], best, true)
  if foreign and has_names and is_unclear then return unfit.foreign(foreign, list) end
  local is_other = architectures.stated(config) ~= nil and not best.is_named and #best.fit.missing > 0
  if is_other or best.fit.matched * 2 < count then return unfit.explain(root, config, list) end
end

---The search that a config asks for.
---@param is_hf boolean
---@param config Dict     the whole file
---@param section Dict    of the model
---@param formats string[]
---@param class string|nil   of Hugging Face
---@return Asked
local function asked_by(is_hf, config, section, formats, class)
  return {
    side = is_hf and "left" or "right", section = section, architecture = class,
    accepts = is_hf and candidates.of_type(config) or candidates.of_name(formats, section),
    distance = candidates.distance_of(is_hf and {} or formats, section),
  }
end

---The first key that a model's rules do not read.
---@param model Model
---@param format string
---@param keys string[]
---@return string|nil
local function stranger_to(model, format, keys)
  local converter, side = catalogue.table_with(model, format)
  local compiled, outlines = patterns.compile(converter.keys, side), guess.outlines(keys)
  for _, key in ipairs(keys) do
    if outlines[guess.outline(key)] == key and not patterns.hits(compiled, key)() then return key end
  end
end

---The one model of the user's own that the config names and no class describes.
---@param is_hf boolean
---@param section Dict    of the model
---@param format string
---@param keys string[]
---@return string|nil model
---@return string|nil stranger   a key that its rules do not read
local function own_without_class(is_hf, section, format, keys)
  local own
  for _, name in ipairs(converters.stated_models(is_hf, section)) do
    local has_table = catalogue.is_own(name) and catalogue.table_with(catalogue.find(name), format)
    if has_table and converters.lacking_class(name, format) then
      if own then return nil end
      own = name
    end
  end
  if own then return own, stranger_to(catalogue.find(own), format, keys) end
end

---@param found Identity
---@param root Dict       of the checkpoint
---@param config Dict
---@param formats string[]
---@param kept Dict|nil   the Hugging Face config fields that the checkpoint keeps
local function by_config(found, root, config, formats, kept, keys, shape_of)
  local is_hf, why = not catalogue.release(found.format), found.why
  local fine, section = pcall(is_hf and configs.hugging_face_section or trainer.model, config)
  if not fine then
    found.reason, found.is_config_wrong, found.is_other_kind = errors.text(section), true, true
    why[#why + 1] = found.reason
    return
  end
  local class = architectures.stated(is_hf and config or kept)
  local field = is_hf and "model_type" or "name"
  if kinds.present(section[field]) and type(section[field]) ~= "string" then
    found.reason, found.is_config_wrong = configs.not_a_string(field, section[field]), true
    why[#why + 1] = found.reason
    return
  end
  local stated = type(section[field]) == "string" and ("%s=%s"):format(field, section[field]) or nil
  if stated then why[#why + 1] = "the config says " .. stated end
  local asked = asked_by(is_hf, config, section, formats, class)
  local list, problems, format, alike = candidates.of_config(asked, formats, keys, shape_of)
  found.format, found.layouts = format, alike
  local best, foreign = list[1] and list[1].fit, is_hf and architectures.foreign(config)
  if is_hf and #problems == 0 then found.reason, found.advice, found.lacks_head = why_unfit(root, config, list, #keys) end
  local own, stranger = own_without_class(is_hf, section, formats[1], keys)
  if own and not stranger then
    found.model, found.reason, found.advice = own, nil, nil
    why[#why + 1] = ("all keys fit rules of %s in '%s', which has no class"):format(own, catalogue.file_of(own))
    return
  end
  if found.reason or not best or best.matched * 2 < #keys then
    if not found.reason then found.reason, found.advice = reason_of(list, problems, stated, keys, shape_of, formats) end
    if own then
      found.reason = ("%s; %s is the model of '%s', which has no rule for '%s'"):format(found.reason, own, catalogue.file_of(own), stranger)
    end
    if problems[1] and found.reason == problems[1].text then found.cause = problems[1].cause end
    found.is_config_wrong = #problems > 0 or is_hf and stated and not best or best and #best.wrong > 0
    why[#why + 1], why[#why + 2] = found.reason, found.advice
    return
  end
  take(found, list, #keys)
  if foreign then
    found.foreign = foreign
    why[#why + 1] = architectures.why_foreign(foreign, { list[1].model })
  end
  if list[1].is_named then
    local where = is_hf and "the config" or "the Hugging Face config that the checkpoint keeps"
    why[#why + 1] = ("%s says architectures=%s"):format(where, class)
  end
end

---@param found Identity
---@param keys string[]
---@param shape_of fun(key: string): integer[]|nil
---@param formats string[]
---@param class string|nil   the Hugging Face class that the checkpoint keeps
---@param has_only_dict boolean   nothing but a dict 'model' says that it is one of the Model Zoo
local function by_names(found, keys, shape_of, formats, class, has_only_dict)
  local list, format = candidates.of_names(formats, keys, shape_of, class)
  local best = list[1]
  if not best then
    local called = has_only_dict and "config" or config_beside.called(not catalogue.release(found.format))
    local lacks = found.problem and "" or (" and there is no %s beside it"):format(called)
    found.reason = "no model has these tensor names" .. lacks
    found.why[#found.why + 1] = found.reason
    return
  end
  found.model, found.format, found.class = best.model.model, format, best.class.name
  add_others(found, list)
  found.why[#found.why + 1] = ("%sall %d tensor names are those of %s"):format(found.problem and "" or "there is no config; ", #keys,
    found.model)
end

---Notes the last release in which the model has the same names, and that nothing else says which one it is.
---@param found Identity    with a model; changed
---@param formats string[]  that are possible, oldest first
---@param section Dict|nil  the model's config
local function add_last(found, formats, keys, shape_of, section)
  local guess_of, model, is_past = guess.of(keys, shape_of), catalogue.find(found.model), false
  local function mistakes(format)
    local class, of = catalogue.class_of(model, {}, format)
    local one = class and not section and guess_of(class, of)
    return class and section and guess.mistakes(class, section, of, keys) or one and one.unknown or math.huge
  end
  local least = mistakes(found.format)
  for _, format in ipairs(formats) do
    if is_past and mistakes(format) <= least then found.last = format end
    is_past = is_past or format == found.format
  end
  local first, last = catalogue.release(found.format), catalogue.release(found.last or found.format)
  found.why[#found.why + 1] = found.last and ("the releases %s to %s have these tensor names, and nothing says which one wrote them")
    :format(first, last) or ("of the releases that are possible, %s alone has these tensor names"):format(first)
end

---Finds the model inside a checkpoint. A prefix such as `model.` may be the model's own or a wrapper's: the class of the config decides,
---or all classes if there is no config.
---@param root Dict
---@param is_hf boolean
---@param config Dict|nil    the whole file
---@param formats string[]
---@return Contents
local function contents_of(root, is_hf, config, formats)
  local fine, section = pcall(is_hf and configs.hugging_face_section or trainer.model, config)
  local is_known = config ~= nil and fine and kinds.is_dict(section)
  return contents.of(root, not is_hf, is_known and candidates.fit_of_config(asked_by(is_hf, config, section, formats,
    architectures.stated(is_hf and config or hf_config.of(root))), formats)
    or config == nil and candidates.fit_of_names(formats) or nil, config)
end

---A Hugging Face config for a checkpoint with a dict 'model', as in Model Zoo checkpoints, if it describes the tensors below it: training
---scripts save a model's weights like this, beside their own state.
---@param beside ConfigBeside
---@param checkpoint Checkpoint
---@return ConfigBeside|nil
local function foreign_config(beside, checkpoint)
  if not beside.config or not configs.says_hugging_face(beside.config) then return nil end
  local inner = contents_of(checkpoint.root, true, beside.config, { "hf" }).root
  local keys = cbk.keys(inner)
  for i, key in ipairs(keys) do keys[i] = tostring(key) end
  local least = candidates.fit_of_config(asked_by(true, beside.config, beside.config, {}), { "hf" })(keys)
  return least and least < cbk.count(cbk.dict(guess.outlines(keys))) and beside or nil
end

---Whether the tensors in a dict 'model' have the names of a model.
---@param root Dict      of the checkpoint
---@param is_hf boolean   of Hugging Face, else of the Model Zoo
---@return boolean
local function has_names(root, is_hf)
  local formats = { "hf" }
  for i, one in ipairs(is_hf and {} or releases.known) do formats[i] = "cs-" .. one end
  local inner = contents_of(root, is_hf, nil, formats).root
  local keys, shape_of = keys_of(inner, is_hf, quantised.find(is_hf and inner or inner.model))
  return #keys > 0 and #candidates.of_names(formats, keys, shape_of) > 0
end

---A Hugging Face config that the user names for a checkpoint with a dict 'model', whose names are none of the Model Zoo's: if it fits no
---tensor, the reason is about Hugging Face's names.
---@param beside ConfigBeside
---@param checkpoint Checkpoint
---@return ConfigBeside|nil
local function named_config(beside, checkpoint)
  local is_foreign = beside.config and configs.says_hugging_face(beside.config) and not has_names(checkpoint.root, false)
  return is_foreign and beside or nil
end

---Reports that a checkpoint is a PEFT adapter, or has one beside it.
---@param found Identity   changed
---@param path string      of the checkpoint
---@param keys string[]
local function note_adapter(found, path, keys)
  local why = found.why
  if found.model then
    local reason, what_to_do = adapters.beside(path)
    found.adapter = reason and { reason = reason, advice = what_to_do }
    why[#why + 1] = reason and ("%s; %s"):format(reason, what_to_do)
  elseif not found.advice then
    local reason, what_to_do = adapters.of(path, keys)
    if not reason then return end
    found.reason, found.advice = reason, what_to_do
    why[#why] = reason -- in place of the findings from its names
    why[#why + 1] = what_to_do
  end
end

local OF_GGUF = "convert the Hugging Face checkpoint that it was made from; `cbk copy --exclude 'metadata.*'` makes a "
  .. "safetensors file of it, with the same names"

---A file that a trainer wrote beside a model. The config in its folder is that of the model.
---@param checkpoint Checkpoint
---@param holds string
---@return Identity
local function without_weights(checkpoint, holds)
  local format, reason = listing.format_text(checkpoint), ("it holds %s, and no weights of a model"):format(holds)
  return { format = format, container = format, layouts = {}, why = { reason }, reason = reason, others = {}, holds = holds, keys = {},
    advice = "name the file with the weights, or their folder", contents = contents.as_it_is(checkpoint.root),
    quantised = quantised.find(cbk.dict()) }
end

---@class RecogniseGiven     What the user says of a checkpoint.
---@field config? string     default: the one beside it
---@field format? string     whatever else says another release
---@field option? string     the option for the format, for advice (default: "--src-fmt")
---@field folders? table     what is known of folders, as in `config_beside.find`

---Recognises the model of a checkpoint from its config and its tensors.
---@param path string           of the checkpoint
---@param checkpoint Checkpoint
---@param given? RecogniseGiven
---@return Identity found
---@return Dict|nil config      of the file `found.config`
---@return Dict|nil kept        the config in the checkpoint's __metadata__, if there is no file
function recognise.checkpoint(path, checkpoint, given)
  given = given or {}
  local config_path = given.config
  kinds.check_root(checkpoint.root)
  local holds = training_files.content(checkpoint:raw_root())
  if holds then return without_weights(checkpoint, holds) end
  local is_hf = not kinds.is_dict(checkpoint.root, "model")
  local beside = config_path and { path = converters.config_file(config_path), config = config_beside.load(config_path) }
    or config_beside.of(path, checkpoint, is_hf, given.folders)
  local params = not beside.config and not is_hf and zoo_checkpoint.params(checkpoint.root) or nil
  local other = not (is_hf or params) and (config_path and beside or not beside.config and config_beside.find(path, true))
  local foreign = other and (foreign_config(other, checkpoint) or config_path and named_config(other, checkpoint)) or nil
  local unused = other and not foreign and other.config and configs.says_hugging_face(other.config) and other.path
  local has_own_config = is_hf or foreign or params or config_path or beside.is_named
  local is_foreign = not has_own_config and has_names(checkpoint.root, true) and not has_names(checkpoint.root, false)
  if is_foreign and beside.path then
    beside = { unused = ("%s is not read, as the tensors have the names of Hugging Face's files; --config reads it"):format(
      cbk.quote(beside.path)) }
  end
  is_hf, beside = is_hf or foreign ~= nil or is_foreign, foreign or beside
  local config = beside.config or params
  local formats, of, why = formats_of(checkpoint, is_hf, config, beside.path, given)
  local inner = contents_of(checkpoint.root, is_hf, config, formats)
  local root = inner.root
  local found = {
    format = formats[1], layouts = {}, release = of, config = beside.config and beside.path, why = why, others = {},
    problem = beside.problem, is_broken = beside.is_broken, contents = inner,
  }
  local has_only_dict = not is_hf and #why == 0
  local looked = contents.text(inner)
  if looked then why[#why + 1] = looked end
  if beside.problem then why[#why + 1] = beside.problem end
  if params then found.has_own_config, why[#why + 1] = true, "the config is read from its __metadata__" end
  found.unused = beside.unused
  why[#why + 1] = beside.unused or config and not is_hf and kept_config.doubt(config, checkpoint.root) or nil
  found.quantised = quantised.find(is_hf and root or root.model, config)
  local keys, shape_of = keys_of(root, is_hf, found.quantised)
  found.quantised:add(inner.dequantised)
  found.keys = keys
  local kept = hf_config.of(checkpoint.root)
  if #keys == 0 then
    found.reason = "it has no tensors"
    why[#why + 1] = found.reason
  elseif config then
    by_config(found, checkpoint.root, config, formats, kept, keys, shape_of)
  else
    by_names(found, keys, shape_of, formats, architectures.stated(kept), has_only_dict)
    if not found.model and unused then
      found.config, found.reason = unused, ("the config '%s' is one of Hugging Face, but the checkpoint has a dict 'model', as in the "
        .. "Model Zoo's files, whose tensors are not those of a known model"):format(unused)
      why[#why] = found.reason
    end
  end
  if found.model and not is_hf and #formats > 1 then
    add_last(found, formats, keys, shape_of, config and trainer.model(config))
  end
  if has_only_dict and not found.model then found.container = listing.format_text(checkpoint) end
  if is_hf then note_adapter(found, path, keys) end
  if checkpoint.format == "gguf" and not found.model then
    found.reason, found.advice = "a GGUF file has llama.cpp's names and orders, which no model of cbk has", OF_GGUF
    why[#why], why[#why + 1] = found.reason, found.advice
  end
  return found, beside.config, params
end

return recognise
