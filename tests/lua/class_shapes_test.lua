-- Shapes, of every model and both directions: a checkpoint is refused where any one size of its config is another, and where any one
-- extent of any one tensor is. Both are generated from the classes: fields that no shape depends on are those that change no extent.
-- Every fourth size and extent is tried, other ones in each conversion; all of them with the environment variable CBK_ALL_SHAPES=1.

local cbk = require "cbk"
local class_tensors = require "converters.engine.class_tensors"
local conversion = require "conversion"
local converters = require "cbk.converters"
local extents = require "cbk.extents"
local fields = require "converters.engine.fields"
local kinds = require "converters.engine.kinds"
local harness = require "harness"
local tiny = require "tiny"
local sections = require "converters.engine.sections"
local trainer = require "converters.modelzoo.trainer"

local IS_WHOLE = os.getenv "CBK_ALL_SHAPES" == "1"

local catalogue, convert = converters.catalogue, converters.convert
local describe, it = harness.describe, harness.it

-- --- conversions

---@class Case
---@field name string
---@field src string
---@field tgt string
---@field config Dict
---@field root Dict
---@field layout? table   the fields that make it another one than the model's usual one

local function case_text(case) return ("%s, %s to %s %s"):format(case.name, case.src, case.tgt, cbk.json(cbk.dict(case.layout))) end

---The model section of a config.
local function section_of(case, config) return case.src == "hf" and config or trainer.model(config) end

---A release beside one: the older one, if there is one.
local function neighbour(name, format)
  for _, group in ipairs(catalogue.groups(catalogue.find(name))) do
    for i, one in ipairs(group) do
      if one == format then return catalogue.is_step(format, group[i - 1] or "") and group[i - 1] or group[i + 1] end
    end
  end
end

local grouped = { attention_module = "multiquery_attention", extra_attention_params = cbk.dict { num_kv_groups = 1 } }

-- what tiny models do not have, on either side
local hf_layouts = {
  llama = { { num_key_value_heads = 1 } }, ["bert-token-classifier"] = { { num_labels = 3 } },
}
local zoo_layouts = {
  gpt2 = {
    grouped, { moe_params = cbk.dict { num_experts = 2, top_k = 1 } }, { attention_inner_dim = 16 }, { position_embedding_type = "alibi" },
    { position_embedding_type = "relative", num_relative_attention_buckets = 4 }, { position_embedding_type = "fixed" },
    { attention_qk_norm_layer = "layernorm" }, { position_embedding_offset = 2 }, { num_extra_input_vocab_tokens = 3 },
    { moe_params = cbk.dict { num_experts = 2, num_shared_experts = 1, top_k = 1 } },
  },
  ["gpt-neox"] = { grouped },
  t5 = { { position_embedding_type = "fixed", src_max_position_embeddings = 3, tgt_max_position_embeddings = 3 } },
  ["clip-vit"] = { { use_conv_patchified_embedding = true } },
  bert = { { disable_nsp = true, num_segments = 3 } },
}

