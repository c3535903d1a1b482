#include "host/checkpoint/formats.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <vector>

#include "host/checkpoint/distributed.hpp"
#include "host/formats/dcp/metadata.hpp"
#include "host/formats/dcp/reader.hpp"
#include "host/formats/file_names.hpp"
#include "host/formats/gguf/header.hpp"
#include "host/formats/gguf/reader.hpp"
#include "host/formats/h5/reader.hpp"
#include "host/formats/h5/writer.hpp"
#include "host/formats/nemo/reader.hpp"
#include "host/formats/npy/header.hpp"
#include "host/formats/npy/reader.hpp"
#include "host/formats/npy/writer.hpp"
#include "host/formats/safetensors/reader.hpp"
#include "host/formats/safetensors/writer.hpp"
#include "host/formats/tensorflow/reader.hpp"
#include "host/formats/tensorflow/writer.hpp"
#include "host/formats/torch/reader.hpp"
#include "host/formats/torch/writer.hpp"

namespace cbk {
namespace {

ByteView first_bytes(const MappedFile& file) {
  constexpr size_t size = 4096;
  return file.bytes().first(std::min(file.bytes().size(), size));
}

bool is_npz(const MappedFile& file) {
  return npy::looks_like_npz(first_bytes(file), file.path());
}

Checkpoint read_safetensors(const FilePtr& file, const OpenOptions& options, const MemoryPtr& memory) {
  Checkpoint checkpoint = safetensors::read(file, options, *memory);
  refuse_pieces(checkpoint);
  return checkpoint;
}

constexpr auto torch_suffixes = std::to_array<std::string_view>({".pt", ".pth", ".bin", ".ckpt"});
constexpr auto safetensors_suffixes = std::to_array<std::string_view>({".safetensors"});
constexpr auto h5_suffixes = std::to_array<std::string_view>({".mdl", ".h5", ".hdf5", ".hdf"});
constexpr auto tensorflow_suffixes = std::to_array<std::string_view>({bundle_index_suffix});
constexpr auto npy_suffixes = std::to_array<std::string_view>({".npy"});
constexpr auto npz_suffixes = std::to_array<std::string_view>({".npz"});
constexpr auto nemo_suffixes = std::to_array<std::string_view>({".nemo"});
constexpr auto gguf_suffixes = std::to_array<std::string_view>({gguf_suffix});

constexpr std::array<Format, 10> formats = {{
    {.name = "torch",
     .title = "torch zip and legacy files",
     .suffixes = torch_suffixes,
     .shard_suffix = ".bin",
     .shard_stem = "pytorch_model",
     .usual = "pytorch_model.bin",
     .detect =
         [](const MappedFile& file) { return torch::looks_like_torch(first_bytes(file)) && !is_npz(file); },
     .read = [](const FilePtr& file, const OpenOptions& options,
                const MemoryPtr& memory) { return torch::read(file, options, memory); },
     .write_file = torch::make_writer},
    {.name = "safetensors",
     .title = "safetensors",
     .suffixes = safetensors_suffixes,
     .shard_suffix = ".safetensors",
     .shard_stem = "model",
     .usual = "model.safetensors",
     .detect = [](const MappedFile& file) { return safetensors::looks_like_safetensors(first_bytes(file)); },
     .read = read_safetensors,
     .write_file = safetensors::make_writer},
    {.name = "h5",
     .title = "HDF5",
     .suffixes = h5_suffixes,
     .shard_suffix = ".h5",
     .shard_stem = "model",
     .detect = [](const MappedFile& file) { return h5::is_hdf5(file.bytes()); },
     .read = [](const FilePtr& file, const OpenOptions& options,
                const MemoryPtr& memory) { return h5::read(file, options, memory); },
     .write_file = h5::make_writer},
    {.name = "tensorflow",
     .title = "the index of a TensorFlow checkpoint",
     .suffixes = tensorflow_suffixes,
     .detect = [](const MappedFile& file) { return tensorflow::looks_like_index(file.bytes()); },
     .read = [](const FilePtr& file, const OpenOptions& options,
                const MemoryPtr& memory) { return tensorflow::read(file, options, memory); },
     .write_files = tensorflow::make_writer},
    {.name = "npy",
     .title = "NumPy's .npy",
     .suffixes = npy_suffixes,
     .detect = [](const MappedFile& file) { return npy::looks_like_npy(first_bytes(file)); },
     .read = [](const FilePtr& file, const OpenOptions& options,
                const MemoryPtr& /*memory*/) { return npy::read(file, options); },
     .write_file = npy::make_writer},
    {.name = "npz",
     .title = "NumPy's .npz",
     .suffixes = npz_suffixes,
     .detect = is_npz,
     .read = npy::read_archive,
     .write_file = npy::make_archive_writer},
    {.name = "gguf",
     .title = "GGUF",
     .suffixes = gguf_suffixes,
     .detect = [](const MappedFile& file) { return gguf::looks_like_gguf(first_bytes(file)); },
     .read = gguf::read},
    {.name = "dcp",
     .title = "folders of torch.distributed.checkpoint",
     .suffixes = {},
     .detect = [](const MappedFile& file) { return dcp::looks_like_metadata(first_bytes(file)); },
     .read = dcp::read},
    {.name = "nemo",
     .title = "NeMo's tar archives",
     .suffixes = nemo_suffixes,
     .detect = [](const MappedFile& file) { return nemo::looks_like_tar(first_bytes(file)); },
     .read = nemo::read},
    // Any name: the bytes of one tensor.
    {.name = "raw", .title = "raw bytes", .suffixes = {}, .write_file = npy::make_raw_writer},
}};

/// "a, b or c".
std::string joined(const std::vector<std::string>& texts) {
  std::string out;
  for (size_t i = 0; i < texts.size(); ++i) {
    if (i > 0) out += i + 1 == texts.size() ? " or " : ", ";
    out += texts[i];
  }
  return out;
}

}  // namespace

std::span<const Format> all_formats() {
  return formats;
}

const Format* format_of_name(std::string_view given) {
  std::string name(given);
  for (char& letter : name) letter = static_cast<char>(std::tolower(static_cast<unsigned char>(letter)));
  const auto* found = std::ranges::find(formats, name == "tf" ? "tensorflow" : name, &Format::name);
  return found == formats.end() ? nullptr : found;
}

const Format* format_of_suffix(const fs::path& file) {
  const std::string suffix = file.extension().string();
  const auto* found = std::ranges::find_if(formats, [&](const Format& format) {
    return std::ranges::find(format.suffixes, suffix) != format.suffixes.end();
  });
  return found == formats.end() ? nullptr : found;
}

const Format* detect(const MappedFile& file) {
  const auto* found = std::ranges::find_if(
      formats, [&](const Format& format) { return format.detect != nullptr && format.detect(file); });
  return found == formats.end() ? nullptr : found;
}

std::string list_of_suffixes() {
  std::vector<std::string> texts;
  for (const Format& format : formats) {
    if (format.is_written() && !format.suffixes.empty())
      texts.push_back(fmt::format("{} ({})", fmt::join(format.suffixes, " "), format.name));
  }
  return joined(texts);
}

std::string list_of_formats() {
  std::vector<std::string> texts;
  for (const Format& format : formats) {
    if (format.is_written()) texts.emplace_back(format.name);
  }
  return joined(texts);
}

bool is_shard_name(const fs::path& file) {
  const Format* format = format_of_suffix(file);
  return format != nullptr && format->has_shards() && before_part(file.stem().string(), "-");
}

bool is_written_shard_name(std::string_view name) {
  if (name.ends_with(shard_index_suffix)) return true;
  return std::ranges::any_of(formats, [&](const Format& format) {
    if (!format.usual.empty() && name == format.usual) return true;
    return format.has_shards() && name.ends_with(format.shard_suffix) &&
           before_part(name.substr(0, name.size() - format.shard_suffix.size()), "-");
  });
}

}  // namespace cbk
