// The names of checkpoint files in several parts: shards, data files and their indexes. Code that opens,
// finds, writes or removes such files uses these functions. Suffixes of formats: host/checkpoint/formats.hpp.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

namespace cbk {

namespace fs = std::filesystem;

// --- shards

/// The suffix of the index of a checkpoint in several files.
inline constexpr std::string_view shard_index_suffix = ".index.json";

/// Whether it is the name of the index of a variant: "model.safetensors.index.fp16.json".
bool is_variant_index_name(std::string_view name);

/// "model-00001-of-00003.safetensors"; `number` counts from 1.
std::string shard_name(std::string_view stem, size_t number, size_t count, std::string_view suffix);

/// "-of-00003": the end of the names of all shards, without their suffix, and of all data files.
std::string end_of_parts(size_t count);

/// "model" of "model-00001-of-00003", for any separator before the first number; nothing if this cannot be
/// the name of a part.
std::optional<std::string_view> before_part(std::string_view name, std::string_view separator);

// --- GGUF, read only

inline constexpr std::string_view gguf_suffix = ".gguf";

// --- TensorFlow

/// The suffix of the index of a TensorFlow checkpoint, after the prefix.
inline constexpr std::string_view bundle_index_suffix = ".index";

/// "<prefix>.data-00000-of-00002"; `number` counts from 0.
std::string data_file_name(std::string_view prefix, size_t number, size_t count);

/// The prefix of the name of a data file; nothing for other names.
std::optional<std::string> prefix_of_data_file(std::string_view name);

}  // namespace cbk
