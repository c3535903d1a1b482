-- The two folders of a LLaVA: CLIP's image tower, and a LLaMA with the projector (liuhaotian's LLaVA 1.5).

local class = require "converters.engine.class"
local clip = require "converters.classes.hf.clip"
local llama = require "converters.classes.hf.llama"

local linear, size, text = class.linear, class.kinds.size, class.kinds.text

local base = llama.LlamaForCausalLM

local llava = { image_model = clip.CLIPVisionModel }

llava.text_model = class.new "LlavaLlamaForCausalLM" {
  fields = class.extend(base.fields, { mm_hidden_size = size(1024), mm_projector_type = class.deciding(text "linear", "mlp2x_gelu") }),
  derived = base.derived,
  tensors = function(c)
    local count = tonumber((c.mm_projector_type or ""):match "^mlp(%d+)x_gelu$") or 1
    local projector = {}
    for i = 1, math.min(count, 1000) do -- a Sequential has activations between its Linears
      projector[i] = linear(("model.mm_projector.%d"):format(2 * i - 2), i == 1 and "mm_hidden_size" or "hidden_size", "hidden_size", true)
    end
    return { base.nodes(c), class.may_lack("the projector", projector) }
  end,
}

return class.module(llava)
