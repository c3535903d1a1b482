// The result of every format's reader: a checkpoint as one lazy tree. The bytes of tensors stay on disk.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "host/base/memory_budget.hpp"
#include "host/value/value.hpp"

namespace cbk {

namespace fs = std::filesystem;

struct Checkpoint {
  fs::path path;
  std::string format;   // "torch-zip", …: scripts/lib/cbk/meta.lua has them all (Checkpoint.format)
  std::string version;  // the H5 format ("0.5"), the zip's version record, …; may be empty
  Value root;           // a dict nearly always; a torch file may hold any value
  Value metadata;  // format-level metadata as a dict (safetensors __metadata__, H5 root attributes, index
                   // metadata), or none
  std::vector<fs::path> files;        // every file the tensors come from
  std::vector<std::string> lost;      // names of what `salvage` left out
  std::vector<std::string> warnings;  // what the user should know: missing keys, skipped CRCs
  bool has_unreadable = false;        // a reader left values in the tree that only say why they are not read
  std::vector<std::string> unreadable;  // which ones, and why; filled by open_checkpoint
  MemoryPtr memory;                     // paid for the tree
};

struct OpenOptions {
  bool allow_records = false;  // instances of classes such as argparse.Namespace may be written as they were
                               // read; also reads unknown numpy forms, and such instances in H5
  bool salvage = false;  // of a file that is cut short, read the tensors that are whole; the lost ones are
                         // unreadable, until open_checkpoint leaves them out
  std::vector<fs::path> allow_external;   // folders beside the checkpoint's own where files that it names may
                                          // be (host/base/named_files.hpp)
  std::optional<uint64_t> max_expansion;  // see host/checkpoint/read_limit.hpp
};

}  // namespace cbk
