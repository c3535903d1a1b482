// The storage classes that torch pickles name, and the dtypes behind them.
#pragma once

#include <optional>
#include <string_view>

#include "host/tensor/dtype.hpp"

namespace cbk::pickle {

struct StorageClass {
  std::string_view name;       // "FloatStorage"
  DType dtype;                 // of the raw elements: int8 for QInt8Storage, uint8 for UntypedStorage
  std::string_view quantized;  // "qint8", else ""
  bool is_untyped = false;     // counts bytes; the tensor names its dtype
};

/// By a dotted global such as "torch.FloatStorage", "torch.cuda.HalfStorage", "torch.storage.UntypedStorage".
const StorageClass* find_storage_class(std::string_view global);

/// By its bare name.
const StorageClass* storage_class_named(std::string_view name);

/// By the name of a quantized dtype ("qint8").
const StorageClass* find_quantized_class(std::string_view quantized);

/// The class that torch 1.13 has for a dtype, or UntypedStorage.
const StorageClass& storage_class_for(DType dtype);

}  // namespace cbk::pickle
