#include "host/formats/pickle/storage_class.hpp"

#include <algorithm>
#include <array>

namespace cbk::pickle {
namespace {

constexpr std::array classes = {
    StorageClass{"FloatStorage", DType::float32, ""},
    StorageClass{"DoubleStorage", DType::float64, ""},
    StorageClass{"HalfStorage", DType::float16, ""},
    StorageClass{"BFloat16Storage", DType::bfloat16, ""},
    StorageClass{"ByteStorage", DType::uint8, ""},
    StorageClass{"CharStorage", DType::int8, ""},
    StorageClass{"ShortStorage", DType::int16, ""},
    StorageClass{"IntStorage", DType::int32, ""},
    StorageClass{"LongStorage", DType::int64, ""},
    StorageClass{"BoolStorage", DType::boolean, ""},
    StorageClass{"ComplexFloatStorage", DType::complex64, ""},
    StorageClass{"ComplexDoubleStorage", DType::complex128, ""},
    StorageClass{"QInt8Storage", DType::int8, "qint8"},
    StorageClass{"QUInt8Storage", DType::uint8, "quint8"},
    StorageClass{"QInt32Storage", DType::int32, "qint32"},
    StorageClass{"QUInt4x2Storage", DType::uint8, "quint4x2"},
    StorageClass{"QUInt2x4Storage", DType::uint8, "quint2x4"},
    StorageClass{"UntypedStorage", DType::uint8, "", true},
    StorageClass{"_UntypedStorage", DType::uint8, "", true},
};

}  // namespace

const StorageClass* find_storage_class(std::string_view global) {
  const size_t dot = global.rfind('.');
  if (dot == std::string_view::npos) return nullptr;
  const std::string_view module = global.substr(0, dot);
  if (module != "torch" && module != "torch.cuda" && module != "torch.storage") return nullptr;
  return storage_class_named(global.substr(dot + 1));
}

const StorageClass* storage_class_named(std::string_view name) {
  const auto* found = std::ranges::find(classes, name, &StorageClass::name);
  return found == classes.end() ? nullptr : found;
}

const StorageClass* find_quantized_class(std::string_view quantized) {
  const auto* found = std::ranges::find(classes, quantized, &StorageClass::quantized);
  return quantized.empty() || found == classes.end() ? nullptr : found;
}

const StorageClass& storage_class_for(DType dtype) {
  for (const StorageClass& entry : classes) {
    if (entry.dtype == dtype && entry.quantized.empty()) return entry;
  }
  return *std::ranges::find(classes, true, &StorageClass::is_untyped);
}

}  // namespace cbk::pickle
