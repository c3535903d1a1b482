#include "host/formats/nemo/reader.hpp"

#include <algorithm>

#include "host/base/error.hpp"
#include "host/formats/nemo/tar.hpp"
#include "host/formats/torch/reader.hpp"

namespace cbk::nemo {
namespace {

constexpr std::string_view weights = "model_weights.ckpt";

std::string_view plain(std::string_view name) {
  while (name.starts_with("./")) {
    name.remove_prefix(2);
    while (name.starts_with('/')) name.remove_prefix(1);
  }
  return name;
}

/// Fails because no member is the state dict.
[[noreturn]] void fail_without_weights(const Archive& archive) {
  std::vector<std::string> names;
  for (const Member& member : archive.members) {
    const std::string_view name = plain(member.name);
    if (name.ends_with(fmt::format("/{}", weights)) || name.starts_with("model_weights/")) {
      fail(Errc::unsupported,
           "its weights are in parts ({}), which are not joined here; unpack it with 'tar xf' "
           "and open the folder of the parts",
           quote(name));
    }
    if (name == "sys_info") {
      fail(Errc::unsupported,
           "a tar archive, as torch wrote them before 0.1.10; load and save it again with torch");
    }
    names.push_back(quote(name));
  }
  if (!archive.has_end)
    fail(Errc::format,
         "the archive ends before its weights ('{}'): it was cut short; copy or download it again", weights);
  fail(Errc::missing, "the archive has no member '{}'; it has {}", weights,
       names.empty() ? "none" : listed(names, 5));
}

}  // namespace

bool looks_like_tar(ByteView head) {
  constexpr size_t at = 257;
  return as_text(head).substr(std::min(at, head.size())).starts_with("ustar");
}

Checkpoint read(const std::shared_ptr<const MappedFile>& file, const OpenOptions& options,
                const MemoryPtr& memory) {
  const Archive archive = read_archive(file->bytes());
  const std::vector<Member>& members = archive.members;
  // Of several members with one name, the last one counts, as for tar: it was added later.
  const auto found = std::find_if(members.rbegin(), members.rend(),
                                  [](const Member& member) { return plain(member.name) == weights; });
  if (found == members.rend()) fail_without_weights(archive);
  return within(fmt::format("the member '{}'", weights), [&] {
    Checkpoint checkpoint = torch::read(MappedFile::part(file, found->offset, found->size), options, memory);
    checkpoint.format = "nemo";
    return checkpoint;
  });
}

}  // namespace cbk::nemo
