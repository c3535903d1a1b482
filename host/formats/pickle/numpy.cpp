#include "host/formats/pickle/numpy.hpp"

#include <algorithm>
#include <array>

#include "host/formats/pickle/torch_tensors.hpp"
#include "host/value/unreadable.hpp"

namespace cbk::pickle {
namespace {

struct Code {
  DType dtype;
  std::string_view code;
};
constexpr std::array codes = {
    Code{DType::boolean, "b1"},   Code{DType::uint8, "u1"},       Code{DType::int8, "i1"},
    Code{DType::uint16, "u2"},    Code{DType::int16, "i2"},       Code{DType::uint32, "u4"},
    Code{DType::int32, "i4"},     Code{DType::uint64, "u8"},      Code{DType::int64, "i8"},
    Code{DType::float16, "f2"},   Code{DType::float32, "f4"},     Code{DType::float64, "f8"},
    Code{DType::complex64, "c8"}, Code{DType::complex128, "c16"},
};

const Code* find_code(std::string_view code) {
  const bool has_order =
      !code.empty() && std::string_view("<>|=").find(code.front()) != std::string_view::npos;
  const auto* found = std::ranges::find(codes, has_order ? code.substr(1) : code, &Code::code);
  return found == codes.end() ? nullptr : found;
}

std::string_view raw_bytes(const Value& value) {
  return value.is(Value::Kind::string) ? std::string_view(value.as_string())
                                       : std::string_view(value.as_bytes().data);
}

/// Elements of the array's dtype in this machine's byte order.
Bytes native_elements(std::string_view raw, std::string_view code, DType dtype) {
  const ByteView view = as_bytes(raw);
  Bytes bytes(view.begin(), view.end());
  if (!code.starts_with('>')) return bytes;
  const uint32_t part = is_complex(dtype) ? size_of(dtype) / 2 : size_of(dtype);
  for (size_t at = 0; at + part <= bytes.size(); at += part) {
    std::reverse(bytes.begin() + static_cast<ptrdiff_t>(at),
                 bytes.begin() + static_cast<ptrdiff_t>(at + part));
  }
  return bytes;
}

Tensor array(CallContext& context, std::string_view code, const Shape& shape, bool column_major,
             std::string_view raw) {
  const DType dtype = dtype_of_numpy(code);
  const auto numel = static_cast<uint64_t>(numel_of(shape));
  if (checked_mul(numel, size_of(dtype), "an array") != raw.size()) {
    fail(Errc::format, "a numpy array {} of {} with {} bytes", to_string(shape), name_of(dtype), raw.size());
  }
  context.arena.charge(raw.size());
  Shape strides = contiguous_strides(shape);
  if (column_major) {
    strides = contiguous_strides(Shape(shape.rbegin(), shape.rend()));
    std::reverse(strides.begin(), strides.end());
  }
  return Tensor::from_view({memory_storage(native_elements(raw, code, dtype)), dtype, 0, shape, strides});
}

Value leaf_of(CallContext& context, const Tensor& tensor, TensorLeaf::Role role) {
  return context.arena.tensor(std::make_shared<const TensorLeaf>(TensorLeaf{tensor, role, false}));
}

const std::string& code_of(const Value& dtype) {
  return expect_object(dtype, "numpy.dtype").repr;
}

/// Arrays of other elements (text, objects, records): a record of the dtype's code and the state if records
/// are allowed, else an unreadable value.
Value record_of(CallContext& context, const char* type, const std::string& code, const Value& state) {
  const UnpickleOptions& options = context.options;
  if (options.allow_records) return context.arena.object(type, code, state);
  if (!options.note_unreadable) (void)dtype_of_numpy(code);
  options.note_unreadable();
  return context.arena.object(
      std::string(unreadable_type),
      fmt::format("a {} of the dtype {} is read with --allow-records only", type, quote(code, 40)));
}

}  // namespace

bool is_numpy_number(std::string_view code) {
  return find_code(code) != nullptr;
}

DType dtype_of_numpy(std::string_view code) {
  const Code* found = find_code(code);
  if (found == nullptr) {
    fail(Errc::unsupported, "numpy values of the dtype {}; with allow_records they are read as records",
         quote(code));
  }
  return found->dtype;
}

std::string numpy_code(DType dtype) {
  const auto* found = std::ranges::find(codes, dtype, &Code::dtype);
  if (found == codes.end()) fail(Errc::dtype, "numpy has no dtype {}", name_of(dtype));
  return std::string(found->code);
}

Value numpy_dtype(CallContext& context, const Arguments& arguments) {
  const Value& code = arguments.at(0);
  return context.arena.object("numpy.dtype", std::string(raw_bytes(code)));
}

void build_numpy_dtype(Object& dtype, const Value& state) {
  const std::string_view order = raw_bytes(Arguments(state).at(1));
  if (order.size() != 1) fail(Errc::format, "{} is not a byte order of a numpy dtype", quote(order));
  if (!dtype.repr.starts_with(order)) dtype.repr = fmt::format("{}{}", order, dtype.repr);
}

Value numpy_scalar(CallContext& context, const Arguments& arguments) {
  const std::string& code = code_of(arguments.at(0));
  if (!is_numpy_number(code)) return record_of(context, "numpy.generic", code, arguments.at(1));
  const Tensor scalar = array(context, code, {}, false, raw_bytes(arguments.at(1)));
  if (scalar.dtype() == DType::float64) return load_le<double>(scalar.to_bytes().data());
  return leaf_of(context, scalar, TensorLeaf::Role::np_scalar);
}

Value numpy_reconstruct(CallContext& context, const Arguments& arguments) {
  if (expect_object(arguments.at(0), "class").repr != "numpy.ndarray") {
    fail(Errc::refused, "{}", arguments.at(0).as_object().repr);
  }
  const Tensor empty = Tensor::from_bytes(DType::float32, {0}, {});
  auto leaf = std::make_shared<TensorLeaf>(TensorLeaf{empty, TensorLeaf::Role::ndarray, false});
  context.unfinished_arrays[leaf.get()] = leaf;
  return context.arena.tensor(leaf);
}

Value build_numpy_array(CallContext& context, const std::shared_ptr<TensorLeaf>& leaf, const Value& state) {
  const Arguments arguments(state);
  const size_t at = arguments.size() == 4 ? 0 : 1;  // a version number comes first since numpy 1
  const std::string& code = code_of(arguments.at(at + 1));
  if (!is_numpy_number(code)) return record_of(context, "numpy.ndarray", code, state);
  const Value& order = arguments.at(at + 2);
  const bool column_major = order.is(Value::Kind::boolean) ? order.as_bool() : order.as_int() != 0;
  leaf->tensor =
      array(context, code, shape_of(arguments.at(at)), column_major, raw_bytes(arguments.at(at + 3)));
  return Value(std::shared_ptr<const TensorLeaf>(leaf));
}

Value numpy_frombuffer(CallContext& context, const Arguments& arguments) {
  const Value& order = arguments.at(3);
  const bool column_major = order.is(Value::Kind::string) && order.as_string() == "F";
  const std::string& code = code_of(arguments.at(1));
  if (!is_numpy_number(code)) return record_of(context, "numpy.ndarray", code, arguments.at(0));
  const Tensor tensor =
      array(context, code, shape_of(arguments.at(2)), column_major, raw_bytes(arguments.at(0)));
  return leaf_of(context, tensor, TensorLeaf::Role::ndarray);
}

}  // namespace cbk::pickle
