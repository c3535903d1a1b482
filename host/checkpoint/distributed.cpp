#include "host/checkpoint/distributed.hpp"

#include <algorithm>

#include "host/base/entries.hpp"
#include "host/base/error.hpp"
#include "host/value/json.hpp"

namespace cbk {
namespace {

constexpr std::string_view piece_suffix = ".distcp";
constexpr std::string_view metadata_name = ".metadata";
constexpr std::string_view metadata_class = "torch.distributed.checkpoint.metadata";
constexpr uint64_t most_looked_at = 4096;

/// Whether it is a pickle of the class that only these folders contain.
bool is_metadata(ByteView bytes) {
  const std::string_view head = as_text(bytes).substr(0, most_looked_at);
  return head.starts_with('\x80') && head.find(metadata_class) != std::string_view::npos;
}

/// Advice for converting the folder to one file.
std::string advice(const fs::path& folder) {
  return fmt::format(
      "in Python, torch.distributed.checkpoint.format_utils.dcp_to_torch_save({}, 'model.pt') makes one file "
      "of "
      "it",
      quote(folder.string(), 1000));
}

}  // namespace

void refuse_distributed(const MappedFile& file) {
  const fs::path& path = file.path();
  if (path.extension() != piece_suffix && !is_metadata(file.bytes())) return;
  const fs::path folder = path.has_parent_path() ? path.parent_path() : fs::path(".");
  fail(Errc::unsupported,
       "it is a part of the torch.distributed.checkpoint folder {}, and no checkpoint by itself; such "
       "folders are "
       "not read: {}",
       quote(folder.string(), 1000), advice(folder));
}

void refuse_pieces(const Checkpoint& checkpoint) {
  const Value* info = checkpoint.metadata.find("DCP_SHARDING_INFO");
  if (info == nullptr || !info->is(Value::Kind::string)) return;
  const Value by_name =
      within("DCP_SHARDING_INFO of the metadata", [&] { return parse_json(info->as_string(), {}); });
  if (!by_name.is(Value::Kind::dict)) return;
  for (const auto& [name, piece] : by_name.as_dict().entries()) {
    const Value* offsets = piece.find("saved_offsets");
    if (offsets == nullptr || !offsets->is(Value::Kind::sequence)) continue;
    const auto& starts = offsets->as_sequence().items;
    const bool is_first =
        std::all_of(starts.begin(), starts.end(), [](const Value& start) { return start.equals(Value(0)); });
    if (is_first) continue;
    fail(Errc::unsupported,
         "its tensor {} is a piece of a larger one (DCP_SHARDING_INFO): it is a part of a "
         "torch.distributed.checkpoint folder, which is not read; in Python, load the folder with "
         "torch.distributed.checkpoint, and save what it gives as one file",
         quote(key_text(name)));
  }
}

bool is_distributed_folder(const fs::path& folder) {
  const auto entries = entries_of(folder);
  const bool has_pieces = std::any_of(entries.begin(), entries.end(), [](const auto& entry) {
    return entry.path().extension() == piece_suffix;
  });
  std::error_code ignored;
  const fs::path metadata = folder / metadata_name;
  return has_pieces ||
         (fs::is_regular_file(metadata, ignored) && is_metadata(MappedFile::open(metadata)->bytes()));
}

void fail_as_distributed_folder(const fs::path& folder) {
  fail(Errc::unsupported,
       "it is a torch.distributed.checkpoint folder (.metadata, *.distcp: pieces of tensors), which is not "
       "read; {}",
       advice(folder));
}

}  // namespace cbk
