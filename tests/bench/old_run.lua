-- A checkpoint that fix-checkpoint-spec has something to do on: cbk run old_run.lua IN OUT
local cbk = require "cbk"
local model = cbk.dict()
for key, t in cbk.open(arg[1]):tensors() do model[key] = t end
local embeddings = cbk.keys(model)[1]
model["model.embedding_layer.word_embeddings.weight"], model["model.lm_head.weight"] = model[embeddings], model[embeddings]
model[embeddings] = nil
local root = cbk.dict { { "model", model }, { "lr_scheduler", cbk.dict { last_epoch = 0 } }, { "global_step", 1000 } }
cbk.create(arg[2], { root = root, format = "h5", h5_version = "0.4", overwrite = true }):commit { progress = false }
