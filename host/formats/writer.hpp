// The interface through which the streaming executor (host/streaming) writes a format.
//
// The constructor of a writer checks the whole tree and plans every item, so that all errors are found before
// the first byte is written. `lay_out` then creates the files of a transaction, writes headers and decides
// the place of each item. The executor fills the items in any order and from any thread. `finish` writes the
// parts that depend on them (checksums, success marks). Then the transaction may be committed.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "host/base/checksum.hpp"
#include "host/base/transaction.hpp"
#include "host/formats/shard_layout.hpp"
#include "host/value/value.hpp"

namespace cbk {

/// Receives the pieces of an item with an unknown stored size, such as compressed chunks.
class PieceSink {
 public:
  PieceSink() = default;
  PieceSink(const PieceSink&) = delete;
  PieceSink& operator=(const PieceSink&) = delete;
  virtual ~PieceSink() = default;
  /// The stored form of a piece. Called from any thread.
  [[nodiscard]] virtual Bytes pack(ByteView piece) const = 0;
  /// One piece after the other, in their order; items in the same order for any number of threads.
  virtual void append(Bytes packed) = 0;
};

/// One run of bytes to produce: the elements of `tensor` in C order.
struct Item {
  std::string key;  // for progress and messages
  Tensor tensor;
  Checksum checksum = Checksum::none;  // that the writer wants to know in `finish`
  /// Set: the elements go there instead of to a slot, `elements` at a time, and fewer at the end of each
  /// `row` of elements.
  struct Pieces {
    PieceSink* sink = nullptr;
    int64_t elements = 0;
    int64_t row = 0;
  };
  std::optional<Pieces> pieces = std::nullopt;
};

/// Where an item goes, unless it goes to a sink.
struct Slot {
  StagedFile* file = nullptr;
  uint64_t offset = 0;
};

class Writer {
 public:
  virtual ~Writer() = default;
  [[nodiscard]] virtual const std::vector<Item>& items() const = 0;
  /// About how many bytes will be written besides the items (headers, directories).
  [[nodiscard]] virtual uint64_t overhead() const = 0;
  /// Warnings for the user before writing: "3 tied tensors are written as copies".
  [[nodiscard]] virtual const std::vector<std::string>& warnings() const = 0;
  /// Called once. One slot per item, in the same order. The files live as long as the transaction.
  virtual std::vector<Slot> lay_out(Transaction& transaction) = 0;
  /// `crcs[i]` is the checksum of item i if it was requested.
  virtual void finish(const std::vector<uint32_t>& crcs) = 0;
};

/// A writer of one file, possibly one of many in a folder.
class ShardWriter : public Writer {
 public:
  ShardWriter(fs::path target, bool overwrite) : target_(std::move(target)), overwrite_(overwrite) {}
  std::vector<Slot> lay_out(Transaction& transaction) final {
    return lay_out_in(transaction.file(target_, overwrite_));
  }
  /// The same in an existing file.
  virtual std::vector<Slot> lay_out_in(StagedFile& file) = 0;

 protected:
  [[nodiscard]] const fs::path& target() const { return target_; }

 private:
  fs::path target_;
  bool overwrite_;
};

/// Under this name a file keeps its origin: in the __metadata__ of safetensors, as an attribute of H5's root.
inline constexpr std::string_view origin_name = "cbk_provenance";

/// How the chunks of H5 are packed.
enum class Compression { none, deflate, lz4, zstd };

struct WriteOptions {
  bool overwrite = false;
  bool may_exist = false;  // the target: whether it may be replaced is asked when it is laid out
  std::string format;      // "torch", "safetensors", "h5", "tensorflow"; empty: from the name (formats.hpp)
  std::string h5_version;  // "0.4" or "0.5"; empty: 0.5
  Compression compression = Compression::none;  // H5
  std::string framework_version;       // H5: the release named in the file ("2.10.0"); empty: none for 0.4,
                                       // "2.10.0" for 0.5
  std::optional<uint64_t> shard_size;  // set: a sharded folder with its index.json (torch, safetensors, flat
                                       // H5), or several data files (tensorflow)
  ShardsByName shards;                 // in place of shard_size, where it is not empty
  bool single_file = false;            // a folder with one file, without an index
  std::string shard_stem;              // "pytorch_model" or "model" by default
  bool keep_texts = false;             // flat H5: tensors of texts too, which are left out otherwise
  Value metadata;                      // safetensors __metadata__ (text to text); flat H5: whole numbers, as
                                       // attributes of the root
  std::string origin;  // what the file was made by: JSON, kept in it by safetensors and H5; empty: none
  /// Small files (name, content) that appear together with the checkpoint: beside it, or inside the folder of
  /// a
  /// sharded one; elsewhere if the name is an absolute path.
  std::vector<std::pair<std::string, std::string>> companions;

  /// Whether the target is a folder (except for tensorflow).
  [[nodiscard]] bool is_folder() const { return shard_size || !shards.empty() || single_file; }
};

}  // namespace cbk
