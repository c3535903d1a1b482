#include "host/checkpoint/distributed.hpp"

#include <algorithm>

#include "host/base/entries.hpp"
#include "host/base/error.hpp"
#include "host/formats/dcp/metadata.hpp"
#include "host/value/json.hpp"

namespace cbk {
namespace {

constexpr std::string_view piece_suffix = ".distcp";
constexpr std::string_view metadata_name = ".metadata";
constexpr uint64_t most_looked_at = 4096;

}  // namespace

void refuse_distributed(const MappedFile& file) {
  const fs::path& path = file.path();
  if (path.extension() != piece_suffix) return;
  const fs::path folder = folder_of(path);
  throw Error(Errc::usage, {.problem = fmt::format("it has pieces of the tensors of the "
                                                   "torch.distributed.checkpoint folder {}, and is no "
                                                   "checkpoint by itself",
                                                   quote(folder.string(), 1000)),
                            .advice = "open the folder"});
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
         "torch.distributed.checkpoint folder; open the folder",
         quote(key_text(name)));
  }
}

std::shared_ptr<const MappedFile> metadata_in(const NamedFiles& files, const fs::path& folder) {
  const std::string name(metadata_name);
  auto file = files.find(name, NamedFiles::Link::followed);
  if (file != nullptr &&
      dcp::looks_like_metadata(file->bytes().first(std::min<uint64_t>(file->size(), most_looked_at))))
    return file;
  const auto entries = entries_of(folder);
  const bool has_pieces = std::any_of(entries.begin(), entries.end(), [](const auto& entry) {
    return entry.path().extension() == piece_suffix;
  });
  if (!has_pieces) return nullptr;
  throw Error(Errc::missing,
              {.problem = "the folder has pieces of torch.distributed.checkpoint (*.distcp), but "
                          "not the file '.metadata', which says where they belong",
               .advice = "copy it from where the folder was written"});
}

}  // namespace cbk
