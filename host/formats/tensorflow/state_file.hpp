// The text file `checkpoint` of a folder: it names the latest bundle.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "host/base/named_files.hpp"

namespace cbk::tensorflow {

inline constexpr std::string_view state_file_name = "checkpoint";

struct State {
  std::string latest;            // a prefix, as the file says it
  std::vector<std::string> all;  // oldest first
};

/// Errors: `format` for another kind of file, and for one that names no checkpoint.
State read_state(const fs::path& file);

/// The index of the latest checkpoint of `folder`; nullptr if the folder has no state file. TensorFlow may
/// write absolute paths. If `allowed` (see NamedFiles) does not cover a path, only its last part is used,
/// because the folder may have been moved. Errors: those of `read_state` and NamedFiles, and a checkpoint
/// that does not exist.
std::shared_ptr<const MappedFile> latest_in(const fs::path& folder, const std::vector<fs::path>& allowed);

/// The content of the state file of `prefix`'s folder after `prefix` was saved: its checkpoints so far, and
/// this one as the latest. If the file records when each was saved, that is kept. Errors: those of
/// `read_state`.
std::string next_state(const fs::path& prefix);

}  // namespace cbk::tensorflow
