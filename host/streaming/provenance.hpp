// What an output was made of, and digests with which its bytes can be checked: a JSON file beside it.
//
//   { "cbk": version, "command": [words], "folder": where it ran, "output": path, "sources": [{ path, size,
//   modified, ends
//   }],
//     "files": [{ "file": name, "size": bytes, "rest": digest,
//                 "items": ["OFFSET BYTES BLOCK_BYTES DIGEST DTYPE [SHAPE] KEY"] }] }
//
// The digest of an item is the BLAKE3 of the digests of its blocks of `block_bytes`, which are computed
// while it is written. `rest`: BLAKE3 of what is between the items. `ends`: see source_ends.
#pragma once

#include <string>
#include <vector>

#include "host/base/digest.hpp"
#include "host/formats/writer.hpp"

namespace cbk {

struct ProvenanceOptions {
  std::vector<std::string> command;
  std::string version;
  std::vector<fs::path> files;  // one for each output
};

/// An item as it was written. One that goes to a sink has no offset: `rest` covers its bytes.
struct ItemDigest {
  const Item* item = nullptr;
  Slot slot;
  uint64_t block_bytes = 0;
  Digest digest{};
};

/// The path of the file for an output: "model.mdl.provenance.json".
fs::path provenance_of(const fs::path& target);

/// BLAKE3 of the first and the last 64 KiB of a source: its header, and what is appended to it.
std::string source_ends(const MappedFile& source);

/// What comes first in a provenance, and in the plan of a job: version, command, folder and sources.
Value origin(const std::string& version, const std::vector<std::string>& command, const SourceFiles& sources);

/// The same as a line of text, which the output keeps in itself if its format has a place for it.
std::string origin_text(const ProvenanceOptions& options, const SourceFiles& sources);

/// The text of the file for one output. Reads what is between the items. Errors: `io`.
std::string provenance_text(const ProvenanceOptions& options, const SourceFiles& sources,
                            const fs::path& file, const std::vector<ItemDigest>& items);

/// What differs between an output and a provenance, a line each: "'model.mdl': 'model.w' has other bytes".
/// The output may have another name now than when it was written. Errors: `io`, `format`.
std::vector<std::string> differences(const fs::path& provenance, const fs::path& output);

/// The digests of the items in a provenance, in order, with their keys.
std::vector<std::pair<std::string, std::string>> recorded_digests(const fs::path& provenance);

/// The command that made an output, the folder where it ran, and the output's path then.
struct RecordedCommand {
  std::vector<std::string> words;
  std::string folder;
  std::string output;
};
RecordedCommand recorded_command(const fs::path& provenance);

}  // namespace cbk
