#include "host/formats/h5/external.hpp"

namespace cbk::h5 {

ExternalFiles::ExternalFiles(std::shared_ptr<const MappedFile> checkpoint, MemoryPtr memory)
    : folder_(checkpoint->path().parent_path()),
      main_(std::make_shared<File>(checkpoint, std::move(memory))) {
  mapped_.emplace(checkpoint->path(), std::move(checkpoint));
}

std::shared_ptr<const MappedFile> ExternalFiles::map(const std::string& name) {
  if (name.empty() || name.find('\0') != std::string::npos)
    fail(Errc::format, "{} is no file name", quote(name));
  const fs::path relative(name);
  std::vector<fs::path> places{relative};
  if (relative.is_relative() && !folder_.empty()) places.push_back(folder_ / relative);
  for (const fs::path& place : places) {
    std::error_code ignored;
    if (!fs::exists(place, ignored)) continue;
    if (auto known = mapped_.find(place); known != mapped_.end()) return known->second;
    auto file = MappedFile::open(place);
    main_->memory()->add_file(file->size());
    return mapped_.emplace(place, std::move(file)).first->second;
  }
  std::string tried;
  for (const fs::path& place : places) tried += (tried.empty() ? "" : " or ") + quote(place.string());
  fail(Errc::io, "the external file {} is not there; is the checkpoint's folder complete?", tried);
}

std::shared_ptr<File> ExternalFiles::open(const std::string& name) {
  auto file = map(name);
  if (main_->mapped()->is_same_file(file->path())) return main_;
  std::shared_ptr<File>& opened = opened_[file->path()];
  if (!opened) {
    opened =
        within("external file " + quote(name), [&] { return std::make_shared<File>(file, main_->memory()); });
  }
  return opened;
}

std::vector<fs::path> ExternalFiles::paths() const {
  std::vector<fs::path> result{main_->mapped()->path()};
  for (const auto& [path, file] : mapped_) {
    if (path != result.front()) result.push_back(path);
  }
  return result;
}

}  // namespace cbk::h5
