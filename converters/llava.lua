-- LLaVA: two folders of Hugging Face files, one Model Zoo checkpoint.

local fields = require "converters.engine.fields"
local rules = require "converters.engine.rules"
local llava = require "converters.shared.llava"
local decoder = require "converters.classes.zoo.decoder"
local zoo = require "converters.classes.zoo.llava"

local places = {
  image = "image_model", projector = "projector_image_model", removed = decoder.GPT2LMHeadModel.removed,
}

return { {
  model = "llava", name = "llava", classes = { right = zoo.LlavaModel },
  note = "CLIPVisionModel (folder image_model) and LlavaLlamaForCausalLM (folder text_model) <-> LLaVA",
  rules.between("hf", "cs-2.2 .. cs-2.9", llava.hugging_face(places, fields.with(llava.usual, { image_start_idx = 1 }))),
} }
