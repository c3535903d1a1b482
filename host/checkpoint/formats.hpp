// All formats of checkpoints, in one table: how each is named, recognised, read and written. What detection,
// `open_checkpoint`, `make_writer`, messages, help and completion know of a format is its entry here.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "host/base/file.hpp"
#include "host/formats/checkpoint.hpp"
#include "host/formats/writer.hpp"

namespace cbk {

using FilePtr = std::shared_ptr<const MappedFile>;

/// Empty names and null functions: the format has no such thing.
struct Format {
  std::string_view name;                        // as in WriteOptions
  std::string_view title;                       // for messages about files that are read
  std::span<const std::string_view> suffixes;   // of its files; TensorFlow: of its index
  std::string_view shard_suffix = {};           // of shards that are written
  std::string_view shard_stem = {};             // of shards that are written, unless another is asked for
  std::string_view usual = {};                  // the one file of a Hugging Face folder
  bool (*detect)(const MappedFile& file) = {};  // by content
  /// The memory is charged for the tree.
  Checkpoint (*read)(const FilePtr& file, const OpenOptions& options, const MemoryPtr& memory) = {};
  /// A checkpoint in one file, which may be a shard.
  std::unique_ptr<ShardWriter> (*write_file)(const Value& root, const fs::path& target,
                                             const WriteOptions& options) = {};
  /// A checkpoint whose files have names that the format makes of a prefix.
  std::unique_ptr<Writer> (*write_files)(const Value& root, const fs::path& prefix,
                                         const WriteOptions& options) = {};

  [[nodiscard]] bool is_written() const { return write_file != nullptr || write_files != nullptr; }
  [[nodiscard]] bool has_shards() const { return !shard_suffix.empty(); }
};

std::span<const Format> all_formats();

/// By its name, or by "tf" for tensorflow; nullptr for other texts.
const Format* format_of_name(std::string_view given);

/// By the suffix of a file; nullptr if it belongs to no format.
const Format* format_of_suffix(const fs::path& file);

/// By the first and last bytes; nullptr if it is no checkpoint, or the index of shards.
const Format* detect(const MappedFile& file);

/// ".pt .pth .bin .ckpt (torch), …": of formats that can be written, for messages.
std::string list_of_suffixes();

/// "torch, safetensors, …": of formats that can be written, for messages.
std::string list_of_formats();

/// Whether it is the name of a shard, of any format.
bool is_shard_name(const fs::path& file);

/// Whether a writer of shards gives this name to a shard, to an index or to the one file of a folder.
bool is_written_shard_name(std::string_view name);

}  // namespace cbk
