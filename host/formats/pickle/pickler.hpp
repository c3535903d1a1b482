// Values to pickles: protocol 2 for torch files, protocol 4 in dill's spelling for the objects inside
// Cerebras H5. Pure functions; the output depends on nothing but the value and the options.
#pragma once

#include <functional>
#include <string>

#include "host/value/value.hpp"

namespace cbk::pickle {

/// The place of a tensor's elements, as its pickle names it. Offset and strides count elements.
struct StoredTensor {
  std::string
      storage_class;  // "FloatStorage", "QInt8Storage", "UntypedStorage" (then the dtype is named too)
  std::string key;
  int64_t storage_numel = 0;  // elements of the storage's class: bytes for UntypedStorage
  int64_t offset = 0;
  Shape strides;
};

struct PicklerOptions {
  int protocol = 2;   // 2 or 4
  bool dill = false;  // builtin classes and ranges as dill writes them
  /// Gives a tensor its storage; called once per distinct leaf, in an order that depends on the value alone.
  /// `storage_class` is the one for the tensor's dtype. Unset: a tensor or parameter is a `value` error.
  std::function<StoredTensor(const Tensor& tensor, const std::string& storage_class, const std::string& path)>
      store;
};

/// The pickle of `value`. Shared containers and tensors stay shared; an Object is written from its type and
/// state:
///   "class" (repr: the dotted name), "torch.dtype", "torch.device", "torch.layout", "torch.qscheme",
///   "builtins.range", "torch.sparse_*", "torch.quantized", "torch.storage", and any other "module.Class"
///   with a state as an instance whose state is set (NEWOBJ, BUILD) - a TreeSpec is that.
/// Errors: `value` for values that a pickle cannot hold (graph tensors), naming the dotted path.
std::string dump(const Value& value, const PicklerOptions& options);

/// Calls `store` and performs the checks of `dump` without output. Results of `store` are not checked.
void rehearse(const Value& value, const PicklerOptions& options);

/// An object in the form of Cerebras H5 files: protocol 4, one frame, dill's spelling.
std::string dump_dill(const Value& value);

/// The storage class of a dtype: "FloatStorage"; dtypes without one (uint16, float8, …) have
/// "UntypedStorage".
std::string storage_class_of(DType dtype);

}  // namespace cbk::pickle
