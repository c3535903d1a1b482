// Pickles as data: a machine that runs no code. It knows the opcodes of protocols 2 to 5, builds Values, and
// asks an allow-list what each global means. Used for torch files, and for the dill pickles inside Cerebras
// H5.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "host/value/value.hpp"

namespace cbk::torch {

struct UnpickleOptions {
  /// Resolves a persistent id (a tuple value) to a value; unset: persistent ids are refused.
  std::function<Value(const Value& id)> persistent_load;
  bool dill = false;           // also dill's spellings of builtin types and objects (H5 files)
  bool allow_records = false;  // unknown classes with a plain state become Objects instead of being refused
  uint64_t max_bytes = 1ULL << 30;  // bound of memory the values may take
};

/// The value of the one pickle at the start of `bytes`; `consumed` gets its length.
/// Refused globals are collected and named together, all of them, in one `refused` error.
Value unpickle(std::string_view bytes, const UnpickleOptions& options, size_t* consumed = nullptr);

/// One line per opcode: offset, name, argument; for looking at a pickle without interpreting it.
struct Opcode {
  uint64_t offset = 0;
  std::string name;
  std::string argument;
};
std::vector<Opcode> disassemble(std::string_view bytes);

}  // namespace cbk::torch
