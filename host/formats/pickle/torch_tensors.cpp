#include "host/formats/pickle/torch_tensors.hpp"

#include <algorithm>

#include "host/formats/pickle/storage_class.hpp"

namespace cbk::pickle {
namespace {

constexpr size_t rank_limit = 64;
constexpr int64_t channel_limit = 1 << 20;

struct StorageRef {
  const View& elements;  // one-dimensional
  const StorageClass& type;
};

StorageRef storage_of(const Value& value) {
  const Object& object = expect_object(value, "torch.storage");
  const StorageClass* type = storage_class_named(object.repr);
  const View* elements = object.state.as_tensor().view();
  if (type == nullptr || elements == nullptr) fail(Errc::format, "{} is not a storage", quote(object.repr));
  return {*elements, *type};
}

/// The largest position that a view of at least one element touches.
uint64_t last_element(const View& view) {
  auto last = static_cast<uint64_t>(view.offset);
  for (size_t i = 0; i < view.shape.size(); ++i) {
    const auto steps = static_cast<uint64_t>(view.shape[i] - 1);
    last =
        checked_add(last, checked_mul(steps, static_cast<uint64_t>(view.strides[i]), "a stride"), "a stride");
  }
  return last;
}

/// Elements [0, count) of the storage seen through offset, size and stride.
Tensor view_of(const StoragePtr& storage, DType dtype, int64_t first, int64_t count,
               const Arguments& arguments) {
  View view{storage, dtype, arguments.at(1).as_int(), shape_of(arguments.at(2)), shape_of(arguments.at(3))};
  if (view.shape.size() != view.strides.size()) {
    fail(Errc::format, "a tensor has the size {} but the strides {}", to_string(view.shape),
         to_string(view.strides));
  }
  const int64_t numel = numel_of(view.shape);
  if (view.offset < 0 || (numel > 0 && last_element(view) >= static_cast<uint64_t>(count))) {
    fail(Errc::format,
         "a tensor of size {}, strides {} and offset {} reaches beyond its storage of {} elements",
         to_string(view.shape), to_string(view.strides), view.offset, count);
  }
  if (numel == 0) view.offset = std::min(view.offset, count);  // it may be any, and reads nothing
  checked_mul(static_cast<uint64_t>(numel), size_of(dtype), "a tensor");
  view.offset += first;
  return Tensor::from_view(std::move(view));
}

/// Views that are conjugated or negated lazily say so in their metadata.
void check_metadata(const Value* metadata) {
  if (metadata == nullptr || metadata->is_none()) return;
  for (const char* name : {"conj", "neg"}) {
    const Value* flag = metadata->find(name);
    if (flag != nullptr && flag->is(Value::Kind::boolean) && flag->as_bool()) {
      fail(Errc::unsupported, "a tensor is a lazy '{}' view; save it after resolve_{}()", name, name);
    }
  }
}

Value leaf(CallContext& context, Tensor tensor, bool requires_grad,
           TensorLeaf::Role role = TensorLeaf::Role::tensor) {
  return context.arena.tensor(
      std::make_shared<const TensorLeaf>(TensorLeaf{std::move(tensor), role, requires_grad}));
}

bool flag_at(const Arguments& arguments, size_t i) {
  const Value* flag = arguments.find(i);
  return flag != nullptr && flag->as_bool();
}

Tensor elements_of(const Arguments& arguments) {
  const StorageRef storage = storage_of(arguments.at(0));
  if (storage.type.is_untyped) fail(Errc::format, "a tensor over an untyped storage does not name its dtype");
  return view_of(storage.elements.storage, storage.type.dtype, storage.elements.offset,
                 storage.elements.shape.at(0), arguments);
}

/// A small tensor of numbers as a list: the scales and zero points of a quantized tensor.
Value numbers(CallContext& context, const Value& value, DType dtype) {
  const Tensor& tensor = value.as_tensor();
  if (tensor.numel() > channel_limit) fail(Errc::format, "a quantized tensor of {} channels", tensor.numel());
  context.arena.charge(static_cast<uint64_t>(tensor.numel()) * sizeof(Value));
  const Bytes bytes = tensor.cast(dtype).to_bytes();
  std::vector<Value> items;
  items.reserve(bytes.size() / 8);
  for (size_t at = 0; at + 8 <= bytes.size(); at += 8) {
    if (dtype == DType::float64) {
      items.emplace_back(load_le<double>(bytes.data() + at));
    } else {
      items.emplace_back(load_le<int64_t>(bytes.data() + at));
    }
  }
  return context.arena.sequence(Sequence::Kind::list, std::move(items));
}

}  // namespace

Shape shape_of(const Value& value) {
  const auto& items = value.as_sequence().items;
  if (items.size() > rank_limit) fail(Errc::format, "a tensor of {} dimensions", items.size());
  Shape shape;
  shape.reserve(items.size());
  for (const Value& item : items) {
    shape.push_back(item.as_int());
    if (shape.back() < 0) fail(Errc::format, "a negative size or stride, {}", shape.back());
  }
  return shape;
}

Value rebuild_tensor(CallContext& context, const Arguments& arguments) {
  check_metadata(arguments.find(6));
  return leaf(context, elements_of(arguments), flag_at(arguments, 4));
}

Value rebuild_tensor_v3(CallContext& context, const Arguments& arguments) {
  const StorageRef storage = storage_of(arguments.at(0));
  const DType dtype = parse_dtype(expect_object(arguments.at(6), "torch.dtype").repr);
  check_metadata(arguments.find(7));
  const uint64_t first_byte = static_cast<uint64_t>(storage.elements.offset) * size_of(storage.type.dtype);
  const auto bytes = static_cast<uint64_t>(storage.elements.shape.at(0)) * size_of(storage.type.dtype);
  if (first_byte % size_of(dtype) != 0)
    fail(Errc::format, "a storage that is not aligned for {}", name_of(dtype));
  const StoragePtr& raw = storage.elements.storage;
  const bool retypes = storage.type.is_untyped && context.options.retype;
  return leaf(context,
              view_of(retypes ? context.options.retype(raw, dtype) : raw, dtype,
                      static_cast<int64_t>(first_byte / size_of(dtype)),
                      static_cast<int64_t>(bytes / size_of(dtype)), arguments),
              flag_at(arguments, 4));
}

Value rebuild_parameter(CallContext& context, const Arguments& arguments) {
  const TensorLeaf& data = arguments.at(0).as_leaf();
  const Value* requires_grad = arguments.find(1);
  const Value* state = arguments.find(3);
  const bool has_state = state != nullptr && state->is(Value::Kind::dict) && !state->as_dict().empty();
  if (has_state && context.options.warn) context.options.warn("the attributes of a parameter are left out");
  return leaf(context, data.tensor, requires_grad == nullptr || requires_grad->as_bool(),
              TensorLeaf::Role::parameter);
}

/// (dtype, size, stride, requires_grad)
Value rebuild_meta(CallContext& context, const Arguments& arguments) {
  const Error why(Errc::unsupported, "a tensor on the meta device has no data");
  if (!context.options.note_unreadable) throw why;
  context.options.note_unreadable();
  const DType dtype = parse_dtype(expect_object(arguments.at(0), "torch.dtype").repr);
  const Shape shape = shape_of(arguments.at(1));
  const uint64_t bytes = checked_mul(static_cast<uint64_t>(numel_of(shape)), size_of(dtype), "a tensor");
  const Tensor tensor =
      Tensor::from_view({unreadable_storage(bytes, why), dtype, 0, shape, contiguous_strides(shape)});
  return leaf(context, tensor, flag_at(arguments, 3));
}

Value rebuild_sparse(CallContext& context, const Arguments& arguments) {
  const std::string& layout = expect_object(arguments.at(0), "torch.layout").repr;
  const Arguments parts(arguments.at(1));
  const Value state = context.arena.dict();
  const auto put = [&](const char* name, const Value& value) {
    context.arena.set_item(state.as_dict(), name, value);
  };
  const auto put_shape = [&](const Value& size) {
    put("shape", context.arena.sequence(Sequence::Kind::torch_size, size.as_sequence().items));
    (void)shape_of(size);
  };
  const auto put_tensor = [&](const char* name, const Value& value) {
    (void)value.as_tensor();
    put(name, value);
  };
  if (layout == "torch.sparse_coo") {
    put_shape(parts.at(2));
    put_tensor("indices", parts.at(0));
    put_tensor("values", parts.at(1));
    put("is_coalesced", parts.find(3) != nullptr ? Value(parts.at(3).as_bool()) : Value());
  } else if (layout != "torch.strided") {
    const bool by_row = layout == "torch.sparse_csr" || layout == "torch.sparse_bsr";
    put_shape(parts.at(3));
    put_tensor(by_row ? "crow_indices" : "ccol_indices", parts.at(0));
    put_tensor(by_row ? "col_indices" : "row_indices", parts.at(1));
    put_tensor("values", parts.at(2));
  } else {
    fail(Errc::format, "a sparse tensor of the layout {}", layout);
  }
  return context.arena.object(layout, {}, state);
}

Value rebuild_sparse_csr(CallContext& context, const Arguments& arguments) {
  Value made = rebuild_sparse(context, arguments);
  context.arena.set_item(made.as_object().state.as_dict(), "function", sparse_csr_function);
  return made;
}

Value rebuild_quantized(CallContext& context, const Arguments& arguments) {
  const StorageClass& type = storage_of(arguments.at(0)).type;
  if (type.quantized.empty()) fail(Errc::format, "a quantized tensor over a {}", type.name);
  if (type.quantized == "quint4x2" || type.quantized == "quint2x4") {
    fail(Errc::unsupported, "tensors of the packed dtype torch.{}", type.quantized);
  }
  const Arguments quantizer(arguments.at(4));
  const std::string& scheme = expect_object(quantizer.at(0), "torch.qscheme").repr;
  const Value state = context.arena.dict();
  const auto put = [&](const char* name, const Value& value) {
    context.arena.set_item(state.as_dict(), name, value);
  };
  put("dtype", type.quantized);
  put("int_repr", leaf(context, elements_of(arguments), false));
  if (scheme.starts_with("torch.per_tensor")) {
    put("qscheme", scheme);
    put("scale", quantizer.at(1).as_double());
    put("zero_point", quantizer.at(2).as_int());
  } else {
    // torch uses one name for both schemes in pickles; the zero points distinguish them.
    const bool real_points = is_floating(quantizer.at(2).as_tensor().dtype());
    put("qscheme", real_points ? std::string(float_scheme) : scheme);
    put("scales", numbers(context, quantizer.at(1), DType::float64));
    put("zero_points", numbers(context, quantizer.at(2), real_points ? DType::float64 : DType::int64));
    put("axis", quantizer.at(3).as_int());
  }
  put("requires_grad", flag_at(arguments, 5));
  return context.arena.object("torch.quantized", {}, state);
}

Value rebuild_converted(CallContext& context, const Arguments& arguments) {
  const DType dtype = parse_dtype(expect_object(arguments.at(1), "torch.dtype").repr);
  const Tensor& tensor = arguments.at(0).as_tensor();
  return leaf(context, tensor.dtype() == dtype ? tensor : tensor.cast(dtype), flag_at(arguments, 3));
}

namespace {

/// A tensor of a class that has no elements of its own (DTensor): its attributes, as of a record.
Value subclass(CallContext& context, const std::string& type, const Arguments& arguments) {
  Value made = context.arena.object(type);
  made.as_object().is_inert = true;
  set_attributes(context, made.as_object(), arguments.at(3));
  return made;
}

}  // namespace

Value rebuild_from_type(CallContext& context, const Arguments& arguments) {
  const std::string& function = expect_object(arguments.at(0), "class").repr;
  const std::string& type = expect_object(arguments.at(1), "class").repr;
  const auto meaning = find_global(function, context.options.dill);
  const bool is_parameter = type == "torch.nn.parameter.Parameter";
  const bool is_tensor = is_parameter || type == "torch.Tensor" || type == "torch._tensor.Tensor";
  if (!is_tensor && !context.options.describes) fail(Errc::refused, "{}", type);
  const bool rebuilds =
      meaning && *meaning >= Meaning::rebuild_tensor && *meaning <= Meaning::rebuild_from_cpu;
  if (!rebuilds && !is_tensor) return subclass(context, type, arguments);
  if (!rebuilds) fail(Errc::format, "{} does not rebuild a tensor", quote(function));
  const Value* state = arguments.find(3);
  const bool has_state =
      state != nullptr && !(state->is(Value::Kind::dict) && state->as_dict().empty()) && !state->is_none();
  if (has_state && context.options.warn) context.options.warn("the attributes of a tensor are left out");
  Value rebuilt = call(context, *meaning, function, arguments.at(2));
  if (!is_parameter || !rebuilt.is(Value::Kind::tensor)) return rebuilt;
  return leaf(context, rebuilt.as_tensor(), rebuilt.as_leaf().requires_grad, TensorLeaf::Role::parameter);
}

}  // namespace cbk::pickle
