-- Functions of neural networks, named and meant as in PyTorch's torch.nn.functional.

local cbk = require "cbk"
local errors = require "cstorch.errors"
local keywords = require "cstorch.keywords"
local namespace = require "cstorch.namespace"
local shapes = require "cstorch.shapes"

local native = cbk.compute

local functional = {}

local function check_tensor(what, x)
  errors.check(native.is_tensor(x), "type", "%s: expected a tensor, found %s", what, errors.show(x))
  return x
end

---x · weightᵀ + bias.
---@param x cstorch.Tensor          [..., in]
---@param weight cstorch.Tensor     [out, in]
---@param bias? cstorch.Tensor      [out]
---@return cstorch.Tensor           # [..., out]
function functional.linear(x, weight, bias, ...)
  keywords.none("linear", ...)
  return native.linear(x, weight, bias)
end

---Rows of a table.
---@param ids cstorch.Tensor      whole numbers from 0
---@param weight cstorch.Tensor   [rows, width]
---@return cstorch.Tensor         # [..., width]
function functional.embedding(ids, weight, ...)
  keywords.none("embedding", ...)
  return native.embedding(ids, weight)
end

---(x - mean) / √(variance + eps) · weight + bias over the dims of `weight`, which are the last ones of x.
---@param x cstorch.Tensor
---@param weight cstorch.Tensor
---@param bias? cstorch.Tensor
---@param options? { eps: number }   default 1e-5
---@return cstorch.Tensor
function functional.layer_norm(x, weight, bias, options) return native.layer_norm(x, weight, bias, options) end

---x / √(mean(x²) + eps) · weight over the dims of `weight`.
---@param x cstorch.Tensor
---@param weight cstorch.Tensor
---@param options? { eps: number }   default 1e-6
---@return cstorch.Tensor
function functional.rms_norm(x, weight, options) return native.rms_norm(x, weight, options) end

---The larger of x and 0.
---@param x cstorch.Tensor
---@return cstorch.Tensor
function functional.relu(x, ...)
  keywords.none("relu", ...)
  return check_tensor("relu", x):relu()
end

---x · sigmoid(x).
---@param x cstorch.Tensor
---@return cstorch.Tensor
function functional.silu(x, ...)
  keywords.none("silu", ...)
  return native.silu(x)
end

---x · Φ(x), with the normal distribution Φ or its tanh form.
---@param x cstorch.Tensor
---@param options? { approximate: "none"|"tanh" }
---@return cstorch.Tensor
function functional.gelu(x, options) return native.gelu(x, options) end

---exp(x) / Σ exp(x) along a dim.
---@param x cstorch.Tensor
---@param dim? integer   default: the last
---@return cstorch.Tensor
function functional.softmax(x, dim, ...)
  keywords.none("softmax", ...)
  return check_tensor("softmax", x):softmax(dim)
end

---The logarithm of softmax.
---@param x cstorch.Tensor
---@param dim? integer   default: the last
---@return cstorch.Tensor
function functional.log_softmax(x, dim, ...)
  keywords.none("log_softmax", ...)
  return check_tensor("log_softmax", x):log_softmax(dim)
end

---Sets elements to 0 with the probability p and divides the others by 1 - p; x itself when not training.
---@param x cstorch.Tensor
---@param options? { p: number, training: boolean }   default 0.5 and true
---@return cstorch.Tensor
function functional.dropout(x, options)
  options = keywords.complete("dropout", { p = 0.5, training = true }, options)
  check_tensor("dropout", x)
  errors.check(type(options.p) == "number" and options.p >= 0 and options.p <= 1, "value", "dropout: p must be in [0, 1], not %s",
    errors.show(options.p))
  if not options.training or options.p == 0 then return x end
  if options.p == 1 then return x * 0 end
  return x * native.dropout_mask(x:shape(), options.p):to(x.dtype)
end

