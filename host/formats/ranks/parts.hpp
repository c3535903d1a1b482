// The parts of a checkpoint: one file of each rank of a training run.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "host/base/file.hpp"
#include "host/formats/checkpoint.hpp"

namespace cbk::ranks {

using FilePtr = std::shared_ptr<const MappedFile>;

/// A file of one rank.
struct RankFile {
  FilePtr file;
  int64_t rank = 0;
};

/// What one rank wrote.
struct Part {
  std::string name;  // of its file, for messages
  int64_t rank = 0;
  Value root;
};

/// Reads the files of one checkpoint, which are torch files; charges their trees, gathers their warnings.
class PartReader {
 public:
  PartReader(const OpenOptions& options, MemoryPtr memory) : options_(options), memory_(std::move(memory)) {}
  /// Errors name the file.
  Part read(const RankFile& file);
  std::vector<Part> read(std::span<const RankFile> files);
  [[nodiscard]] MemoryBudget& memory() { return *memory_; }
  [[nodiscard]] const OpenOptions& options() const { return options_; }
  void warn(std::string text) { out_.warnings.push_back(std::move(text)); }
  /// A value in the tree only says why it is not read.
  void note_unreadable() { out_.has_unreadable = true; }
  /// The checkpoint with this tree.
  Checkpoint checkpoint(std::string format, Value root);

 private:
  const OpenOptions& options_;
  MemoryPtr memory_;
  Checkpoint out_;
};

/// Joins what the ranks have at one place of their trees: tensors, or descriptions of tensors.
using JoinTensors = std::function<Value(const std::string& path, const std::vector<const Value*>& of_ranks)>;

/// The tree of rank 0 with the joined tensors in place of its own; the rest is that of rank 0. Tensors that
/// are one in rank 0 stay one. `is_tensor`: whether a value is to be joined. Errors: `format` for a tensor
/// that some ranks do not have, with key and file.
Value merged(const std::vector<Part>& parts, const std::function<bool(const Value&)>& is_tensor,
             const JoinTensors& join);

/// Fails (`format`) unless the tensors of all ranks have the same dtype and shape.
void check_alike(const std::vector<Part>& parts, const std::vector<const Value*>& of_ranks);

/// Whether they also have the same elements. Errors: `unsupported` for tensors that are too large to compare.
bool are_same(const std::vector<Part>& parts, const std::vector<const Value*>& of_ranks);

}  // namespace cbk::ranks
