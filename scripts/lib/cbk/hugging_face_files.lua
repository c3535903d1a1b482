-- The files beside a Hugging Face checkpoint that are needed to use the model: tokenizer, generation, preprocessing, its programs.

local cbk = require "cbk"

local hugging_face_files = {}

local NAMES = {
  "added_tokens.json", "chat_template.jinja", "chat_template.json", "generation_config.json", "merges.txt", "preprocessor_config.json",
  "processor_config.json", "sentencepiece.bpe.model", "special_tokens_map.json", "spiece.model", "spm.model", "tekken.json",
  "tokenizer.json", "tokenizer.model", "tokenizer_config.json", "video_preprocessor_config.json", "vocab.json", "vocab.txt",
}

local FOLDER = "additional_chat_templates" -- the only one that Hugging Face's programs write beside a model

---The programs in a folder whose config names some in `auto_map`: which files these import is not known.
---@param folder string
---@return string[]
local function programs(folder)
  local fine, config = pcall(function() return cbk.config.load(cbk.fs.join(folder, "config.json")) end)
  if not (fine and cbk.kind(config) == "dict" and config.auto_map ~= nil) then return {} end
  local out = {}
  for _, name in ipairs(cbk.fs.list(folder)) do
    if name:find "%.py$" then out[#out + 1] = name end
  end
  return out
end

---The chat templates in their folder, with its name: "additional_chat_templates/rag.jinja".
---@param folder string
---@return string[]
local function templates(folder)
  local path, out = cbk.fs.join(folder, FOLDER), {}
  for _, name in ipairs(cbk.fs.is_dir(path) and cbk.fs.list(path) or {}) do
    if name:find "%.jinja$" then out[#out + 1] = cbk.fs.join(FOLDER, name) end
  end
  return out
end

---The names of these files in a folder, sorted.
---@param folder string
---@return string[]
function hugging_face_files.names(folder)
  local out = {}
  for _, list in ipairs { NAMES, programs(folder), templates(folder) } do
    for _, name in ipairs(list) do
      local path = cbk.fs.join(folder, name)
      if cbk.fs.exists(path) and not cbk.fs.is_dir(path) then out[#out + 1] = name end
    end
  end
  table.sort(out)
  return out
end

---These files of a folder, to be written beside a checkpoint.
---@param folder string
---@param allowed string[]   folders where links out of the folder may lead: --allow-external
---@param files? table<string, string>   contents by name; the files are added to it
---@return table<string, string>
function hugging_face_files.read(folder, allowed, files)
  files = files or {}
  for _, name in ipairs(hugging_face_files.names(folder)) do files[name] = cbk.fs.read(cbk.fs.beside(folder, name, allowed)) end
  return files
end

return hugging_face_files
