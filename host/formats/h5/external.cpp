#include "host/formats/h5/external.hpp"

namespace cbk::h5 {

ExternalFiles::ExternalFiles(std::shared_ptr<const MappedFile> checkpoint,
                             const std::vector<fs::path>& allowed, MemoryPtr memory, bool may_be_cut)
    : files_(checkpoint->path().parent_path(), allowed, checkpoint),
      main_(std::make_shared<hdf5::File>(std::move(checkpoint), std::move(memory), may_be_cut)),
      may_be_cut_(may_be_cut) {}

std::shared_ptr<const MappedFile> ExternalFiles::map(const std::string& name) {
  std::shared_ptr<const MappedFile>& file = mapped_[name];
  if (!file) {
    file = files_.open(name);
    main_->memory()->add_file(file->size());
  }
  return file;
}

std::shared_ptr<hdf5::File> ExternalFiles::open(const std::string& name) {
  auto file = map(name);
  if (main_->mapped()->is_same_file(file->path())) return main_;
  std::shared_ptr<hdf5::File>& opened = opened_[name];
  if (!opened) {
    opened = within("external file " + quote(name),
                    [&] { return std::make_shared<hdf5::File>(file, main_->memory()); });
  }
  return opened;
}

std::vector<fs::path> ExternalFiles::paths() const {
  std::vector<fs::path> result{main_->mapped()->path()};
  for (const auto& [name, file] : mapped_) {
    if (file && !main_->mapped()->is_same_file(file->path())) result.push_back(file->path());
  }
  return result;
}

}  // namespace cbk::h5
