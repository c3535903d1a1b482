---@meta cstorch.meta
-- The methods of tensors that compute, as annotations: editors complete from it and `:help cstorch.Tensor` prints it. Nothing here runs.
-- Dims count from 0, negative ones from the end; bounds of slices are half open. Tensors broadcast as in PyTorch. Methods that end in an
-- underscore write into the tensor and return it; a leaf that needs gradients is written under `no_grad` only.

---A tensor that computes. `+ - * / ^` and unary `-` take tensors and numbers; `a == b` asks for the same tensor, `a:eq(b)` compares
---elements.
---@class cstorch.Tensor : userdata
---@field dtype string          "float32", "float64", "float16", "bfloat16", "int32", "int64", "uint8" or "bool"
---@field device string         "cpu" or "csx"
---@field grad cstorch.Tensor?  what `backward` left; may be assigned
---@field requires_grad boolean
---@field is_leaf boolean       whether it was made, not computed
local Tensor = {}

-- --- looking

---The extents.
---@return integer[]
function Tensor:shape() end
---The extent of a dim.
---@param dim integer
---@return integer
function Tensor:size(dim) end
---How many dims it has.
---@return integer
function Tensor:dim() end
---How many elements it has.
---@return integer
function Tensor:numel() end
---The one element.
---@return number|boolean|ffi.cdata*   int64 as the rest of cbk reads it
function Tensor:item() end
---The elements as nested lists; a number without dims.
---@return any
function Tensor:tolist() end

-- --- element by element

---|x|.
---@return cstorch.Tensor
function Tensor:abs() end
----x.
---@return cstorch.Tensor
function Tensor:neg() end
---e^x.
---@return cstorch.Tensor
function Tensor:exp() end
---The natural logarithm.
---@return cstorch.Tensor
function Tensor:log() end
---√x.
---@return cstorch.Tensor
function Tensor:sqrt() end
---1/√x.
---@return cstorch.Tensor
function Tensor:rsqrt() end
---x².
---@return cstorch.Tensor
function Tensor:square() end
----1, 0 or 1.
---@return cstorch.Tensor
function Tensor:sign() end
---The next whole number below.
---@return cstorch.Tensor
function Tensor:floor() end
---The next whole number above.
---@return cstorch.Tensor
function Tensor:ceil() end
---The cosine.
---@return cstorch.Tensor
function Tensor:cos() end
---The sine.
---@return cstorch.Tensor
function Tensor:sin() end
---The hyperbolic tangent.
---@return cstorch.Tensor
function Tensor:tanh() end
---1/(1 + e^-x).
---@return cstorch.Tensor
function Tensor:sigmoid() end
---max(x, 0).
---@return cstorch.Tensor
function Tensor:relu() end
---The error function.
---@return cstorch.Tensor
function Tensor:erf() end
---Whether elements are neither NaN nor infinite: bool.
---@return cstorch.Tensor
function Tensor:isfinite() end
---Whether elements are zero: bool.
---@return cstorch.Tensor
function Tensor:logical_not() end
---x + other.
---@param other cstorch.Input
---@return cstorch.Tensor
function Tensor:add(other) end
---x - other.
---@param other cstorch.Input
---@return cstorch.Tensor
function Tensor:sub(other) end
---x·other.
---@param other cstorch.Input
---@return cstorch.Tensor
function Tensor:mul(other) end
---x/other.
---@param other cstorch.Input
---@return cstorch.Tensor
function Tensor:div(other) end
---x^other.
---@param other cstorch.Input
---@return cstorch.Tensor
function Tensor:pow(other) end
---The larger one of each two elements.
---@param other cstorch.Input
---@return cstorch.Tensor
function Tensor:maximum(other) end
---The smaller one of each two elements.
---@param other cstorch.Input
---@return cstorch.Tensor
function Tensor:minimum(other) end
---x == other: bool.
---@param other cstorch.Input
---@return cstorch.Tensor
function Tensor:eq(other) end
---x ~= other: bool.
---@param other cstorch.Input
---@return cstorch.Tensor
function Tensor:ne(other) end
---x < other: bool.
---@param other cstorch.Input
---@return cstorch.Tensor
function Tensor:lt(other) end
---x <= other: bool.
---@param other cstorch.Input
---@return cstorch.Tensor
function Tensor:le(other) end
---x > other: bool.
---@param other cstorch.Input
---@return cstorch.Tensor
function Tensor:gt(other) end
---x >= other: bool.
---@param other cstorch.Input
---@return cstorch.Tensor
function Tensor:ge(other) end
---Whether both are not zero: bool.
---@param other cstorch.Input
---@return cstorch.Tensor
function Tensor:logical_and(other) end
---Whether one is not zero: bool.
---@param other cstorch.Input
---@return cstorch.Tensor
function Tensor:logical_or(other) end
---Elements below `min` become it, those above `max` that; one of the two may be nil.
---@param min? cstorch.Input
---@param max? cstorch.Input
---@return cstorch.Tensor
function Tensor:clamp(min, max) end
---`value` where the mask is not zero, else x.
---@param mask cstorch.Tensor
---@param value cstorch.Input
---@return cstorch.Tensor
function Tensor:masked_fill(mask, value) end
---The elements in another dtype.
---@param dtype string
---@return cstorch.Tensor
function Tensor:to(dtype) end

-- --- reductions