---To a release, from it, and on to the release beside it.
local function add_cases(out, way, layout)
  local config, root = tiny.model(way)
  for field, value in pairs(layout or {}) do config[field] = value end
  if layout then root = tiny.checkpoint(catalogue.find(way.name).classes.left, config) end
  local reported = layout or way.layout and way.layout.fields
  out[#out + 1] = { name = way.name, src = "hf", tgt = way.format, config = config, root = root, layout = reported }
  config, root = conversion.run(way.name, "hf", way.format, config, root)
  out[#out + 1] = { name = way.name, src = way.format, tgt = "hf", config = config, root = root, layout = reported }
  if not way.converter.wrap then
    local beside = neighbour(way.name, way.format)
    out[#out + 1] = { name = way.name, src = way.format, tgt = beside, config = config, root = root, layout = reported }
  end
end

---Another layout of a release, to the release beside it.
local function add_zoo_case(out, way, layout)
  local config = conversion.run(way.name, "hf", way.format, tiny.model(way))
  local section = trainer.model(config)
  for field, value in pairs(layout) do section[field] = value end
  local found, release = catalogue.class_of(catalogue.find(way.name), way.converter, way.format)
  local root = cbk.dict { model = tiny.checkpoint(found, section, release) }
  out[#out + 1] = { name = way.name, src = way.format, tgt = neighbour(way.name, way.format), config = config, root = root,
    layout = layout }
end

---The oldest way of a model from Hugging Face to a release that its class describes.
local function oldest_way(name)
  local oldest
  for _, way in ipairs(tiny.ways()) do
    local is_older = way.name == name and (not oldest or catalogue.place_of(way.format) < catalogue.place_of(oldest.format))
    if is_older and catalogue.class_of(catalogue.find(name), way.converter, way.format) then oldest = way end
  end
  return oldest
end

---@param name string
---@return Case[]
local function cases_of(name)
  local out, way = {}, tiny.newest_ways()[name] or tiny.composite(name)
  for _, one in ipairs(tiny.layouts(name, way.converter, way.format)) do add_cases(out, one) end
  for _, layout in ipairs(hf_layouts[name] or {}) do add_cases(out, way, layout) end
  for _, layout in ipairs(zoo_layouts[name] or {}) do add_zoo_case(out, way, layout) end
  return out
end

---The models that have a class on some side, a model inside another one included.
local function models()
  local out = {}
  for _, name in ipairs(catalogue.names()) do
    local model = catalogue.find(name)
    if model.model == name and catalogue.path(model, "hf", catalogue.format_at(model, "2.9")) then out[#out + 1] = name end
  end
  return out
end

---@class PartOfCase   What one class is about.
---@field class Class
---@field known ClassTensors
---@field place string      before its keys in messages
---@field tensors fun(root: Dict): Dict, string   those of the checkpoint, with what is before their keys there

---The fields of a part in the user's file.
local function given_to(job, converter)
  local side, section = job.path[1].side, job.files[1]
  if job.path[1].src ~= "hf" then section = trainer.model(section) end
  section = sections.of_file(job.configs[1].converter, side, section)
  return converter.left and section[converter[side]] or section
end

---@param job Job
---@return PartOfCase[]
local function parts_of(case, job)
  local out, is_hf = {}, case.src == "hf"
  for _, one in ipairs(convert.tables(job.configs[1])) do
    local found, release = catalogue.class_of(job.model, one.converter, case.src)
    local folder, inside = is_hf and one.converter.left or nil, one.converter.inside
    local prefix = not is_hf and inside and inside.place .. "." or ""
    assert(found, case_text(case) .. " has no class")
    out[#out + 1] = {
      class = found, known = found:tensors(one.configs[job.path[1].side], { release = release, given = given_to(job, one.converter) }),
      place = folder and folder .. "/" or prefix,
      tensors = function(root) return folder and root[folder] or not is_hf and root.model or root, prefix end,
    }
  end
  return out
end

---A job whose config is converted, and the parts of its model; nil where they are refused.
---@return Job|nil
---@return PartOfCase[]|string parts   or why
local function job_of(case, config)
  local job = conversion.job(case.name, case.src, case.tgt, { source = case.root })
  local fine, result
  conversion.warnings(function()
    fine, result = pcall(function()
      convert.config(job, config)
      return parts_of(case, job)
    end)
  end)
  return fine and job or nil, fine and result or result.message or tostring(result)
end

---The message of a conversion that must be refused.
local function refusal(case, job, root, what)
  local fine, why
  conversion.warnings(function() fine, why = pcall(convert.checkpoint, job, root) end)
  assert(not fine, ("%s: %s goes through"):format(case_text(case), what))
  return tostring(why.message or why)
end

local function says(case, what, text, part)
  if not text:find(part, 1, true) then error(("%s: %s: '%s' does not say '%s'"):format(case_text(case), what, text, part), 0) end
end

-- --- sizes of the config

---A config with another value at a path; nil where there is no such place.
local function changed(case, path, value)
  local config = cbk.deep_copy(case.config)
  local map = section_of(case, config)
  for i = 1, #path - 1 do map = map[path[i]] end
  map[path[#path]] = value
  return config
end

---Every number of a section, and its path; a number in a list is one, too.
local function numbers_in(map, path, out)
  for name, value in cbk.items(map) do
    local own = { unpack(path) }
    own[#own + 1] = name
    if type(value) == "number" then
      out[#out + 1] = { path = own, value = value }
    elseif type(value) == "userdata" and (kinds.is_dict(value) or kinds.is_list(value)) then
      numbers_in(value, own, out)
    end
  end
  return out
end

---Sizes that classes assume, as the config does not say them.
local function assumed_in(case, parts, out)
  local section = section_of(case, case.config)
  for _, part in ipairs(#parts == 1 and parts or {}) do
    for _, name in ipairs(part.class.field_names) do
      local value = part.known.values[name]
      if type(value) == "number" and section[name] == nil then out[#out + 1] = { path = { name }, value = value } end
    end
  end
  return out
end

---Values of a field that may be valid by themselves.
local function others(value) return { 2 * value, value + 1, value + 2, 3 * value, value / 2 } end

---The first tensor of the checkpoint whose shape a config contradicts, with what is wrong.
local function first_mistake(case, parts)
  for _, part in ipairs(parts) do
    local tensors, prefix = part.tensors(case.root)
    for key, tensor in cbk.items(tensors) do
      local own = key:sub(#prefix + 1)
      local short = part.known.by_key[own] and own or own:gsub("^model%.", "")
      local why = key:sub(1, #prefix) == prefix and part.known:mistake(short, tensor:shape())
      if why then return ("'%s%s': %s"):format(part.place, own, why) end
    end
  end
end

---How a message shows a field: by its name; if it is an item of a list, all of the list.
local function shown_in(map, path)
  local count = type(path[#path]) == "number" and #path - 1 or #path
  for i = 1, count do map = map[path[i]] end
  return ("%s=%s"):format(path[count], fields.shown(map))
end

---@return string|nil   "contradicted", "refused", or nil where no shape depends on the number
local function check_number(case, number)
  local name, is_valid, why, what = table.concat(number.path, "."), false, nil, nil
  for _, value in ipairs(others(number.value)) do
    local config = changed(case, number.path, value)
    local job, parts = job_of(case, config)
    local fine, mistake = pcall(first_mistake, case, job and parts or {})
    what, is_valid = ("%s=%s"):format(name, value), is_valid or job ~= nil and fine
    why = why or not job and parts or not fine and mistake.message or nil
    if fine and mistake then
      local text = refusal(case, job, case.root, what)
      says(case, what, text, mistake)
      says(case, what, text, shown_in(section_of(case, config), number.path))
      return "contradicted"
    end
  end
  if is_valid then return nil end
  local field = number.path[#number.path]
  says(case, what, why, type(field) == "number" and number.path[#number.path - 1] or field)
  return "refused"
end

-- --- extents of tensors

---The checkpoint with another tensor under a key.
local function with_tensor(case, part, key, tensor)
  local root, _, prefix = cbk.copy(case.root), part.tensors(case.root)
  if root.model ~= nil and case.src ~= "hf" then root.model = cbk.copy(root.model) end
  local folder = part.place:match "^(.*)/$"
  if folder then root[folder] = cbk.copy(root[folder]) end
  local tensors = part.tensors(root)
  local own = prefix .. key
  tensors[tensors["model." .. own] ~= nil and "model." .. own or own] = tensor
  return root
end

---Each other shape that differs in one extent; of a single number, a list. A buffer may have extents of 1 in front.
local function other_shapes(shape, is_buffer)
  local out = {}
  for i in ipairs(shape) do
    local other = { unpack(shape) }
    other[i] = other[i] + 1
    out[i] = other
  end
  return #shape == 0 and { { is_buffer and 2 or 1 } } or out
end

local function check_tensor(case, job, part, one)
  local shape, count = class_tensors.shape(one), 0
  for _, other in ipairs(other_shapes(shape, one.buffer)) do
    local what = ("'%s' %s"):format(one.key, extents.shape(other))
    local root = with_tensor(case, part, one.key, cbk.full(other, 0, { dtype = "float32" }))
    local text = refusal(case, job, root, what)
    says(case, what, text, one.key .. "': expected " .. extents.shape(shape))
    says(case, what, text, "found " .. extents.shape(other))
    count = count + 1
  end
  return count
end

---Whether one of several things is tried, of a conversion by its number.
local function is_tried(i, conversion_number) return IS_WHOLE or (i + conversion_number) % 4 == 0 end

describe("Shapes that the classes say", function()
  for _, name in ipairs(models()) do
    it(name .. ": a size of the config that is another one is refused", function()
      local found = { contradicted = 0, refused = 0 }
      local list
      conversion.warnings(function() list = cases_of(name) end)
      for c, case in ipairs(list) do
        local _, parts = job_of(case, case.config)
        local numbers = assumed_in(case, parts, numbers_in(section_of(case, case.config), {}, {}))
        for i, number in ipairs(numbers) do
          local result = is_tried(i, c) and check_number(case, number)
          if result then found[result] = found[result] + 1 end
        end
      end
      local enough = IS_WHOLE and 2 * #list or #list / 4
      harness.is_true(found.contradicted >= enough, ("%d of %d conversions"):format(found.contradicted, #list))
    end)

    it(name .. ": an extent of a tensor that is another one is refused", function()
      local list
      conversion.warnings(function()
        list = cases_of(name)
        local way = oldest_way(name)
        if way then add_cases(list, way) end
      end)
      for c, case in ipairs(list) do
        local job, parts = job_of(case, case.config)
        local count = 0
        for _, part in ipairs(parts) do
          for i, one in ipairs(part.known) do
            if is_tried(i, c) then count = count + check_tensor(case, job, part, one) end
          end
        end
        harness.is_true(count > (IS_WHOLE and 10 or 2), case_text(case) .. ": " .. count)
      end
    end)
  end
end)