---@class cstorch.nn.AttentionOptions
---@field causal? boolean
---@field scale? number
---@field cap? number
---@field dropout_p? number
---@field mask? cstorch.Tensor     broadcast to [..., heads, queries, keys]
---@field window? integer
---@field slopes? cstorch.Tensor   [heads]

---softmax(q · kᵀ · scale + mask) · v, a block of queries at a time. The heads of k and v may be fewer than those of q and divide them.
---The mask is added, or of bools that are true where a key is seen; `window`: keys that a query sees, itself included; `slopes`: those of
---ALiBi, one for each head; `cap`: scores become cap · tanh(score / cap), before the mask; `dropout_p`: weights that become 0, while the
---others are divided by 1 - p.
---@param q cstorch.Tensor   [..., heads, queries, width]
---@param k cstorch.Tensor   [..., groups, keys, width]
---@param v cstorch.Tensor   [..., groups, keys, width]
---@param options? cstorch.nn.AttentionOptions   causal, scale (default: width ^ -0.5), cap, dropout_p, mask, window, slopes
---@return cstorch.Tensor   # [..., heads, queries, width]
function functional.scaled_dot_product_attention(q, k, v, options)
  return native.scaled_dot_product_attention(q, k, v, options)
end

---log Σ exp(logits) - logits[label], of the rows whose label is not `ignore_index`.
---@param logits cstorch.Tensor   [..., classes]
---@param labels cstorch.Tensor   [...], whole numbers
---@param options? { reduction: "mean"|"sum"|"none", ignore_index: integer }   default "mean" and -100
---@return cstorch.Tensor
function functional.cross_entropy(logits, labels, options) return native.cross_entropy(logits, labels, options) end

local function reduce(name, losses, options)
  local reduction = keywords.complete(name, { reduction = "mean" }, options).reduction
  if reduction == "mean" then return losses:mean() end
  if reduction == "sum" then return losses:sum() end
  errors.check(reduction == "none", "value", '%s: reduction must be "mean", "sum" or "none", not %s', name, errors.show(reduction))
  return losses
end

---(a - b)². Shapes that differ are broadcast, with a warning.
---@param a cstorch.Tensor
---@param b cstorch.Tensor
---@param options? { reduction: "mean"|"sum"|"none" }
---@return cstorch.Tensor
function functional.mse_loss(a, b, options)
  check_tensor("mse_loss", a)
  check_tensor("mse_loss", b)
  if not shapes.same(a, b) then
    errors.warn(("mse_loss: shapes %s and %s differ and are broadcast, which is likely a mistake: reshape one of them"):format(
      shapes.text(a), shapes.text(b)))
  end
  return reduce("mse_loss", (a - b):square(), options)
end

---Cross-entropy of sigmoid(x) against the probabilities y, as max(x, 0) - x·y + log(1 + exp(-|x|)), which does not overflow.
---@param x cstorch.Tensor
---@param y cstorch.Tensor
---@param options? { reduction: "mean"|"sum"|"none" }
---@return cstorch.Tensor
function functional.binary_cross_entropy_with_logits(x, y, options)
  check_tensor("binary_cross_entropy_with_logits", x)
  check_tensor("binary_cross_entropy_with_logits", y)
  errors.check(shapes.same(x, y), "value", "binary_cross_entropy_with_logits: x %s and y %s must have one shape", shapes.text(x),
    shapes.text(y))
  -- not relu(x): at 0 the gradient of a maximum is one half, and the whole is sigmoid(0) - y
  local losses = x:maximum(0) - x * y + ((-x:abs()):exp() + 1):log()
  return reduce("binary_cross_entropy_with_logits", losses, options)
end

---The hyperbolic tangent of each element.
---@param x cstorch.Tensor
---@return cstorch.Tensor
function functional.tanh(x) return check_tensor("tanh", x):tanh() end

---1 / (1 + exp(-x)).
---@param x cstorch.Tensor
---@return cstorch.Tensor
function functional.sigmoid(x) return check_tensor("sigmoid", x):sigmoid() end

return namespace("cstorch.nn.functional", functional)
