-- Static sparsity: a mask for each weight that never changes.

local class = require "cstorch.class"
local errors = require "cstorch.errors"
local keywords = require "cstorch.keywords"
local loaded = require "cstorch.loaded"
local Module = require("cstorch.nn").Module
local Optimizer = require "cstorch.optim.optimizer"
local ordered_map = require "cstorch.ordered_map"
local shapes = require "cstorch.shapes"
local tensors = require "cstorch.tensors"

local check, show = errors.check, errors.show

---Masks weights: the share `sparsity` of each is zero and stays zero. `init_method` says which: "random", or "topk" for the smallest ones.
---`filter(name, p)` says which parameters get a mask; by default those with two dims and more whose name has none of embedding, norm,
---lm_head and pe_helper.
---@class cstorch.sparse.Static : cstorch.Class
---@field masks table<any, any>   parameter to mask: 1 where the weight lives, else 0
---@alias Static.Keywords { sparsity: number, init_method: "random"|"topk", filter: fun(name: string, p: any): boolean }
---@overload fun(keywords: Static.Keywords): cstorch.sparse.Static
local Static = class.Object:subclass("Static", { sparsity = keywords.REQUIRED, init_method = "random", filter = false })

Static.positional = 0
class.optional(Static, "saved")

local DENSE = { "embedding", "norm", "lm_head", "pe_helper" }

local function default_filter(name, p)
  for _, word in ipairs(DENSE) do
    if name:find(word, 1, true) then return false end
  end
  return p:dim() > 1
end

function Static:init(kw)
  local share = kw.sparsity
  check(type(share) == "number" and share >= 0 and share < 1, "value", "Static: sparsity must be a number in [0, 1), not %s", show(share))
  local is_known = kw.init_method == "random" or kw.init_method == "topk"
  check(is_known, "value", "Static: init_method must be 'random' or 'topk', not %s", show(kw.init_method))
  check(not kw.filter or type(kw.filter) == "function", "type", "Static: expected a function as filter, found %s", show(kw.filter))
  self.sparsity, self.init_method, self.filter = share, kw.init_method, kw.filter or default_filter
  self.masks, self.names = {}, {}
end

local function random_scores(p) return tensors.to_device(tensors.rand(p:shape())) end

--- The lowest of the `kept` highest scores.
local function threshold_of(scores, kept) return scores:flatten():topk(kept):amin() end

--- 1 for the highest scores, 0 for the share of the lowest.
local function make_mask(self, p)
  local kept = p:numel() - math.floor(self.sparsity * p:numel())
  local scores = random_scores(p)
  if self.init_method == "topk" then
    local sizes = p:detach():abs():to "float32"
    local threshold = threshold_of(sizes, kept)
    -- among equal weights, such as zeros, random ones are kept
    scores = tensors.where(sizes:gt(threshold), 2, tensors.where(sizes:eq(threshold), scores, -1))
  end
  return scores:ge(threshold_of(scores, kept)):to(p.dtype)
end

--- The mask of a state dict; nil without one.
local function saved_mask(self, name, p)
  if not self.saved then return nil end
  local value = self.saved[name]
  check(value ~= nil, "value", "Static: the state dict has no mask for '%s'", name)
  local mask = tensors.zeros_like(p)
  loaded.write(mask, value, ("Static: the mask of '%s'"):format(name))
  return mask
end

--- Warns of a new mask for a weight that is sparse already, as after loading it.
local function warn_of_sparse(self, name, p, mask)
  if self.saved then return end
  local function live(weights) return tensors.to_host(weights:ne(0):to("int64"):sum()):item() end
  local before, after = live(p), live(p:mul(mask))
  if before < p:numel() and after < before then
    errors.warn(("Static: '%s' has %d weights of %d that are not 0, and the new mask makes it %d: to go on with a sparse run, save the "
      .. "masks with state_dict() and load them with load_state_dict() before apply"):format(name, before, p:numel(), after))
  end
end

local function mask_model(self, model)
  local count = 0
  for name, p in model:named_parameters() do
    if not self.masks[p] and self.filter(name, p) then
      local mask = saved_mask(self, name, p) or make_mask(self, p)
      self.masks[p], self.names[p] = mask, name
      warn_of_sparse(self, name, p, mask)
      p:mul_(mask)
      tensors.mask_gradients(p, mask)
      count = count + 1
    end
  end
  check(count > 0, "value", "Static: the filter accepts no parameter of the %s", model.class.name)
end

--- Selects, as NaN times 0 is NaN.
local function select_live(tensor, mask) tensor:copy_(tensors.where(mask, tensor, 0)) end

local function mask_weights(self, optimizer)
  local names = optimizer:state_names_to_sparsify()
  for p, state in optimizer:parameters() do
    local mask = self.masks[p]
    if mask then
      select_live(p, mask)
      for _, name in ipairs(names) do
        if state[name] and shapes.same(state[name], mask) then select_live(state[name], mask) end
      end
    end
  end
end

---Masks the weights of a model and the gradients that they get; or makes an optimizer mask weights and state after its steps. Also
---`optimizer:apply(sparsity)`. Apply it to the model first, and after loading its weights. To go on with a sparse run, save
---`state_dict()` with the model, and load it before this: new masks are other ones.
---@param target any   an nn.Module or an optimizer
function Static:apply(target)
  if class.is_a(target, Module) then return tensors.no_grad(mask_model, self, target) end
  check(class.is_a(target, Optimizer), "type", "Static:apply: expected a module or an optimizer, found %s", show(target))
  check(next(self.masks) ~= nil, "runtime", "Static:apply: apply it to the model before its optimizer")
  target:register_step_post_hook(function(optimizer) tensors.no_grad(mask_weights, self, optimizer) end)
end

---The masks by the names of their parameters.
---@return table
function Static:state_dict()
  local dict, parameters = ordered_map.new(), {}
  for p, name in pairs(self.names) do parameters[name] = p end
  for name, p in ordered_map.items(parameters) do dict[name] = self.masks[p] end
  return dict
end

---Takes the masks of a state dict. Before `apply` to a model they are used in place of new ones; after it they replace its masks.
---@param state_dict table
function Static:load_state_dict(state_dict)
  check(keywords.is_map(state_dict), "type", "Static: expected a map of names to masks, found %s", show(state_dict))
  local writes = {}
  for p, name in pairs(self.names) do
    check(state_dict[name] ~= nil, "value", "Static: the state dict has no mask for '%s'", name)
    writes[#writes + 1] = loaded.writer(self.masks[p], state_dict[name], ("Static: the mask of '%s'"):format(name))
  end
  tensors.no_grad(function()
    for _, write in ipairs(writes) do write() end
    for p, mask in pairs(self.masks) do p:mul_(mask) end
  end)
  self.saved = state_dict
end

return Static
