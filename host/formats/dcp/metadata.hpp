// The file `.metadata` of a folder of torch.distributed.checkpoint (see FORMAT.md): which pieces each tensor
// has, and where they are. It is a pickle of instances that only carry attributes; nothing in it is executed.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "host/base/memory_budget.hpp"
#include "host/value/value.hpp"

namespace cbk::dcp {

/// What `torch.save` wrote of one piece: bytes [offset, offset + length) of a file.
struct Stored {
  std::shared_ptr<const std::string> file;  // shared by all pieces in it
  uint64_t offset = 0;
  uint64_t length = 0;
};

/// The elements [offsets, offsets + sizes) of a tensor.
struct Chunk {
  Shape offsets;
  Shape sizes;
  std::optional<Stored> place;  // nothing: no file has it
};

struct Entry {
  std::string name;
  std::vector<Value> path;  // in the tree: texts and numbers
  bool is_tensor = false;
  DType dtype = DType::float32;
  Shape shape;
  std::vector<Chunk> chunks;    // of a tensor
  std::optional<Stored> place;  // of another value
};

struct Metadata {
  std::string version;  // may be empty
  std::vector<Entry> entries;
};

/// Whether the first bytes are those of such a file.
bool looks_like_metadata(ByteView head);

/// Errors: `format`; `refused` for a pickle that names forbidden globals; `unsupported` for pieces that
/// are packed.
Metadata read_metadata(std::string_view pickle, MemoryBudget& memory);

}  // namespace cbk::dcp
