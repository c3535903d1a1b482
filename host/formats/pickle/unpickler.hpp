// Pickles as data: a machine that runs no code. It supports the opcodes of protocols 0 to 5, builds Values,
// and looks up each global in an allow-list. Used for torch files, and for the dill pickles inside Cerebras
// H5.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "host/base/memory_budget.hpp"
#include "host/value/value.hpp"

namespace cbk::pickle {

struct UnpickleOptions {
  /// Resolves a persistent id (a tuple value) to a value; unset: persistent ids are refused.
  std::function<Value(const Value& id)> persistent_load;
  /// Sets the dtype of an untyped storage's elements (and swaps them for a file of other byte order);
  /// unset: unchanged.
  std::function<StoragePtr(const StoragePtr& storage, DType dtype)> retype;
  /// Receives warnings about data that could not be kept (attributes of a tensor).
  std::function<void(std::string warning)> warn;
  /// Called for each value that cannot be read, which stays in the tree as such (see value/unreadable.hpp);
  /// unset: such a value is an error.
  std::function<void()> note_unreadable;
  bool dill = false;           // also dill's spellings of builtin types and objects (H5 files)
  bool allow_records = false;  // unknown classes with a plain state become Objects instead of being refused
  /// Classes and functions that are not plain data are described instead of being refused, if they are
  /// harmless (globals.hpp): Objects that are `is_inert`. Subclasses of dict and list are read as such.
  bool describes = false;
  /// Called for each described instance that gets its state. What it returns takes the instance's place.
  std::function<std::optional<Value>(std::string_view type, const Value& state)> replace;
  MemoryBudget* budget = nullptr;  // of the checkpoint; unset: as for a file that is the pickle
};

/// What `persistent_load` returns for a storage: an Object "torch.storage" whose repr is the storage class
/// ("FloatStorage") and whose state is a one-dimensional tensor over all its elements.
///
/// A global that is itself a value is an Object "class" with its dotted name as repr
/// ("collections.OrderedDict"). No bytes of the pickle are kept: output is made from values.
///
/// The value of the one pickle at the start of `bytes`; `consumed` gets its length.
/// Refused globals are collected and named together, all of them, in one `refused` error.
Value load(std::string_view bytes, const UnpickleOptions& options, size_t* consumed = nullptr);

}  // namespace cbk::pickle
