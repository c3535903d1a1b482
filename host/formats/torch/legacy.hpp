// The stream that torch wrote before 1.6: five pickles, then the storages one after the other. Read only.
#pragma once

#include <memory>

#include "host/checkpoint/checkpoint.hpp"

namespace cbk::torch {

inline constexpr std::string_view legacy_magic =
    "\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19\x2e";

Checkpoint read_legacy(std::shared_ptr<const MappedFile> file, const OpenOptions& options);

}  // namespace cbk::torch
