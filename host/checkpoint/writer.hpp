// What a format must say to be written by the streaming executor (host/plan).
//
// The constructor of a writer checks the whole tree and decides every item, so that all that can be wrong is
// found before the first byte is written. `lay_out` then makes the staged files, writes headers and fixes
// where each item goes; the executor fills the items in any order and from any thread; `finish` writes what
// depends on them (checksums, success marks).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "host/base/checksum.hpp"
#include "host/base/file.hpp"
#include "host/value/value.hpp"

namespace cbk {

/// One run of bytes to be produced: the elements of `tensor` in C order.
struct Item {
  std::string key;  // for progress and messages
  Tensor tensor;
  Checksum checksum = Checksum::none;  // that the writer wants to know in `finish`
};

/// Where an item goes.
struct Slot {
  StagedFile* file = nullptr;
  uint64_t offset = 0;
};

class Writer {
 public:
  virtual ~Writer() = default;
  [[nodiscard]] virtual const std::vector<Item>& items() const = 0;
  /// Bytes that will be written beside the items (headers, directories), about.
  [[nodiscard]] virtual uint64_t overhead() const = 0;
  /// What the user should know before: "3 tied tensors are written as copies".
  [[nodiscard]] virtual const std::vector<std::string>& warnings() const = 0;
  /// Called once. One slot per item, in the same order.
  virtual std::vector<Slot> lay_out() = 0;
  /// `crcs[i]` is the checksum of item i where it was asked for. Afterwards `commit` may be called.
  virtual void finish(const std::vector<uint32_t>& crcs) = 0;
  /// Makes the target visible, atomically. `sync`: wait until it is on the disk.
  virtual void commit(bool sync) = 0;
};

/// A writer whose file may be one of many in a folder that is made later.
class ShardWriter : public Writer {
 public:
  /// The file will get its name in `folder`, which is made before `commit`; until then it lies in `staging`.
  /// Before `lay_out`.
  virtual void stage_in(const fs::path& folder, const fs::path& staging) = 0;
};

struct WriteOptions {
  bool overwrite = false;
  std::string format;  // "torch", "safetensors", "h5", "tensorflow"; empty: from the name (.pt .pth .bin /
                       // .safetensors / .mdl .h5 .hdf5 / .index)
  std::string h5_version;              // "0.4" or "0.5"; empty: 0.5
  std::string framework_version;       // H5: the release named in the file ("2.10.0"); empty: none for 0.4,
                                       // "2.10.0" for 0.5
  std::optional<uint64_t> shard_size;  // set: a sharded folder with its index.json (torch, safetensors, flat
                                       // H5), or several data files (tensorflow)
  std::string shard_stem;              // "pytorch_model" or "model" by default
  bool keep_texts = false;             // flat H5: tensors of texts too, which are left out otherwise
  Value metadata;                      // safetensors __metadata__ (text to text)
  /// Small files (name, content) that appear together with the checkpoint, inside the folder of a sharded
  /// one.
  std::vector<std::pair<std::string, std::string>> companions;
};

/// The writer for `target`. Errors: an unknown format or suffix (`usage`), and whatever the format cannot
/// hold.
std::unique_ptr<Writer> make_writer(const Value& root, const fs::path& target, const WriteOptions& options);

}  // namespace cbk