---The sum over dims.
---@param dim? integer|integer[]   default: all
---@param options? { keepdim: boolean }
---@return cstorch.Tensor
function Tensor:sum(dim, options) end
---The mean over dims.
---@param dim? integer|integer[]   default: all
---@param options? { keepdim: boolean }
---@return cstorch.Tensor
function Tensor:mean(dim, options) end
---The largest element over dims; equal ones share the gradient.
---@param dim? integer|integer[]   default: all
---@param options? { keepdim: boolean }
---@return cstorch.Tensor
function Tensor:amax(dim, options) end
---The smallest element over dims; equal ones share the gradient.
---@param dim? integer|integer[]   default: all
---@param options? { keepdim: boolean }
---@return cstorch.Tensor
function Tensor:amin(dim, options) end
---The 2-norm over dims.
---@param dim? integer|integer[]   default: all
---@param options? { keepdim: boolean }
---@return cstorch.Tensor
function Tensor:norm(dim, options) end
---The position of the largest element, from 0: int64.
---@param dim? integer   default: in the flattened tensor
---@param options? { keepdim: boolean }
---@return cstorch.Tensor
function Tensor:argmax(dim, options) end
---The k largest elements along a dim, largest first, and their positions from 0.
---@param k integer
---@param dim? integer   default -1
---@return cstorch.Tensor values
---@return cstorch.Tensor positions
function Tensor:topk(k, dim) end
---e^x over its sum along a dim.
---@param dim? integer   default -1
---@return cstorch.Tensor
function Tensor:softmax(dim) end
---The logarithm of `softmax`.
---@param dim? integer   default -1
---@return cstorch.Tensor
function Tensor:log_softmax(dim) end
---The matrix product; leading dims broadcast.
---@param other cstorch.Tensor
---@return cstorch.Tensor
function Tensor:matmul(other) end

-- --- shapes

---The same elements in another shape; one extent may be -1.
---@param shape integer[]
---@return cstorch.Tensor
function Tensor:reshape(shape) end
---The dims in another order.
---@param dims integer[]
---@return cstorch.Tensor
function Tensor:permute(dims) end
---Two dims exchanged.
---@param dim_a integer
---@param dim_b integer
---@return cstorch.Tensor
function Tensor:transpose(dim_a, dim_b) end
---Dims of extent 1 repeated, without a copy.
---@param shape integer[]
---@return cstorch.Tensor
function Tensor:expand(shape) end
---Without a dim of extent 1, or without all of them.
---@param dim? integer
---@return cstorch.Tensor
function Tensor:squeeze(dim) end
---With a new dim of extent 1.
---@param dim integer
---@return cstorch.Tensor
function Tensor:unsqueeze(dim) end
---The dims from `first` to `last` as one.
---@param first? integer   default 0
---@param last? integer    default -1
---@return cstorch.Tensor
function Tensor:flatten(first, last) end
---A part along a dim.
---@param dim integer
---@param start? integer   default 0
---@param stop? integer   default: the end
---@param step? integer   default 1
---@return cstorch.Tensor
function Tensor:slice(dim, start, stop, step) end
---One position along a dim, which goes.
---@param dim integer
---@param index integer   from 0
---@return cstorch.Tensor
function Tensor:select(dim, index) end
---Parts of `size` positions along a dim; the last may be smaller.
---@param size integer
---@param dim? integer   default 0
---@return cstorch.Tensor[]
function Tensor:split(size, dim) end
---Itself if its elements lie in order in memory, else a copy in which they do.
---@return cstorch.Tensor
function Tensor:contiguous() end

-- --- memory and gradients

---A copy in memory of its own; gradients go through it.
---@return cstorch.Tensor
function Tensor:clone() end
---The same memory without the history.
---@return cstorch.Tensor
function Tensor:detach() end
---Adds the gradients of this tensor to the `grad` of all leaves that it was computed from.
---@param upstream? cstorch.Tensor   its own gradient; needed unless it has one element
function Tensor:backward(upstream) end
---Whether operations with it are recorded.
---@param value? boolean   default true
---@return cstorch.Tensor
function Tensor:requires_grad_(value) end

-- --- in place

---Writes the elements of another tensor.
---@param source cstorch.Input
---@return cstorch.Tensor
function Tensor:copy_(source) end
---Writes one value everywhere.
---@param value cstorch.Input
---@return cstorch.Tensor
function Tensor:fill_(value) end
---Writes zeros.
---@return cstorch.Tensor
function Tensor:zero_() end
---x + alpha·other.
---@param other cstorch.Input
---@param options? { alpha: cstorch.Input }   default 1
---@return cstorch.Tensor
function Tensor:add_(other, options) end
---x - alpha·other.
---@param other cstorch.Input
---@param options? { alpha: cstorch.Input }   default 1
---@return cstorch.Tensor
function Tensor:sub_(other, options) end
---x·other.
---@param other cstorch.Input
---@return cstorch.Tensor
function Tensor:mul_(other) end
---x/other.
---@param other cstorch.Input
---@return cstorch.Tensor
function Tensor:div_(other) end
---√x.
---@return cstorch.Tensor
function Tensor:sqrt_() end
----x.
---@return cstorch.Tensor
function Tensor:neg_() end
---x + value·a·b.
---@param a cstorch.Input
---@param b cstorch.Input
---@param options? { value: cstorch.Input }   default 1
---@return cstorch.Tensor
function Tensor:addcmul_(a, b, options) end
---x + value·a/b.
---@param a cstorch.Input
---@param b cstorch.Input
---@param options? { value: cstorch.Input }   default 1
---@return cstorch.Tensor
function Tensor:addcdiv_(a, b, options) end
---x + weight·(stop - x).
---@param stop cstorch.Input
---@param weight cstorch.Input
---@return cstorch.Tensor
function Tensor:lerp_(stop, weight) end
---As `clamp`.
---@param min? cstorch.Input
---@param max? cstorch.Input
---@return cstorch.Tensor
function Tensor:clamp_(min, max) end

return Tensor
