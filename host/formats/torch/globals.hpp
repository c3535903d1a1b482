// The globals in the pickles of a torch file, found without interpreting them: for a report on a file that is
// not read.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "host/base/file.hpp"

namespace cbk::torch {

struct NamedGlobal {
  /// The reader's treatment: plain data, a description, or refused.
  enum class Kind { plain, record, refused };
  std::string name;     // "os.system"; "?" where it is put together while the pickle runs
  uint64_t offset = 0;  // of the first opcode that names it, as in Opcode
  Kind kind = Kind::refused;
};

std::string_view name_of(NamedGlobal::Kind kind);  // "plain", "record", "refused"

/// Each global once, in the order of the file. A damaged pickle is read as far as possible. Errors: `format`
/// for a file that is not a torch file.
std::vector<NamedGlobal> named_globals(std::shared_ptr<const MappedFile> file);

}  // namespace cbk::torch
